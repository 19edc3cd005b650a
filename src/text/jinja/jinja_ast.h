// The parsed template: expressions and statements, with everything looked up by name already
// resolved.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/jinja/jinja_value.h"

namespace dsmoe::text::jinja {

struct Filter;
struct Test;
struct Method;

enum class ExprKind {
  constant,     // value
  name,         // name_id
  tuple,        // operands
  list,         // operands
  dict,         // operands: key, value, key, value ...
  attribute,    // operands[0] . text
  item,         // operands[0] [ operands[1] ]
  slice,        // operands[0] [ begin : end : step ], absent ones nullptr
  function,     // text ( operands )
  macro_call,   // name_id ( operands )
  method,       // operands[0] . method ( rest )
  loop_cycle,   // operands[0] . cycle ( rest )
  filter,       // operands[0] | filter ( rest )
  test,         // operands[0] is test ( rest )
  not_,         // operands[0]
  negate,       // operands[0]
  plus,         // operands[0]
  arithmetic,   // operands[0] text operands[1]
  concat,       // all operands, joined as text
  compare,      // operands[0] words[0] operands[1] words[1] operands[2] ...
  and_,         // operands[0], operands[1]
  or_,          // operands[0], operands[1]
  conditional,  // operands[0] if operands[1] else operands[2] (may be absent)
  captured,     // the text of the block being filtered
};

enum class Operator {
  add,
  subtract,
  multiply,
  divide,
  floor_divide,
  modulo,
  power,
  equal,
  not_equal,
  less,
  less_equal,
  greater,
  greater_equal,
  in,
  not_in
};

enum class Function { range, namespace_, dict, raise_exception, strftime_now };

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  ExprKind kind = ExprKind::constant;
  Position at;
  int height = 1;  // of the tree below: bounds the recursion of everything that walks it
  int name_id = -1;
  std::string text = {};
  Value value = {};
  Function function = {};
  std::vector<Operator> operators = {};
  std::vector<ExprPtr> operands = {};
  std::vector<std::string> keywords = {};  // names of the last keywords.size() operands
  const Filter* filter = nullptr;
  const Test* test = nullptr;
  const Method* method = nullptr;
};

enum class StmtKind {
  text,          // text
  output,        // exprs[0]
  if_,           // exprs[i] -> bodies[i]; one body more: else
  for_,          // target in exprs[0] [if exprs[1]]: bodies[0] [else bodies[1]]
  set,           // target = exprs[0]
  set_block,     // target = text of bodies[0] [through exprs[0]]
  filter_block,  // text of bodies[0] through exprs[0]
  with,          // targets[i] = exprs[i], visible in bodies[0]
  scope,         // bodies[0]; what it sets stays inside
  macro,         // name_id, parameters, bodies[0]
  break_,
  continue_,
};

struct Stmt;
using StmtPtr = std::unique_ptr<Stmt>;
using Body = std::vector<StmtPtr>;

struct Parameter {
  int name_id;
  std::string name;
  ExprPtr default_value;  // may be absent
};

struct Stmt {
  StmtKind kind = StmtKind::text;
  Position at;
  int name_id = -1;
  std::string text = {};
  std::vector<ExprPtr> targets = {};  // name, tuple of targets, or attribute of a name (set only)
  std::vector<ExprPtr> exprs = {};
  std::vector<Body> bodies = {};
  std::vector<Parameter> parameters = {};
};

struct Template {
  std::string what;                               // the name messages start with
  std::unordered_map<std::string, int> name_ids;  // 0 .. size - 1
  Body body;
};

// Throws Error(input): "<what>: line L, column C: ..." for what is malformed or outside the subset.
Template parse(std::string_view source, std::string_view what);

inline constexpr std::size_t kMaxTemplateBytes = std::size_t{256} << 10;
inline constexpr int kMaxNesting = 100;     // brackets, unary operators, blocks
inline constexpr int kMaxExprHeight = 200;  // also counts chains such as a + b + c

}  // namespace dsmoe::text::jinja

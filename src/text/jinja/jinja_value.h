// The values a template computes with: Python's none, bool, int, float, str, list, tuple, dict, and
// Jinja's undefined.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/jinja_run.h"

namespace dsmoe::text::jinja {

struct Stmt;
struct List;
struct Dict;
struct Namespace;
struct Loop;

using StringPtr = std::shared_ptr<const std::string>;
using ListPtr = std::shared_ptr<const List>;
using DictPtr = std::shared_ptr<const Dict>;

// The result of looking up what is not there. The name (owned by the template) is for messages
// only.
struct Undefined {
  const std::string* name = nullptr;
};
struct None {};
// A macro, or with nullptr a built-in function such as range: it can be tested, not printed.
struct Callable {
  const Stmt* macro = nullptr;
};

// Immutable and cheap to copy. Namespaces and loops are owned by the Heap of the render, not by
// values: `ns.me = ns` would be a cycle of shared pointers.
using Value = std::variant<Undefined, None, bool, std::int64_t, double, StringPtr, ListPtr, DictPtr,
                           Namespace*, Loop*, Callable>;

// Python has many sequence types that differ in what they allow. `view` is dict.items(), `iterator`
// a generator: always true, without length, used once.
enum class ListKind { list, tuple, range, view, iterator };

struct List {
  ListKind kind = ListKind::list;
  int depth = 1;  // longest chain of nested containers, this one included
  std::vector<Value> items;
};

// Keeps insertion order, as Python does. Keys are strings only.
struct Dict {
  int depth = 1;
  std::vector<std::pair<StringPtr, Value>> entries;
  std::unordered_map<std::string_view, std::size_t> index;  // into entries; views into their keys

  const Value* find(std::string_view key) const;
  void set(StringPtr key, Value value);  // while the dict is built, before it is shared
};

struct Namespace {
  std::unordered_map<std::string, Value> attributes;
};

// What `loop` is inside a for.
struct Loop {
  ListPtr sequence;
  std::size_t index = 0;
};

// Owns what values only point to, until the render ends.
struct Heap {
  std::deque<Namespace> namespaces;
  std::deque<Loop> loops;
};

template <class T>
bool is(const Value& value) {
  return std::holds_alternative<T>(value);
}

inline Value make_string(std::string text) {
  return std::make_shared<const std::string>(std::move(text));
}
// Charges the copy.
Value make_string(Run& run, std::string_view text);
// Charges the elements and refuses nesting deeper than kMaxValueDepth.
Value make_list(Run& run, ListKind kind, std::vector<Value> items);
Value make_dict(Run& run, Dict dict);
inline constexpr int kMaxValueDepth = 100;

// Copies a JSON value; refuses invalid UTF-8, integers beyond 64 bits and deep nesting. Adds the
// size of the value to `size` (one per node, one per 64 bytes): the budget of a render grows with
// its input.
Value from_json(Run& run, const nlohmann::ordered_json& json, std::int64_t& size, int depth = 0);

// "a string", "a list", ... for messages.
std::string_view kind_name(ListKind kind);
std::string_view type_name(const Value& value);
const ListPtr* as_list(const Value& value, ListKind kind);
// The text of a string value, else nullptr.
const std::string* as_string(const Value& value);

bool truthy(const Value& value);
bool equal(Run& run, const Value& a, const Value& b);
// <0, 0, >0; refuses pairs that Python refuses, and lists.
int compare(Run& run, const Value& a, const Value& b);
// `a in b`
bool contains(Run& run, const Value& container, const Value& item);

// What a for loop walks over; a copy only for strings and dicts.
ListPtr iterate(Run& run, const Value& value);
// len()
std::int64_t length(Run& run, const Value& value);

// str(value) and repr(value).
std::string to_text(Run& run, const Value& value);
void append_text(Run& run, std::string& out, const Value& value);

struct JsonStyle {
  JsonEscape escape = JsonEscape::controls;
  bool sort_keys = false;
  bool multiline = false;
  std::string indent;  // per level, when multiline
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
void append_json(Run& run, std::string& out, const Value& value, const JsonStyle& style,
                 int level = 0);

}  // namespace dsmoe::text::jinja

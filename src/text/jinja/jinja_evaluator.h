// The tree walker behind render(): expressions in jinja_eval_expr.cc, statements in jinja_eval.cc.
#pragma once

#include <string>
#include <vector>

#include "text/jinja/jinja_ast.h"
#include "text/jinja/jinja_callables.h"

namespace dsmoe::text::jinja {

enum class Flow { normal, break_, continue_ };

class Evaluator {
 public:
  Evaluator(const Template& source, Run& run);

  // At the top level, before execute().
  void define(const std::string& name, Value value);
  std::string execute();

 private:
  // A scope: what is set inside is forgotten at its end.
  class Frame {
   public:
    explicit Frame(Evaluator& owner) : owner_(owner), undo_(owner.undo_.size()) { ++owner_.frame_; }
    ~Frame() {
      for (; owner_.undo_.size() > undo_; owner_.undo_.pop_back()) {
        owner_.slots_[static_cast<std::size_t>(owner_.undo_.back())].pop_back();
      }
      --owner_.frame_;
    }
    Frame(const Frame&) = delete;
    Frame& operator=(const Frame&) = delete;

   private:
    Evaluator& owner_;
    std::size_t undo_;
  };

  // One level of the recursion, counted; leaves run_.at at the node.
  class Level {
   public:
    Level(Evaluator& owner, Position at) : owner_(owner) {
      owner_.run_.at = at;
      owner_.run_.step();
      if (++owner_.depth_ > owner_.run_.limits().max_depth) {
        owner_.run_.fail("evaluation nested deeper than {} levels", owner_.run_.limits().max_depth);
      }
    }
    ~Level() { --owner_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Evaluator& owner_;
  };

  struct Slot {
    int frame;
    Value value;
  };

  const Value* lookup(int name_id) const;
  void bind(int name_id, Value value);
  void assign(const Expr& target, Value value);
  Value storable(Value value);
  void write(std::string_view text);

  Flow run_body(const Body& body);
  Flow run_stmt(const Stmt& stmt);
  Flow run_if(const Stmt& stmt);
  Flow run_for(const Stmt& stmt);
  Flow run_with(const Stmt& stmt);
  ListPtr filtered(const Stmt& stmt, const ListPtr& items);
  std::string capture(const Body& body);
  void run_set_block(const Stmt& stmt);

  Value eval(const Expr& e);
  Value eval_name(const Expr& e);
  Value eval_sequence(const Expr& e, ListKind kind);
  Value eval_dict(const Expr& e);
  Value eval_item(const Expr& e);
  Value eval_attribute(const Expr& e);
  Value eval_slice(const Expr& e);
  Value eval_compare(const Expr& e);
  Value eval_concat(const Expr& e);
  Value eval_arithmetic(const Expr& e);
  Value eval_filter(const Expr& e);
  Value eval_test(const Expr& e);
  Value eval_method(const Expr& e);
  Value eval_cycle(const Expr& e);
  Value eval_function(const Expr& e);
  Value eval_macro(const Expr& e);
  Value make_range(const CallArgs& args);
  Value make_namespace(const CallArgs& args);
  Dict merged(std::string_view callee, const CallArgs& args);
  // Operands from `first` on, split into positional and keyword arguments.
  CallArgs arguments(const Expr& e, std::size_t first);

  const Template& source_;
  Run& run_;
  Heap heap_;
  std::vector<std::vector<Slot>> slots_;  // by name_id; the innermost binding last
  std::vector<int> undo_;                 // name_ids bound, in order
  int frame_ = 0;                         // 0: the top level of the template
  int macro_frame_ = 0;  // of the running macro: frames between it and 0 are invisible
  int depth_ = 0;
  int loop_id_ = -1;
  bool in_loop_filter_ = false;
  Value captured_;
  std::string* out_ = nullptr;
};

}  // namespace dsmoe::text::jinja

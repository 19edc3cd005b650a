// Statements: scopes, loops, output and its limits.
#include "text/jinja/jinja_eval.h"

#include <utility>

#include "base/json.h"
#include "text/jinja/jinja_evaluator.h"

namespace dsmoe::text::jinja {

Evaluator::Evaluator(const Template& source, Run& run)
    : source_(source), run_(run), slots_(source.name_ids.size()) {
  const auto loop = source.name_ids.find("loop");
  if (loop != source.name_ids.end()) loop_id_ = loop->second;
}

void Evaluator::define(const std::string& name, Value value) {
  const auto hit = source_.name_ids.find(name);
  if (hit != source_.name_ids.end()) bind(hit->second, std::move(value));
}

std::string Evaluator::execute() {
  std::string out;
  out_ = &out;
  run_body(source_.body);
  return out;
}

const Value* Evaluator::lookup(int name_id) const {
  const auto& slots = slots_[static_cast<std::size_t>(name_id)];
  for (auto slot = slots.rbegin(); slot != slots.rend(); ++slot) {
    if (slot->frame >= macro_frame_ || slot->frame == 0) return &slot->value;
  }
  return nullptr;
}

void Evaluator::bind(int name_id, Value value) {
  auto& slots = slots_[static_cast<std::size_t>(name_id)];
  if (!slots.empty() && slots.back().frame == frame_) {
    slots.back().value = std::move(value);
  } else {
    slots.push_back({.frame = frame_, .value = std::move(value)});
    undo_.push_back(name_id);
  }
}

// A generator can be walked once; a variable would be walked again.
Value Evaluator::storable(Value value) {
  if (as_list(value, ListKind::iterator) != nullptr) {
    run_.fail("an iterator cannot be stored: add | list");
  }
  return value;
}

void Evaluator::assign(const Expr& target, Value value) {
  if (target.kind == ExprKind::name) {
    bind(target.name_id, storable(std::move(value)));
    return;
  }
  if (target.kind == ExprKind::attribute) {
    const Value* object = lookup(target.operands[0]->name_id);
    run_.at = target.at;
    if (object == nullptr || !is<Namespace*>(*object)) {
      run_.fail("'{}' is not a namespace: its attributes cannot be set", target.operands[0]->text);
    }
    std::get<Namespace*>(*object)->attributes[target.text] = storable(std::move(value));
    return;
  }
  const ListPtr items = iterate(run_, value);
  run_.at = target.at;
  if (items->items.size() != target.operands.size()) {
    run_.fail("cannot unpack {} values into {} variables", items->items.size(),
              target.operands.size());
  }
  for (std::size_t i = 0; i < target.operands.size(); ++i) {
    assign(*target.operands[i], items->items[i]);
  }
}

void Evaluator::write(std::string_view text) {
  run_.bytes(text.size());
  const auto size = static_cast<std::int64_t>(out_->size() + text.size());
  if (size > run_.limits().max_output_bytes) {
    run_.fail("the output is longer than {} bytes", run_.limits().max_output_bytes);
  }
  *out_ += text;
}

Flow Evaluator::run_body(const Body& body) {
  for (const StmtPtr& stmt : body) {
    const Flow flow = run_stmt(*stmt);
    if (flow != Flow::normal) return flow;
  }
  return Flow::normal;
}

Flow Evaluator::run_stmt(const Stmt& stmt) {
  const Level level(*this, stmt.at);
  switch (stmt.kind) {
    case StmtKind::text:
      write(stmt.text);
      break;
    case StmtKind::output: {
      const Value value = eval(*stmt.exprs[0]);
      if (const auto* text = as_string(value))
        write(*text);
      else
        write(to_text(run_, value));
      break;
    }
    case StmtKind::if_:
      return run_if(stmt);
    case StmtKind::for_:
      return run_for(stmt);
    case StmtKind::with:
      return run_with(stmt);
    case StmtKind::set:
      assign(*stmt.targets[0], eval(*stmt.exprs[0]));
      break;
    case StmtKind::set_block:
      run_set_block(stmt);
      break;
    case StmtKind::filter_block:
      captured_ = make_string(capture(stmt.bodies[0]));
      write(to_text(run_, eval(*stmt.exprs[0])));
      break;
    case StmtKind::scope: {
      const Frame frame(*this);
      run_body(stmt.bodies[0]);
      break;
    }
    case StmtKind::macro:
      bind(stmt.name_id, Callable{.macro = &stmt});
      break;
    case StmtKind::break_:
      return Flow::break_;
    case StmtKind::continue_:
      return Flow::continue_;
  }
  return Flow::normal;
}

Flow Evaluator::run_if(const Stmt& stmt) {
  for (std::size_t i = 0; i < stmt.exprs.size(); ++i) {
    if (truthy(eval(*stmt.exprs[i]))) return run_body(stmt.bodies[i]);
  }
  return stmt.bodies.size() > stmt.exprs.size() ? run_body(stmt.bodies.back()) : Flow::normal;
}

// jinja2 asks the condition between the turns of the loop, this asks it before the first. Only a
// namespace, changed by the body, could tell the two apart, so reading one here is refused
// (eval_attribute).
ListPtr Evaluator::filtered(const Stmt& stmt, const ListPtr& items) {
  std::vector<Value> kept;
  const bool outer = std::exchange(in_loop_filter_, true);
  for (const Value& item : items->items) {
    const Frame frame(*this);
    assign(*stmt.targets[0], item);
    if (truthy(eval(*stmt.exprs[1]))) kept.push_back(item);
  }
  in_loop_filter_ = outer;
  return std::get<ListPtr>(make_list(run_, ListKind::list, std::move(kept)));
}

Flow Evaluator::run_for(const Stmt& stmt) {
  ListPtr items = iterate(run_, eval(*stmt.exprs[0]));
  if (stmt.exprs.size() > 1) items = filtered(stmt, items);
  Loop& loop = heap_.loops.emplace_back(Loop{.sequence = items, .index = 0});
  // jinja2 runs the else part unless some turn of the loop reached its end: a break or continue in
  // all of them counts as no turn at all.
  bool any_complete = false;
  for (std::size_t i = 0; i < items->items.size(); ++i) {
    run_.step();
    loop.index = i;
    const Frame frame(*this);
    assign(*stmt.targets[0], items->items[i]);
    if (loop_id_ >= 0) bind(loop_id_, &loop);
    const Flow flow = run_body(stmt.bodies[0]);
    if (flow == Flow::break_) break;
    any_complete = any_complete || flow == Flow::normal;
  }
  if (any_complete || stmt.bodies.size() < 2) return Flow::normal;
  const Frame frame(*this);
  return run_body(stmt.bodies[1]);
}

Flow Evaluator::run_with(const Stmt& stmt) {
  std::vector<Value> values;
  for (const ExprPtr& expr : stmt.exprs) values.push_back(eval(*expr));
  const Frame frame(*this);
  for (std::size_t i = 0; i < values.size(); ++i) assign(*stmt.targets[i], std::move(values[i]));
  return run_body(stmt.bodies[0]);
}

std::string Evaluator::capture(const Body& body) {
  const Frame frame(*this);
  std::string text;
  std::string* const outer = std::exchange(out_, &text);
  run_body(body);
  out_ = outer;
  return text;
}

void Evaluator::run_set_block(const Stmt& stmt) {
  Value value = make_string(capture(stmt.bodies[0]));
  if (!stmt.exprs.empty()) {
    captured_ = std::move(value);
    value = eval(*stmt.exprs[0]);
  }
  assign(*stmt.targets[0], std::move(value));
}

std::string render(const Template& source, const Variables& variables, const Limits& limits,
                   std::int64_t* steps_used) {
  Run run(source.what, limits);
  std::int64_t size = 0;
  std::int64_t granted = 0;
  const auto report = [&] {
    if (steps_used != nullptr) *steps_used = limits.max_steps + granted - run.steps_left();
  };
  try {
    Evaluator evaluator(source, run);
    for (const auto& [name, value] : variables.items()) {
      evaluator.define(name, from_json(run, value, size));
    }
    granted = size * limits.steps_per_input_unit;
    run.grant(granted);
    std::string out = evaluator.execute();
    report();
    return out;
  } catch (...) {
    report();
    throw;
  }
}

}  // namespace dsmoe::text::jinja

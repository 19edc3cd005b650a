// Expressions: names, lookups, operators, calls.
#include <algorithm>
#include <ctime>
#include <utility>

#include "text/jinja/jinja_arithmetic.h"
#include "text/jinja/jinja_evaluator.h"

namespace dsmoe::text::jinja {
namespace {

constexpr std::int64_t kMaxRange = 100'000;  // as jinja2's sandbox

bool is_function_name(std::string_view name) {
  return name == "range" || name == "namespace" || name == "dict" || name == "raise_exception";
}

// A day at midnight, in English, by the letters that have one meaning everywhere.
std::string format_day(Run& run, std::chrono::year_month_day day, const std::string& format) {
  constexpr std::string_view kLetters = "aAbBdejmuwyYHIMSpF%";
  for (std::size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') continue;
    i += format.substr(i + 1, 1) == "-" ? 2 : 1;  // without a leading zero
    if (i >= format.size() || kLetters.find(format[i]) == std::string_view::npos) {
      run.fail("strftime_now: '{}' is not supported", format.substr(0, i + 1));
    }
  }
  const std::chrono::sys_days days = day;
  const std::time_t seconds = std::chrono::system_clock::to_time_t(days);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  run.bytes(16 * format.size());
  std::string text(16 * format.size() + 1, '\0');
  text.resize(std::strftime(text.data(), text.size(), format.c_str(), &parts));
  return text;
}

}  // namespace

Value Evaluator::eval(const Expr& e) {
  const Level level(*this, e.at);
  switch (e.kind) {
    case ExprKind::constant:
      return e.value;
    case ExprKind::name:
      return eval_name(e);
    case ExprKind::tuple:
      return eval_sequence(e, ListKind::tuple);
    case ExprKind::list:
      return eval_sequence(e, ListKind::list);
    case ExprKind::dict:
      return eval_dict(e);
    case ExprKind::attribute:
      return eval_attribute(e);
    case ExprKind::item:
      return eval_item(e);
    case ExprKind::slice:
      return eval_slice(e);
    case ExprKind::function:
      return eval_function(e);
    case ExprKind::macro_call:
      return eval_macro(e);
    case ExprKind::method:
      return eval_method(e);
    case ExprKind::loop_cycle:
      return eval_cycle(e);
    case ExprKind::filter:
      return eval_filter(e);
    case ExprKind::test:
      return eval_test(e);
    case ExprKind::not_:
      return !truthy(eval(*e.operands[0]));
    case ExprKind::negate:
      return negate(run_, eval(*e.operands[0]));
    case ExprKind::plus:
      return plus(run_, eval(*e.operands[0]));
    case ExprKind::arithmetic:
      return eval_arithmetic(e);
    case ExprKind::concat:
      return eval_concat(e);
    case ExprKind::compare:
      return eval_compare(e);
    case ExprKind::and_: {
      Value left = eval(*e.operands[0]);
      return truthy(left) ? eval(*e.operands[1]) : left;
    }
    case ExprKind::or_: {
      Value left = eval(*e.operands[0]);
      return truthy(left) ? left : eval(*e.operands[1]);
    }
    case ExprKind::conditional:
      if (truthy(eval(*e.operands[1]))) return eval(*e.operands[0]);
      return e.operands[2] ? eval(*e.operands[2]) : Value{Undefined{}};
    case ExprKind::captured:
      return captured_;
  }
  DSMOE_CHECK(false, "expression kind {}", static_cast<int>(e.kind));
}

Value Evaluator::eval_name(const Expr& e) {
  if (const Value* value = lookup(e.name_id)) return *value;
  // Templates ask whether strftime_now is defined and carry on without it.
  const bool is_day = e.text == "strftime_now" && run_.limits().today.has_value();
  if (is_day || is_function_name(e.text)) return Callable{};
  return Undefined{.name = &e.text};
}

Value Evaluator::eval_sequence(const Expr& e, ListKind kind) {
  std::vector<Value> items;
  items.reserve(e.operands.size());
  for (const ExprPtr& operand : e.operands) items.push_back(storable(eval(*operand)));
  run_.at = e.at;
  return make_list(run_, kind, std::move(items));
}

Value Evaluator::eval_dict(const Expr& e) {
  Dict dict;
  for (std::size_t i = 0; i < e.operands.size(); i += 2) {
    const Value key = eval(*e.operands[i]);
    Value value = storable(eval(*e.operands[i + 1]));
    run_.at = e.operands[i]->at;
    const auto* text = std::get_if<StringPtr>(&key);
    if (text == nullptr) run_.fail("dict keys must be strings, not {}", type_name(key));
    run_.bytes((*text)->size());
    dict.set(*text, std::move(value));
  }
  run_.at = e.at;
  return make_dict(run_, std::move(dict));
}

Value Evaluator::eval_attribute(const Expr& e) {
  const Value object = eval(*e.operands[0]);
  run_.at = e.at;
  if (in_loop_filter_ && is<Namespace*>(object)) {
    run_.fail("a namespace in the condition of a for loop is not supported");
  }
  Value value = get_attribute(run_, object, e.text);
  if (auto* undefined = std::get_if<Undefined>(&value); undefined != nullptr && !undefined->name) {
    undefined->name = &e.text;
  }
  return value;
}

Value Evaluator::eval_item(const Expr& e) {
  const Value object = eval(*e.operands[0]);
  const Value key = eval(*e.operands[1]);
  run_.at = e.at;
  if (in_loop_filter_ && is<Namespace*>(object)) {
    run_.fail("a namespace in the condition of a for loop is not supported");
  }
  Value value = get_item(run_, object, key);
  auto* undefined = std::get_if<Undefined>(&value);
  if (undefined != nullptr && !undefined->name && e.operands[1]->kind == ExprKind::constant) {
    undefined->name = as_string(e.operands[1]->value);
  }
  return value;
}

Value Evaluator::eval_slice(const Expr& e) {
  const Value object = eval(*e.operands[0]);
  const auto bound = [&](std::size_t i) {
    return e.operands[i] ? eval(*e.operands[i]) : Value{None{}};
  };
  SliceBounds bounds;
  bounds.begin = bound(1);
  bounds.end = bound(2);
  bounds.step = bound(3);
  run_.at = e.at;
  return slice(run_, object, bounds);
}

Value Evaluator::eval_compare(const Expr& e) {
  Value left = eval(*e.operands[0]);
  for (std::size_t i = 0; i < e.operators.size(); ++i) {
    Value right = eval(*e.operands[i + 1]);
    run_.at = e.at;
    if (!compare_with(run_, e.operators[i], left, right)) return false;
    left = std::move(right);
  }
  return true;
}

Value Evaluator::eval_concat(const Expr& e) {
  std::string out;
  for (const ExprPtr& operand : e.operands) {
    const Value value = eval(*operand);
    append_text(run_, out, value);
  }
  return make_string(std::move(out));
}

Value Evaluator::eval_arithmetic(const Expr& e) {
  const Value left = eval(*e.operands[0]);
  const Value right = eval(*e.operands[1]);
  run_.at = e.at;
  return arithmetic(run_, e.operators[0], left, right);
}

CallArgs Evaluator::arguments(const Expr& e, std::size_t first) {
  CallArgs args;
  const std::size_t num_positional = e.operands.size() - e.keywords.size();
  for (std::size_t i = first; i < e.operands.size(); ++i) {
    Value value = eval(*e.operands[i]);
    if (i < num_positional)
      args.positional.push_back(std::move(value));
    else
      args.keyword.emplace_back(e.keywords[i - num_positional], std::move(value));
  }
  run_.at = e.at;
  return args;
}

Value Evaluator::eval_filter(const Expr& e) {
  const Value input = eval(*e.operands[0]);
  return e.filter->apply(run_, input, arguments(e, 1));
}

Value Evaluator::eval_test(const Expr& e) {
  const Value input = eval(*e.operands[0]);
  return e.test->holds(run_, input, arguments(e, 1));
}

Value Evaluator::eval_method(const Expr& e) {
  const Value self = eval(*e.operands[0]);
  run_.at = e.at;
  if (const auto* undefined = std::get_if<Undefined>(&self)) {
    run_.fail("'{}' is undefined: {}() cannot be called on it",
              undefined->name != nullptr ? *undefined->name : "this value", e.method->name);
  }
  const bool fits =
      e.method->receiver == Receiver::string ? as_string(self) != nullptr : is<DictPtr>(self);
  if (!fits) run_.fail("{} has no method '{}'", type_name(self), e.method->name);
  return e.method->call(run_, self, arguments(e, 1));
}

Value Evaluator::eval_cycle(const Expr& e) {
  const Value self = eval(*e.operands[0]);
  const CallArgs args = arguments(e, 1);
  if (!is<Loop*>(self)) run_.fail("'loop' is undefined outside of a for loop");
  if (args.positional.empty() || !args.keyword.empty()) run_.fail("'cycle' needs its values");
  return args.positional[std::get<Loop*>(self)->index % args.positional.size()];
}

Value Evaluator::eval_function(const Expr& e) {
  const CallArgs args = arguments(e, 0);
  if (lookup(e.name_id) != nullptr) run_.fail("'{}' names a variable here, not a function", e.text);
  switch (e.function) {
    case Function::range:
      return make_range(args);
    case Function::namespace_:
      return make_namespace(args);
    case Function::dict:
      return make_dict(run_, merged("dict", args));
    case Function::strftime_now: {
      if (!run_.limits().today) {
        run_.fail(
            "the function 'strftime_now' needs a day: a prompt must not depend on the day it is "
            "made; give one with --template-date");
      }
      const BoundArgs bound(run_, "strftime_now", args, {"format"}, 1);
      return make_string(format_day(run_, *run_.limits().today, bound.string(0)));
    }
    case Function::raise_exception: {
      const BoundArgs bound(run_, "raise_exception", args, {"message"}, 1);
      run_.fail("the template refuses this conversation: {}", to_text(run_, *bound[0]));
    }
  }
  DSMOE_CHECK(false, "function {}", e.text);
}

Value Evaluator::make_range(const CallArgs& args) {
  const BoundArgs bound(run_, "range", args, {"start", "stop", "step"}, 1);
  const bool one = bound[1] == nullptr;
  const std::int64_t begin = one ? 0 : bound.integer_or(0, 0);
  const std::int64_t end = bound.integer_or(one ? 0 : 1, 0);
  const std::int64_t step = bound.integer_or(2, 1);
  if (step == 0) run_.fail("the step of a range is zero");
  std::vector<Value> items;
  for (std::int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (static_cast<std::int64_t>(items.size()) == kMaxRange) {
      run_.fail("a range of more than {} elements", kMaxRange);
    }
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return make_list(run_, ListKind::range, std::move(items));
}

// dict(other, a=1) and namespace(other, a=1) take the same arguments.
Dict Evaluator::merged(std::string_view callee, const CallArgs& args) {
  Dict dict;
  if (args.positional.size() > 1) run_.fail("'{}' takes at most one dict", callee);
  if (!args.positional.empty()) {
    const auto* other = std::get_if<DictPtr>(&args.positional[0]);
    if (other == nullptr) {
      run_.fail("'{}' takes a dict, not {}", callee, type_name(args.positional[0]));
    }
    run_.step(2 * static_cast<std::int64_t>((*other)->entries.size()));
    for (const auto& [key, value] : (*other)->entries) dict.set(key, value);
  }
  for (const auto& [key, value] : args.keyword) {
    dict.set(std::make_shared<const std::string>(key), storable(value));
  }
  return dict;
}

Value Evaluator::make_namespace(const CallArgs& args) {
  const Dict attributes = merged("namespace", args);
  run_.step(8 * (1 + static_cast<std::int64_t>(attributes.entries.size())));  // lives to the end
  Namespace& space = heap_.namespaces.emplace_back();
  for (const auto& [key, value] : attributes.entries) space.attributes[*key] = value;
  return &space;
}

Value Evaluator::eval_macro(const Expr& e) {
  CallArgs args = arguments(e, 0);
  const Value* callee = lookup(e.name_id);
  const auto* callable = callee == nullptr ? nullptr : std::get_if<Callable>(callee);
  if (callable == nullptr || callable->macro == nullptr) {
    run_.fail("'{}' is not a macro at this point", e.text);
  }
  const Stmt& macro = *callable->macro;
  if (args.positional.size() > macro.parameters.size()) {
    run_.fail("the macro '{}' takes {} arguments, {} given", e.text, macro.parameters.size(),
              args.positional.size());
  }
  const Frame frame(*this);
  const int outer = std::exchange(macro_frame_, frame_);
  for (std::size_t i = 0; i < macro.parameters.size(); ++i) {
    const Parameter& parameter = macro.parameters[i];
    Value value = Undefined{.name = &parameter.name};
    const auto named =
        std::find_if(args.keyword.begin(), args.keyword.end(),
                     [&](const auto& keyword) { return keyword.first == parameter.name; });
    if (i < args.positional.size()) {
      value = std::move(args.positional[i]);
    } else if (named != args.keyword.end()) {
      value = std::move(named->second);
      args.keyword.erase(named);
    } else if (parameter.default_value) {
      value = eval(*parameter.default_value);
    }
    bind(parameter.name_id, storable(std::move(value)));
  }
  run_.at = e.at;
  if (!args.keyword.empty()) {
    run_.fail("the macro '{}' has no free parameter '{}'", e.text, args.keyword[0].first);
  }
  std::string text = capture(macro.bodies[0]);
  macro_frame_ = outer;
  return make_string(std::move(text));
}

}  // namespace dsmoe::text::jinja

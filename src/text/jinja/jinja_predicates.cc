// The tests after `is`.
#include <array>

#include "text/jinja/jinja_arithmetic.h"
#include "text/jinja/jinja_callables.h"

namespace dsmoe::text::jinja {
namespace {

using Check = bool (*)(const Value&);

// A test without arguments.
template <Check check>
bool simple(Run& run, const Value& value, const CallArgs& args) {
  const BoundArgs none(run, "is", args, {});
  return check(value);
}

// A test that is an operator: `x is eq(y)`.
template <Operator op>
bool with_operator(Run& run, const Value& value, const CallArgs& args) {
  const BoundArgs bound(run, "is", args, {"other"}, 1);
  return compare_with(run, op, value, *bound[0]);
}

bool defined(const Value& v) { return !is<Undefined>(v); }
bool undefined(const Value& v) { return is<Undefined>(v); }
bool none(const Value& v) { return is<None>(v); }
bool string(const Value& v) { return is<StringPtr>(v); }
bool mapping(const Value& v) { return is<DictPtr>(v); }
bool boolean(const Value& v) { return is<bool>(v); }
bool is_true(const Value& v) { return is<bool>(v) && std::get<bool>(v); }
bool is_false(const Value& v) { return is<bool>(v) && !std::get<bool>(v); }
bool integer(const Value& v) { return is<std::int64_t>(v); }
bool floating(const Value& v) { return is<double>(v); }
bool number(const Value& v) { return is<bool>(v) || integer(v) || floating(v); }
// Python's Undefined has __call__, __iter__, __len__ and __getitem__, so it passes the next three.
bool callable(const Value& v) { return is<Callable>(v) || is<Undefined>(v); }
bool iterable(const Value& v) {
  return is<StringPtr>(v) || is<ListPtr>(v) || is<DictPtr>(v) || is<Undefined>(v);
}
bool sequence(const Value& v) {
  const auto* list = std::get_if<ListPtr>(&v);
  return iterable(v) && (list == nullptr || (*list)->kind < ListKind::view);
}

bool divides(Run& run, const Value& value, const Value& divisor, std::int64_t remainder) {
  return equal(run, arithmetic(run, Operator::modulo, value, divisor), remainder);
}
bool odd(Run& run, const Value& value, const CallArgs& args) {
  const BoundArgs bound(run, "odd", args, {});
  return divides(run, value, std::int64_t{2}, 1);
}
bool even(Run& run, const Value& value, const CallArgs& args) {
  const BoundArgs bound(run, "even", args, {});
  return divides(run, value, std::int64_t{2}, 0);
}
bool divisible_by(Run& run, const Value& value, const CallArgs& args) {
  const BoundArgs bound(run, "divisibleby", args, {"num"}, 1);
  return divides(run, value, *bound[0], 0);
}

// str.islower / str.isupper: at least one letter, none of the other case.
bool all_letters(Run& run, const Value& value, const CallArgs& args, char first, char other) {
  const BoundArgs bound(run, "is", args, {});
  const std::string text = to_text(run, value);
  if (!is_ascii(text)) run.fail("the letter case of text beyond ASCII is not supported");
  bool found = false;
  for (const char c : text) {
    if (c >= other && c < other + 26) return false;
    found = found || (c >= first && c < first + 26);
  }
  return found;
}
bool lower(Run& run, const Value& value, const CallArgs& args) {
  return all_letters(run, value, args, 'a', 'A');
}
bool upper(Run& run, const Value& value, const CallArgs& args) {
  return all_letters(run, value, args, 'A', 'a');
}

constexpr std::array kTests = {
    Test{"defined", simple<defined>},
    Test{"undefined", simple<undefined>},
    Test{"none", simple<none>},
    Test{"string", simple<string>},
    Test{"mapping", simple<mapping>},
    Test{"iterable", simple<iterable>},
    Test{"sequence", simple<sequence>},
    Test{"number", simple<number>},
    Test{"integer", simple<integer>},
    Test{"float", simple<floating>},
    Test{"boolean", simple<boolean>},
    Test{"true", simple<is_true>},
    Test{"false", simple<is_false>},
    Test{"callable", simple<callable>},
    Test{"odd", odd},
    Test{"even", even},
    Test{"divisibleby", divisible_by},
    Test{"lower", lower},
    Test{"upper", upper},
    Test{"in", with_operator<Operator::in>},
    Test{"eq", with_operator<Operator::equal>},
    Test{"equalto", with_operator<Operator::equal>},
    Test{"==", with_operator<Operator::equal>},
    Test{"ne", with_operator<Operator::not_equal>},
    Test{"!=", with_operator<Operator::not_equal>},
    Test{"lt", with_operator<Operator::less>},
    Test{"lessthan", with_operator<Operator::less>},
    Test{"<", with_operator<Operator::less>},
    Test{"le", with_operator<Operator::less_equal>},
    Test{"<=", with_operator<Operator::less_equal>},
    Test{"gt", with_operator<Operator::greater>},
    Test{"greaterthan", with_operator<Operator::greater>},
    Test{">", with_operator<Operator::greater>},
    Test{"ge", with_operator<Operator::greater_equal>},
    Test{">=", with_operator<Operator::greater_equal>},
};

}  // namespace

const Test* find_test(std::string_view name) {
  for (const Test& test : kTests) {
    if (test.name == name) return &test;
  }
  return nullptr;
}

}  // namespace dsmoe::text::jinja

// Numbers follow Python's rules (floor division, sign of %, true division), sequences can be added
// and repeated.
#include "text/jinja/jinja_arithmetic.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/utf8.h"

namespace dsmoe::text::jinja {
namespace {

std::string_view symbol(Operator op) {
  static constexpr std::string_view kSymbols[] = {"+", "-", "*", "/", "//", "%", "**"};
  return kSymbols[static_cast<std::size_t>(op)];
}

std::string describe(const Value& value) {
  const auto* undefined = std::get_if<Undefined>(&value);
  if (undefined != nullptr && undefined->name != nullptr) {
    return fmt::format("undefined '{}'", *undefined->name);
  }
  return std::string(type_name(value));
}

[[noreturn]] void refuse(Run& run, Operator op, const Value& a, const Value& b) {
  run.fail("cannot compute {} {} {}", describe(a), symbol(op), describe(b));
}

std::optional<std::int64_t> as_integer(const Value& value) {
  if (const auto* i = std::get_if<std::int64_t>(&value)) return *i;
  if (const auto* b = std::get_if<bool>(&value)) return *b ? 1 : 0;
  return std::nullopt;
}

std::optional<double> as_double(const Value& value) {
  if (const auto* d = std::get_if<double>(&value)) return *d;
  if (const auto i = as_integer(value)) return static_cast<double>(*i);
  return std::nullopt;
}

[[noreturn]] void overflow(Run& run) { run.fail("an integer result needs more than 64 bits"); }

Value integer_power(Run& run, std::int64_t base, std::int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) run.fail("division by zero");
    return std::pow(static_cast<double>(base), static_cast<double>(exponent));
  }
  std::int64_t result = 1;
  while (true) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) overflow(run);
    exponent >>= 1;
    if (exponent == 0) return result;
    if (__builtin_mul_overflow(base, base, &base)) overflow(run);
  }
}

Value true_quotient(Run& run, std::int64_t a, std::int64_t b) {
  // Beyond 2^53 the conversion to double rounds before the division does.
  constexpr std::int64_t kExact = std::int64_t{1} << 53;
  if (a > kExact || a < -kExact || b > kExact || b < -kExact) overflow(run);
  return static_cast<double>(a) / static_cast<double>(b);
}

Value integer_arithmetic(Run& run, Operator op, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  const bool divides =
      op == Operator::divide || op == Operator::floor_divide || op == Operator::modulo;
  if (divides && b == 0) run.fail("division by zero");
  switch (op) {
    case Operator::add:
      if (__builtin_add_overflow(a, b, &result)) overflow(run);
      return result;
    case Operator::subtract:
      if (__builtin_sub_overflow(a, b, &result)) overflow(run);
      return result;
    case Operator::multiply:
      if (__builtin_mul_overflow(a, b, &result)) overflow(run);
      return result;
    case Operator::divide:
      return true_quotient(run, a, b);
    case Operator::power:
      return integer_power(run, a, b);
    default:
      break;
  }
  if (b == -1) {  // INT64_MIN / -1 does not fit
    if (op == Operator::modulo) return std::int64_t{0};
    return negate(run, a);
  }
  const std::int64_t remainder = a % b;
  const bool adjust = remainder != 0 && (remainder < 0) != (b < 0);
  if (op == Operator::modulo) return adjust ? remainder + b : remainder;
  return a / b - (adjust ? 1 : 0);
}

Value float_floor(Operator op, double a, double b) {
  double mod = std::fmod(a, b);
  double quotient = (a - mod) / b;
  if (mod != 0) {
    if ((b < 0) != (mod < 0)) {
      mod += b;
      quotient -= 1;
    }
  } else {
    mod = std::copysign(0.0, b);
  }
  if (op == Operator::modulo) return mod;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floor = std::floor(quotient);
  return quotient - floor > 0.5 ? floor + 1 : floor;
}

Value float_arithmetic(Run& run, Operator op, double a, double b) {
  switch (op) {
    case Operator::add:
      return a + b;
    case Operator::subtract:
      return a - b;
    case Operator::multiply:
      return a * b;
    case Operator::power: {
      const double result = std::pow(a, b);
      if (!std::isfinite(result)) run.fail("the result of ** is not a finite number");
      return result;
    }
    default:
      break;
  }
  if (b == 0) run.fail("division by zero");
  if (op == Operator::divide) return a / b;
  return float_floor(op, a, b);
}

Value repeat(Run& run, const Value& sequence, std::int64_t times) {
  times = std::max<std::int64_t>(times, 0);
  if (const auto* text = as_string(sequence)) {
    std::int64_t size = 0;
    if (__builtin_mul_overflow(static_cast<std::int64_t>(text->size()), times, &size))
      overflow(run);
    run.bytes(static_cast<std::size_t>(size));
    std::string out;
    out.reserve(static_cast<std::size_t>(size));
    if (size > 0) {
      for (std::int64_t i = 0; i < times; ++i) out += *text;
    }
    return make_string(std::move(out));
  }
  const List& list = *std::get<ListPtr>(sequence);
  std::int64_t size = 0;
  if (__builtin_mul_overflow(static_cast<std::int64_t>(list.items.size()), times, &size))
    overflow(run);
  run.step(size);
  std::vector<Value> items;
  items.reserve(static_cast<std::size_t>(size));
  for (std::int64_t i = 0; size > 0 && i < times; ++i) {
    items.insert(items.end(), list.items.begin(), list.items.end());
  }
  return make_list(run, list.kind, std::move(items));
}

bool repeatable(const Value& value) {
  if (as_string(value) != nullptr) return true;
  const auto* list = std::get_if<ListPtr>(&value);
  return list != nullptr && (*list)->kind <= ListKind::tuple;
}

Value join_sequences(Run& run, const Value& a, const Value& b) {
  const std::string* s = as_string(a);
  const std::string* t = as_string(b);
  if (s != nullptr && t != nullptr) {
    run.bytes(s->size() + t->size());
    return make_string(*s + *t);
  }
  if (s != nullptr || t != nullptr || !repeatable(a) || !repeatable(b))
    refuse(run, Operator::add, a, b);
  const List& x = *std::get<ListPtr>(a);
  const List& y = *std::get<ListPtr>(b);
  if (x.kind != y.kind) refuse(run, Operator::add, a, b);
  run.step(static_cast<std::int64_t>(x.items.size() + y.items.size()));
  std::vector<Value> items = x.items;
  items.insert(items.end(), y.items.begin(), y.items.end());
  return make_list(run, x.kind, std::move(items));
}

// The indices a Python slice of a sequence of `size` visits.
struct SliceRange {
  std::int64_t begin, step, count;
};

SliceRange resolve(Run& run, const SliceBounds& bounds, std::int64_t size) {
  const auto integer = [&](const Value& value) -> std::optional<std::int64_t> {
    if (is<None>(value)) return std::nullopt;
    const auto i = as_integer(value);
    if (!i) run.fail("a slice needs integers, not {}", describe(value));
    return i;
  };
  const std::int64_t step = integer(bounds.step).value_or(1);
  if (step == 0) run.fail("the step of a slice is zero");
  const bool forward = step > 0;
  const auto clamp = [&](std::optional<std::int64_t> bound, std::int64_t absent) {
    if (!bound) return absent;
    const std::int64_t index = *bound < 0 ? *bound + size : *bound;
    return std::clamp(index, forward ? std::int64_t{0} : std::int64_t{-1},
                      forward ? size : size - 1);
  };
  const std::int64_t begin = clamp(integer(bounds.begin), forward ? 0 : size - 1);
  const std::int64_t end = clamp(integer(bounds.end), forward ? size : -1);
  const std::int64_t span = forward ? end - begin : begin - end;
  if (span <= 0) return {.begin = begin, .step = step, .count = 0};
  const std::int64_t stride = step == INT64_MIN ? INT64_MAX : std::abs(step);
  return {.begin = begin, .step = step, .count = (span - 1) / stride + 1};
}

Value slice_string(Run& run, const std::string& text, const SliceBounds& bounds) {
  run.bytes(2 * text.size());
  const SliceRange range = resolve(run, bounds, static_cast<std::int64_t>(count_code_points(text)));
  if (range.count == 0) return make_string("");
  if (range.step == 1) {  // the usual case needs no table of offsets
    std::size_t pos = 0;
    for (std::int64_t i = 0; i < range.begin; ++i) next_code_point(text, pos);
    const std::size_t begin = pos;
    for (std::int64_t i = 0; i < range.count; ++i) next_code_point(text, pos);
    return make_string(text.substr(begin, pos - begin));
  }
  run.step(static_cast<std::int64_t>(text.size() / 8));
  std::u32string points;
  for (std::size_t pos = 0; pos < text.size();) points += next_code_point(text, pos);
  std::string out;
  for (std::int64_t i = 0; i < range.count; ++i) {
    append_utf8(out, points[static_cast<std::size_t>(range.begin + i * range.step)]);
  }
  return make_string(std::move(out));
}

}  // namespace

Value arithmetic(Run& run, Operator op, const Value& a, const Value& b) {
  const auto i = as_integer(a);
  const auto j = as_integer(b);
  if (i && j) return integer_arithmetic(run, op, *i, *j);
  const auto x = as_double(a);
  const auto y = as_double(b);
  if (x && y) return float_arithmetic(run, op, *x, *y);
  if (op == Operator::add) return join_sequences(run, a, b);
  if (op == Operator::multiply && repeatable(a) && j) return repeat(run, a, *j);
  if (op == Operator::multiply && i && repeatable(b)) return repeat(run, b, *i);
  if (op == Operator::modulo && as_string(a) != nullptr) {
    run.fail("'%' formatting of strings is not supported: join the parts with ~");
  }
  refuse(run, op, a, b);
}

Value negate(Run& run, const Value& value) {
  if (const auto* d = std::get_if<double>(&value)) return -*d;
  const auto i = as_integer(value);
  if (!i) run.fail("cannot negate {}", describe(value));
  if (*i == INT64_MIN) overflow(run);
  return -*i;
}

Value plus(Run& run, const Value& value) {
  if (is<double>(value)) return value;
  const auto i = as_integer(value);
  if (!i) run.fail("cannot put + before {}", describe(value));
  return *i;
}

bool compare_with(Run& run, Operator op, const Value& a, const Value& b) {
  switch (op) {
    case Operator::equal:
      return equal(run, a, b);
    case Operator::not_equal:
      return !equal(run, a, b);
    case Operator::less:
      return compare(run, a, b) < 0;
    case Operator::less_equal:
      return compare(run, a, b) <= 0;
    case Operator::greater:
      return compare(run, a, b) > 0;
    case Operator::greater_equal:
      return compare(run, a, b) >= 0;
    case Operator::in:
      return contains(run, b, a);
    default:
      return !contains(run, b, a);
  }
}

Value slice(Run& run, const Value& object, const SliceBounds& bounds) {
  if (const auto* text = as_string(object)) return slice_string(run, *text, bounds);
  const auto* list = std::get_if<ListPtr>(&object);
  if (list == nullptr || (*list)->kind >= ListKind::view) {
    run.fail("cannot take a slice of {}", describe(object));
  }
  const SliceRange range = resolve(run, bounds, static_cast<std::int64_t>((*list)->items.size()));
  std::vector<Value> items;
  items.reserve(static_cast<std::size_t>(range.count));
  for (std::int64_t i = 0; i < range.count; ++i) {
    items.push_back((*list)->items[static_cast<std::size_t>(range.begin + i * range.step)]);
  }
  return make_list(run, (*list)->kind, std::move(items));
}

}  // namespace dsmoe::text::jinja

// Python's operators on template values, in 64-bit integers: what would need more is refused.
#pragma once

#include "text/jinja/jinja_ast.h"

namespace dsmoe::text::jinja {

Value arithmetic(Run& run, Operator op, const Value& a, const Value& b);
Value negate(Run& run, const Value& value);
Value plus(Run& run, const Value& value);
bool compare_with(Run& run, Operator op, const Value& a, const Value& b);

// object[begin:end:step]; none and absent are the same.
struct SliceBounds {
  Value begin = None{};
  Value end = None{};
  Value step = None{};
};
Value slice(Run& run, const Value& object, const SliceBounds& bounds);

}  // namespace dsmoe::text::jinja

// The keywords that bound a number.
#pragma once

#include "constrain/number_range.h"
#include "constrain/schema_parts.h"

namespace dsmoe::constrain {

inline constexpr int kFractionDigits = 6;  // of numbers with bounds
inline const Names kNumberWords{"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
                                "multipleOf"};

// Throws Error(input) about bounds that cannot be held.
NumberBounds number_bounds_of(const At& at, bool is_integer);

}  // namespace dsmoe::constrain

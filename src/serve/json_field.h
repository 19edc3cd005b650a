// Typed, range-checked fields of a request's JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/json.h"

namespace dsmoe::serve {

// Absent and null fields give nothing; a wrong type or a value out of range is ApiError(400).
const Json* find_field(const Json& object, const char* name);

bool bool_field(const Json& object, const char* name);  // false when absent
std::optional<std::string> string_field(const Json& object, const char* name,
                                        std::size_t max_bytes);

struct IntegerRange {
  int64_t low = 0, high = 0;
};
std::optional<int64_t> integer_field(const Json& object, const char* name, IntegerRange range);

struct NumberRange {
  double low = 0, high = 0;
};
std::optional<double> number_field(const Json& object, const char* name, NumberRange range);

int64_t as_integer(const Json& value, const std::string& name, IntegerRange range);

// With all that are in it.
std::size_t num_values(const OrderedJson& value);

// "a string", "a number": what came, for messages.
const char* kind_of(const Json& value);

}  // namespace dsmoe::serve

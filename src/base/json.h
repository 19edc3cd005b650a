// JSON from strangers: parsed strictly (no duplicate keys, valid UTF-8, bounded depth), read field
// by field.
#pragma once

#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace dsmoe {

using Json = nlohmann::json;

struct JsonLimits {
  int max_depth = 64;
  // All together, whatever is in what; a value takes 16 bytes or more, a key some 100.
  std::size_t max_values = std::numeric_limits<std::size_t>::max();
  std::size_t max_keys = std::numeric_limits<std::size_t>::max();
};

// Parses exactly one JSON value. Throws Error(input) whose text starts with `what` (a file name,
// "request body") on a syntax error, invalid UTF-8, a NUL byte, a duplicate key in one object, or
// more than the limits allow.
Json parse_json(std::string_view text, std::string_view what, const JsonLimits& limits = {});

}  // namespace dsmoe

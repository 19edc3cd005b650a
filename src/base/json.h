// JSON from strangers: parsed strictly (no duplicate keys, valid UTF-8, bounded depth), read field
// by field.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace dsmoe {

using Json = nlohmann::json;

// Parses exactly one JSON value. Throws Error(input) whose text starts with `what` (a file name,
// "request body") on a syntax error, invalid UTF-8, a duplicate key in one object, or nesting
// deeper than `max_depth`.
Json parse_json(std::string_view text, std::string_view what, int max_depth = 64);

}  // namespace dsmoe

// JSON from strangers: parsed strictly (no duplicate keys, valid UTF-8, bounded depth), read field
// by field.
#pragma once

#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

namespace dsmoe {

using Json = nlohmann::json;
// Keeps the order of keys. Looking a key up takes as long as the object has members.
using OrderedJson = nlohmann::ordered_json;

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

// The same, with the keys of every object in the order in which they were written.
OrderedJson parse_ordered_json(std::string_view text, std::string_view what,
                               const JsonLimits& limits = {});

// Empties it from the inside out. The library's own destructor moves the values of a list or object
// into a new list first; where there is no memory for that, the program ends.
void take_apart(Json& json) noexcept;
void take_apart(OrderedJson& json) noexcept;

// A large value of either kind that ends without memory.
template <class AnyJson>
class JsonOwner {
 public:
  explicit JsonOwner(AnyJson json) : json_(std::move(json)) {}
  ~JsonOwner() { take_apart(json_); }
  JsonOwner(const JsonOwner&) = delete;
  JsonOwner& operator=(const JsonOwner&) = delete;

  AnyJson& operator*() { return json_; }
  AnyJson take() { return std::move(json_); }

 private:
  AnyJson json_;
};

}  // namespace dsmoe

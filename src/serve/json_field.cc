// One message shape for every wrong field: its name, what was expected, what came.
#include "serve/json_field.h"

#include <cmath>

#include "serve/api_error.h"

namespace dsmoe::serve {

const Json* find_field(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

const char* kind_of(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::boolean:
      return "a boolean";
    case Json::value_t::number_float:
      return "a number with a fraction or beyond 64 bits";
    default:
      return "an integer";
  }
}

std::size_t num_values(const OrderedJson& value) {
  std::size_t count = 1;
  if (value.is_structured()) {
    for (const OrderedJson& each : value) count += num_values(each);
  }
  return count;
}

bool bool_field(const Json& object, const char* name) {
  const Json* value = find_field(object, name);
  if (value == nullptr) return false;
  if (!value->is_boolean())
    refuse(name, "{}: expected true or false, got {}", name, kind_of(*value));
  return value->get<bool>();
}

std::optional<std::string> string_field(const Json& object, const char* name,
                                        std::size_t max_bytes) {
  const Json* value = find_field(object, name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) refuse(name, "{}: expected a string, got {}", name, kind_of(*value));
  const auto& text = value->get_ref<const std::string&>();
  if (text.size() > max_bytes) {
    refuse(name, "{}: {} bytes, at most {} are possible", name, text.size(), max_bytes);
  }
  return text;
}

int64_t as_integer(const Json& value, const std::string& name, IntegerRange range) {
  const bool too_large =
      value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(range.high);
  if (!value.is_number_integer()) {
    refuse(name, "{}: expected an integer, got {}", name, kind_of(value));
  }
  if (too_large || value.get<int64_t>() < range.low || value.get<int64_t>() > range.high) {
    refuse(name, "{}: expected {} to {}, got {}", name, range.low, range.high, value.dump());
  }
  return value.get<int64_t>();
}

std::optional<int64_t> integer_field(const Json& object, const char* name, IntegerRange range) {
  const Json* value = find_field(object, name);
  if (value == nullptr) return std::nullopt;
  return as_integer(*value, name, range);
}

std::optional<double> number_field(const Json& object, const char* name, NumberRange range) {
  const Json* value = find_field(object, name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) refuse(name, "{}: expected a number, got {}", name, kind_of(*value));
  const auto number = value->get<double>();
  if (!(number >= range.low && number <= range.high)) {
    refuse(name, "{}: expected {} to {}, got {}", name, range.low, range.high, value->dump());
  }
  return number;
}

}  // namespace dsmoe::serve

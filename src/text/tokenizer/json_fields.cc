// Typed access with messages that say what was expected and what came.
#include "text/tokenizer/json_fields.h"

#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"
#include "text/tokenizer/tokenizer_parts.h"

namespace dsmoe::text {
namespace {

constexpr std::size_t kMaxShown = 80;

// Long and odd values are cut, at a character.
std::string shown(const Json& json) {
  std::string text = json.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  if (text.size() > kMaxShown) text = text.substr(0, kMaxShown) + "...";
  return text;
}

}  // namespace

JsonFields::JsonFields(const Json& json, std::string path) : json_(json), path_(std::move(path)) {
  if (!json.is_object()) {
    fail(ErrorKind::input, "{}: expected a JSON object, got {}", path_, shown(json));
  }
}

std::string JsonFields::path_of(std::string_view key) const {
  return fmt::format("{}.{}", path_, key);
}

void JsonFields::allow_only(std::initializer_list<std::string_view> keys) const {
  for (const auto& [key, value] : json_.items()) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      fail(ErrorKind::input, "{}: the field {} is not supported", path_, in_quotes(key));
    }
  }
}

const Json* JsonFields::find(std::string_view key) const {
  const auto found = json_.find(std::string(key));
  return found == json_.end() || found->is_null() ? nullptr : &*found;
}

const Json& JsonFields::require(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) fail(ErrorKind::input, "{}: the field \"{}\" is missing", path_, key);
  return *value;
}

void JsonFields::refuse(std::string_view key, std::string_view expected) const {
  fail(ErrorKind::input, "{}: expected {}, got {}", path_of(key), expected, shown(require(key)));
}

std::string JsonFields::string(std::string_view key) const {
  const Json& value = require(key);
  if (!value.is_string()) refuse(key, "a string");
  return value.get<std::string>();
}

bool JsonFields::boolean(std::string_view key, std::optional<bool> fallback) const {
  const Json* value = find(key);
  if (value == nullptr && fallback) return *fallback;
  if (!require(key).is_boolean()) refuse(key, "true or false");
  return require(key).get<bool>();
}

std::size_t JsonFields::count(std::string_view key) const {
  const Json& value = require(key);
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > 1000)
    refuse(key, "a number from 0 to 1000");
  return value.get<std::size_t>();
}

std::int32_t JsonFields::id(std::string_view key) const {
  return token_id_from(require(key), path_of(key));
}

std::string JsonFields::character(std::string_view key) const {
  std::string value = string(key);
  if (value.empty() || utf8_length(static_cast<unsigned char>(value[0])) != value.size()) {
    refuse(key, "exactly one character");
  }
  return value;
}

void JsonFields::for_each(std::string_view key,
                          FunctionRef<void(const Json&, const std::string& path)> visit) const {
  const Json& list = require(key);
  if (!list.is_array()) refuse(key, "a list");
  std::size_t index = 0;
  for (const Json& item : list) visit(item, fmt::format("{}[{}]", path_of(key), index++));
}

bool is_token_id(const Json& json) {
  return json.is_number_unsigned() && json.get<std::uint64_t>() <= kMaxTokenId;
}

void refuse_token_id(const Json& json, const std::string& path) {
  fail(ErrorKind::input, "{}: expected a token id from 0 to {}, got {}", path, kMaxTokenId,
       shown(json));
}

std::int32_t token_id_from(const Json& json, const std::string& path) {
  if (!is_token_id(json)) refuse_token_id(json, path);
  return json.get<std::int32_t>();
}

}  // namespace dsmoe::text

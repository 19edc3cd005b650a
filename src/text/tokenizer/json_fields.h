// One JSON object of a tokenizer.json, read field by field; every complaint carries the path to the
// field.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "base/function_ref.h"
#include "base/json.h"

namespace dsmoe::text {

class JsonFields {
 public:
  // `path` is the file name and the way into it: "tokenizer.json: pre_tokenizer".
  JsonFields(const Json& json, std::string path);

  const std::string& path() const { return path_; }
  std::string path_of(std::string_view key) const;

  // Unknown keys may change the meaning, so they are refused.
  void allow_only(std::initializer_list<std::string_view> keys) const;

  // Null and absent are the same.
  const Json* find(std::string_view key) const;
  const Json& require(std::string_view key) const;

  std::string string(std::string_view key) const;
  bool boolean(std::string_view key, std::optional<bool> fallback = std::nullopt) const;
  std::size_t count(std::string_view key) const;
  std::int32_t id(std::string_view key) const;
  // Exactly one character.
  std::string character(std::string_view key) const;
  void for_each(std::string_view key,
                FunctionRef<void(const Json&, const std::string& path)> visit) const;

  [[noreturn]] void refuse(std::string_view key, std::string_view expected) const;

 private:
  const Json& json_;
  std::string path_;
};

// Token ids are 0..kMaxTokenId.
bool is_token_id(const Json& json);
[[noreturn]] void refuse_token_id(const Json& json, const std::string& path);
std::int32_t token_id_from(const Json& json, const std::string& path);

}  // namespace dsmoe::text

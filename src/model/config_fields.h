// Fields of a configuration as JSON: the names of its choices, and a reader that takes fields one
// by one.
#pragma once

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "model/config.h"

namespace dsmoe::model {

using tensor::DType;
using tensor::WeightCoding;

template <class Enum>
struct Named {
  std::string_view name;
  Enum value;
};

inline constexpr std::array<Named<ScoringFunc>, 2> kScoringFuncs = {
    {{"softmax", ScoringFunc::softmax}, {"sigmoid", ScoringFunc::sigmoid}}};
inline constexpr std::array<Named<TopkMethod>, 3> kTopkMethods = {
    {{"greedy", TopkMethod::greedy},
     {"group_limited_greedy", TopkMethod::group_limited_greedy},
     {"noaux_tc", TopkMethod::noaux_tc}}};
inline constexpr std::array<Named<RopeKind>, 4> kRopeKinds = {{{"default", RopeKind::plain},
                                                               {"linear", RopeKind::linear},
                                                               {"dynamic", RopeKind::dynamic},
                                                               {"yarn", RopeKind::yarn}}};
inline constexpr std::array<Named<WeightCoding>, 2> kCodings = {
    {{"int8", WeightCoding::int8}, {"int4", WeightCoding::int4}}};
inline constexpr std::array<Named<DType>, 3> kDTypes = {
    {{"float32", DType::F32}, {"bfloat16", DType::BF16}, {"float16", DType::F16}}};

template <class Table, class Enum>
std::string_view lookup_name(const Table& table, Enum value) {
  for (const auto& entry : table) {
    if (entry.value == value) return entry.name;
  }
  return "?";
}

template <class Table>
std::string list_names(const Table& table) {
  std::string text;
  for (const auto& entry : table)
    text += fmt::format("{}\"{}\"", text.empty() ? "" : ", ", entry.name);
  return text;
}

// A value for a message: its JSON, cut.
inline std::string shown(const Json& value) {
  constexpr std::size_t kMaxBytes = 60;
  std::string text = value.dump(-1, ' ', true);
  if (text.size() > kMaxBytes) text = text.substr(0, kMaxBytes) + "...";
  return text;
}

// Takes fields out of a JSON object one by one; what stays behind is unknown.
class FieldReader {
 public:
  FieldReader(Json object, std::string_view what, std::string prefix = "")
      : object_(std::move(object)), what_(what), prefix_(std::move(prefix)) {}

  [[noreturn]] void refuse(std::string_view key, std::string_view expected,
                           std::string_view found) const {
    fail(ErrorKind::input, "{}: {}{} must be {}, found {}", what_, prefix_, spelled(key), expected,
         found);
  }

  // The file's word for a key, where it is another.
  std::string_view spelled(std::string_view key) const {
    const auto found = spellings_.find(key);
    return found == spellings_.end() ? key : std::string_view(found->second);
  }

  bool has(const std::string& key) const { return object_.contains(key); }
  void set(std::string_view key, Json value) { object_[std::string(key)] = std::move(value); }

  // Takes the file's word for a key; two words must agree.
  void rename(const Spelling& spelling) {
    const auto theirs = object_.find(std::string(spelling.theirs));
    if (theirs == object_.end()) return;
    Json value = std::move(*theirs);
    object_.erase(theirs);
    const auto ours = object_.find(std::string(spelling.ours));
    if (ours != object_.end() && *ours != value) {
      fail(ErrorKind::input, "{}: {} and {} disagree; keep one of them", what_, spelling.theirs,
           spelled(spelling.ours));
    }
    set(spelling.ours, std::move(value));
    spellings_[std::string(spelling.ours)] = spelling.theirs;
  }

  // The value, taken out; absent and null are the same.
  std::optional<Json> take(const std::string& key) {
    const auto found = object_.find(key);
    if (found == object_.end()) return std::nullopt;
    Json value = std::move(*found);
    object_.erase(found);
    if (value.is_null()) return std::nullopt;
    return value;
  }

  std::optional<int64_t> integer(const std::string& key) {
    const std::optional<Json> value = take(key);
    if (!value) return std::nullopt;
    return as_integer(key, *value);
  }

  int64_t required_integer(const std::string& key) {
    const std::optional<int64_t> value = integer(key);
    if (!value)
      fail(ErrorKind::input, "{}: {}{} is missing; it must be an integer", what_, prefix_,
           spelled(key));
    return *value;
  }

  int64_t as_integer(const std::string& key, const Json& value) const {
    const bool fits =
        value.is_number_integer() &&
        (!value.is_number_unsigned() ||
         value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
    if (!fits) refuse(key, "an integer", shown(value));
    return value.get<int64_t>();
  }

  std::optional<double> number(const std::string& key) {
    const std::optional<Json> value = take(key);
    if (!value) return std::nullopt;
    if (!value->is_number()) refuse(key, "a number", shown(*value));
    return value->get<double>();
  }

  std::optional<bool> boolean(const std::string& key) {
    const std::optional<Json> value = take(key);
    if (!value) return std::nullopt;
    if (!value->is_boolean()) refuse(key, "true or false", shown(*value));
    return value->get<bool>();
  }

  std::optional<std::string> text(const std::string& key) {
    const std::optional<Json> value = take(key);
    if (!value) return std::nullopt;
    if (!value->is_string()) refuse(key, "a string", shown(*value));
    return value->get<std::string>();
  }

  template <class Table>
  auto choice(const std::string& key, const Table& table)
      -> std::optional<decltype(table[0].value)> {
    const std::optional<std::string> value = text(key);
    if (!value) return std::nullopt;
    for (const auto& entry : table) {
      if (entry.name == *value) return entry.value;
    }
    refuse(key, "one of " + list_names(table), shown(*value));
  }

  std::optional<Json> object(const std::string& key) {
    std::optional<Json> value = take(key);
    if (value && !value->is_object()) refuse(key, "an object", shown(*value));
    return value;
  }

  // Two spellings of one field: either may be given, both only if they agree.
  template <class T>
  std::optional<T> one_of(const std::string& key_a, std::optional<T> a, const std::string& key_b,
                          std::optional<T> b) const {
    if (a && b && *a != *b) {
      fail(ErrorKind::input, "{}: {}{} and {}{} disagree; keep one of them", what_, prefix_, key_a,
           prefix_, key_b);
    }
    return a ? a : b;
  }

  const Json& rest() const { return object_; }
  Json take_rest() { return std::move(object_); }
  std::string_view what() const { return what_; }

 private:
  Json object_;
  std::string_view what_;
  std::string prefix_;
  std::map<std::string, std::string, std::less<>> spellings_;  // ours: theirs
};

template <class T, class U>
void assign(T& field, const std::optional<U>& value) {
  if (value) field = *value;
}

}  // namespace dsmoe::model

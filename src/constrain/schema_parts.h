// What every reader of a schema needs: where it is, refusals, types, references.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace dsmoe::constrain {

// Where a schema lies, for messages: "schema.properties.a".
struct At {
  const OrderedJson& json;
  const std::string& path;
};

[[noreturn]] inline void refuse(const std::string& path, const std::string& what) {
  fail(ErrorKind::input, "{}: {}", path, what);
}

inline std::string below(const std::string& path, std::string_view key) {
  return path + "." + std::string(key.substr(0, 80));
}

using Names = std::vector<std::string_view>;

inline bool contains(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// The `type` of a schema as a list, without integer beside number. Empty: nothing was said.
std::vector<std::string> types_of(const At& at);
bool is_of_type(const OrderedJson& value, std::string_view type);

// What a `$ref` refers to, by its JSON pointer; `path` is that of the reference.
const OrderedJson& referred(const OrderedJson& root, const OrderedJson& reference,
                            const std::string& path);

}  // namespace dsmoe::constrain

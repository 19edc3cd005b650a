// Types and references, checked.
#include "constrain/schema_parts.h"

#include <cmath>
#include <utility>

namespace dsmoe::constrain {
namespace {

const Names kTypes{"object", "array", "string", "number", "integer", "boolean", "null"};

std::string unescaped(std::string key) {
  for (const auto& [code, plain] : {std::pair("~1", "/"), std::pair("~0", "~")}) {
    for (std::size_t at = 0; (at = key.find(code, at)) != std::string::npos; ++at) {
      key.replace(at, 2, plain);
    }
  }
  return key;
}

}  // namespace

std::vector<std::string> types_of(const At& at) {
  const auto found = at.json.find("type");
  if (found == at.json.end()) return {};
  const std::string path = below(at.path, "type");
  std::vector<std::string> types;
  const OrderedJson list = found->is_array() ? *found : OrderedJson::array({*found});
  for (const OrderedJson& type : list) {
    if (!type.is_string() || !contains(kTypes, type.get_ref<const std::string&>())) {
      refuse(path,
             "expected object, array, string, number, integer, boolean, null, or a list "
             "of them");
    }
    types.push_back(type.get<std::string>());
  }
  if (types.empty()) refuse(path, "expected at least one type");
  // Every integer is a number.
  if (std::find(types.begin(), types.end(), "number") != types.end()) {
    std::erase(types, "integer");
  }
  return types;
}

bool is_of_type(const OrderedJson& value, std::string_view type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  if (type == "number") return value.is_number();
  return value.is_number_integer() ||
         (value.is_number_float() && value.get<double>() == std::floor(value.get<double>()));
}

const OrderedJson& referred(const OrderedJson& root, const OrderedJson& reference,
                            const std::string& path) {
  if (!reference.is_string() || !reference.get_ref<const std::string&>().starts_with('#')) {
    refuse(path, "expected a reference into this schema, such as \"#/$defs/name\"");
  }
  std::string_view pointer = reference.get_ref<const std::string&>();
  pointer.remove_prefix(1);
  const OrderedJson* here = &root;
  while (!pointer.empty()) {
    const std::size_t end = std::min(pointer.find('/', 1), pointer.size());
    std::string key(pointer.substr(0, end));
    const bool is_pointer = key.starts_with('/');
    key = unescaped(key.substr(1));
    pointer.remove_prefix(end);
    const OrderedJson* next = nullptr;
    if (is_pointer && here->is_object()) {
      const auto found = here->find(key);
      if (found != here->end()) next = &*found;
    } else if (is_pointer && here->is_array() && !key.empty() && key.size() < 6 &&
               key.find_first_not_of("0123456789") == std::string::npos &&
               static_cast<std::size_t>(std::stoi(key)) < here->size()) {
      next = &(*here)[static_cast<std::size_t>(std::stoi(key))];
    }
    if (next == nullptr) refuse(path, "there is nothing in this schema that it refers to");
    here = next;
  }
  return *here;
}

}  // namespace dsmoe::constrain

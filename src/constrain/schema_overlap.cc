// By types, by values, by properties.
#include "constrain/schema_overlap.h"

#include <span>

namespace dsmoe::constrain {
namespace {

constexpr std::size_t kMaxSteps = 100'000;
constexpr int kMaxDepth = 32;

using Values = std::span<const OrderedJson>;

// Of enum or const; none: neither is there.
Values values_of(const OrderedJson& schema) {
  if (schema.contains("const")) return Values(&schema["const"], 1);
  if (schema.contains("enum") && schema["enum"].is_array()) {
    return schema["enum"].get_ref<const OrderedJson::array_t&>();
  }
  return {};
}

const OrderedJson* alternatives_of(const OrderedJson& schema) {
  for (const char* word : {"anyOf", "oneOf"}) {
    const auto found = schema.find(word);
    if (found != schema.end() && found->is_array()) return &*found;
  }
  return nullptr;
}

bool has_type(const std::vector<std::string>& types, const OrderedJson& value) {
  return types.empty() || std::any_of(types.begin(), types.end(), [&](const std::string& type) {
           return is_of_type(value, type);
         });
}

bool types_are_apart(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  if (a.empty() || b.empty()) return false;
  return std::none_of(a.begin(), a.end(), [&](const std::string& x) {
    return std::any_of(b.begin(), b.end(), [&](const std::string& y) {
      return x == y || (x == "integer" && y == "number") || (x == "number" && y == "integer");
    });
  });
}

bool requires_member(const OrderedJson& schema, const std::string& name) {
  const auto required = schema.find("required");
  return required != schema.end() && required->is_array() &&
         std::find(required->begin(), required->end(), name) != required->end();
}

bool is_object_only(const std::vector<std::string>& types) {
  return types.size() == 1 && types[0] == "object";
}

}  // namespace

// Behind references and an allOf around one schema; null: a ring of them.
const OrderedJson* SchemaOverlap::resolved(const At& at) const {
  const OrderedJson* schema = &at.json;
  for (int i = 0; i < kMaxDepth; ++i) {
    if (!schema->is_object()) return schema;
    if (schema->contains("$ref")) {
      schema = &referred(root_, (*schema)["$ref"], below(at.path, "$ref"));
    } else if (schema->contains("allOf") && (*schema)["allOf"].is_array() &&
               (*schema)["allOf"].size() == 1) {
      schema = &(*schema)["allOf"][0];
    } else {
      return schema;
    }
  }
  return nullptr;
}

bool SchemaOverlap::alternatives_are_apart(const OrderedJson& of, const At& a, const At& b) {
  return std::all_of(of.begin(), of.end(), [&](const OrderedJson& one) {
    return are_apart({one, a.path}, b);
  });
}

bool SchemaOverlap::objects_are_apart(const At& a, const At& b) {
  if (!a.json.contains("properties") || !b.json.contains("properties")) return false;
  const OrderedJson &mine = a.json["properties"], &others = b.json["properties"];
  if (!mine.is_object() || !others.is_object()) return false;
  for (const auto& [name, schema] : mine.items()) {
    const auto other = others.find(name);
    if (other == others.end()) continue;
    if (!requires_member(a.json, name) || !requires_member(b.json, name)) continue;
    if (are_apart({schema, a.path}, {*other, b.path})) return true;
  }
  return false;
}

void SchemaOverlap::count(std::size_t steps, const At& at) {
  steps_ += steps;
  if (steps_ <= kMaxSteps) return;
  refuse(at.path, "too many pairs of alternatives to tell whether a value may be of two of them");
}

bool SchemaOverlap::are_apart(const At& a, const At& b) {
  count(1, a);
  const OrderedJson *first = resolved(a), *second = resolved(b);
  if (first == nullptr || second == nullptr || depth_ >= kMaxDepth) return false;
  if (!first->is_object() || !second->is_object()) {
    return *first == OrderedJson(false) || *second == OrderedJson(false);
  }
  ++depth_;
  const bool apart = objects_or_values_are_apart({*first, a.path}, {*second, b.path});
  --depth_;
  return apart;
}

bool SchemaOverlap::objects_or_values_are_apart(const At& a, const At& b) {
  if (const OrderedJson* of = alternatives_of(a.json)) return alternatives_are_apart(*of, a, b);
  if (const OrderedJson* of = alternatives_of(b.json)) return alternatives_are_apart(*of, b, a);
  const std::vector<std::string> types = types_of(a), other_types = types_of(b);
  if (types_are_apart(types, other_types)) return true;
  const Values values = values_of(a.json), others = values_of(b.json);
  count(std::max<std::size_t>(1, values.size()) * std::max<std::size_t>(1, others.size()), a);
  const auto may_be = [](const OrderedJson& value, const std::vector<std::string>& its_types,
                         Values its_values) {
    return has_type(its_types, value) &&
           (its_values.empty() ||
            std::find(its_values.begin(), its_values.end(), value) != its_values.end());
  };
  const auto none_may_be = [&](Values list, const auto& its_types, Values its_values) {
    return std::none_of(list.begin(), list.end(), [&](const OrderedJson& value) {
      return may_be(value, its_types, its_values);
    });
  };
  if (!values.empty()) return none_may_be(values, other_types, others);
  if (!others.empty()) return none_may_be(others, types, {});
  return is_object_only(types) && is_object_only(other_types) && objects_are_apart(a, b);
}

}  // namespace dsmoe::constrain

// Random schemas, random answers: whatever ends is allowed by a validator that knows nothing of
// automata, and nothing is stuck.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/utf8.h"
#include "constrain/test_support.h"

namespace dsmoe::constrain {
namespace {

class SchemaMaker {
 public:
  explicit SchemaMaker(uint32_t seed) : random_(seed) {}

  OrderedJson make() {
    OrderedJson schema = of_depth(3);
    if (uses_node_) {
      schema = {{"anyOf", OrderedJson::array({schema})}};
      schema["$defs"]["node"] = {
          {"type", "object"},
          {"properties",
           {{"value", {{"type", "integer"}}},
            {"next",
             {{"anyOf", OrderedJson::array({{{"type", "null"}}, {{"$ref", "#/$defs/node"}}})}}}}},
          {"required", {"value", "next"}},
          {"additionalProperties", false}};
    }
    return schema;
  }

 private:
  int below(int bound) { return static_cast<int>(random_() % static_cast<unsigned>(bound)); }

  OrderedJson of_depth(int depth) {
    switch (below(depth > 0 ? 11 : 7)) {
      case 0:
        return {{"type", "boolean"}};
      case 1:
        return number();
      case 2:
        return string();
      case 3:
        return {{"enum", {"a", 1, nullptr, {{"x", {1, 2}}}, "\"q\"\n"}}};
      case 4:
        return {{"type", OrderedJson::array({"null", "integer", "string"})}};
      case 5:
        return {{"type", "string"}, {"pattern", below(2) == 0 ? "^[a-f]{1,20}\\d?$" : "x|\"y"}};
      case 6:
        return {{"oneOf", OrderedJson::array({{{"type", "null"}}, string(), number()})}};
      case 7:
        uses_node_ = true;
        return {{"$ref", "#/$defs/node"}};
      case 8:
        return {{"anyOf", OrderedJson::array({of_depth(depth - 1), of_depth(depth - 1)})}};
      case 9:
        return array(depth);
      default:
        return object(depth);
    }
  }

  OrderedJson number() {
    OrderedJson schema{{"type", below(2) == 0 ? "integer" : "number"}};
    const int low = below(200) - 150;
    if (below(2) == 0) schema[below(2) == 0 ? "minimum" : "exclusiveMinimum"] = low;
    if (below(2) == 0)
      schema[below(2) == 0 ? "maximum" : "exclusiveMaximum"] = low + 40 + below(300);
    if (below(3) == 0) schema["multipleOf"] = OrderedJson::array({1, 7, 0.5, 2.25, 15})[below(5)];
    return schema;
  }
  OrderedJson string() {
    OrderedJson schema{{"type", "string"}};
    const int least = below(4);
    if (below(2) == 0) schema["minLength"] = least;
    if (below(2) == 0) schema["maxLength"] = least + below(30);
    return schema;
  }
  OrderedJson array(int depth) {
    OrderedJson schema{{"type", "array"}, {"items", of_depth(depth - 1)}};
    const int least = below(3);
    if (below(2) == 0) schema["minItems"] = least;
    if (below(2) == 0) schema["maxItems"] = least + below(4);
    return schema;
  }
  OrderedJson object(int depth) {
    OrderedJson schema{{"type", "object"}, {"properties", OrderedJson::object()}};
    OrderedJson required = OrderedJson::array();
    const int count = below(5);
    for (int i = 0; i < count; ++i) {
      const std::string name =
          std::string(1, static_cast<char>('e' - i)) + (below(3) == 0 ? "é\"" : "");
      schema["properties"][name] = of_depth(depth - 1);
      if (below(2) == 0) required.push_back(name);
    }
    schema["required"] = required;
    if (below(3) == 0) schema["additionalProperties"] = of_depth(0);
    return schema;
  }

  std::mt19937 random_;
  bool uses_node_ = false;
};

// Of the keywords that SchemaMaker uses.
class Validator {
 public:
  explicit Validator(const OrderedJson& root) : root_(root) {}

  bool allows(const OrderedJson& schema, const Json& value) const {
    if (schema.contains("$ref")) return allows(root_["$defs"]["node"], value);
    if (schema.contains("anyOf")) {
      for (const OrderedJson& one : schema["anyOf"]) {
        if (allows(one, value)) return true;
      }
      return false;
    }
    if (schema.contains("oneOf")) {
      return std::count_if(schema["oneOf"].begin(), schema["oneOf"].end(),
                           [&](const OrderedJson& one) { return allows(one, value); }) == 1;
    }
    if (schema.contains("enum")) {
      for (const OrderedJson& one : schema["enum"]) {
        if (Json(one) == value) return true;
      }
      return false;
    }
    if (!allows_type(schema["type"], value)) return false;
    return allows_number(schema, value) && allows_string(schema, value) &&
           allows_array(schema, value) && allows_object(schema, value);
  }

 private:
  static bool allows_type(const OrderedJson& type, const Json& value) {
    if (type.is_array()) {
      return std::any_of(type.begin(), type.end(),
                         [&](const OrderedJson& one) { return allows_type(one, value); });
    }
    const std::string name = type;
    if (name == "integer") return value.is_number_integer();
    if (name == "number") return value.is_number();
    return name == value.type_name();
  }
  static bool allows_number(const OrderedJson& schema, const Json& value) {
    if (!value.is_number()) return true;
    const auto x = value.get<double>();
    return x >= schema.value("minimum", -1e300) && x <= schema.value("maximum", 1e300) &&
           x > schema.value("exclusiveMinimum", -1e300) &&
           x < schema.value("exclusiveMaximum", 1e300) &&
           std::fmod(x, schema.value("multipleOf", x == 0 ? 1 : x)) == 0;
  }
  static bool allows_string(const OrderedJson& schema, const Json& value) {
    if (!value.is_string()) return true;
    const auto text = value.get<std::string>();
    int64_t length = 0;
    for (std::size_t at = 0; at < text.size(); ++length) next_code_point(text, at);
    if (length < schema.value("minLength", 0) || length > schema.value("maxLength", 1 << 30)) {
      return false;
    }
    if (!schema.contains("pattern")) return true;
    if (schema["pattern"] != "x|\"y") {
      const bool has_digit = !text.empty() && text.back() >= '0' && text.back() <= '9';
      const std::size_t letters = text.size() - (has_digit ? 1 : 0);
      return letters >= 1 && letters <= 20 && text.find_first_not_of("abcdef") >= letters;
    }
    return text.find('x') != std::string::npos || text.find("\"y") != std::string::npos;
  }
  bool allows_array(const OrderedJson& schema, const Json& value) const {
    if (!value.is_array()) return true;
    const auto size = static_cast<int64_t>(value.size());
    if (size < schema.value("minItems", 0) || size > schema.value("maxItems", 1 << 30)) {
      return false;
    }
    return std::all_of(value.begin(), value.end(),
                       [&](const Json& item) { return allows(schema["items"], item); });
  }
  bool allows_object(const OrderedJson& schema, const Json& value) const {
    if (!value.is_object()) return true;
    for (const OrderedJson& name : schema["required"]) {
      if (!value.contains(name.get<std::string>())) return false;
    }
    for (const auto& [name, member] : value.items()) {
      if (schema["properties"].contains(name)) {
        if (!allows(schema["properties"][name], member)) return false;
      } else if (schema.contains("additionalProperties")) {
        if (!allows(schema["additionalProperties"], member)) return false;
      } else if (!schema["properties"].empty()) {
        return false;  // allowed by the standard, but not to be written
      }
    }
    return true;
  }

  const OrderedJson& root_;
};

// One answer of at most `length` tokens, each as likely as the others; empty: it did not end.
std::string random_answer(const std::shared_ptr<const Constraint>& constraint, int length,
                          std::mt19937& random) {
  Matcher matcher(constraint);
  TokenBits bits;
  std::string text;
  for (int left = length; left > 0; --left) {
    matcher.allowed(left, bits);
    std::vector<int32_t> tokens;
    for (int32_t t = 0; t < constraint->vocabulary().size(); ++t) {
      if (has_token(bits, t)) tokens.push_back(t);
    }
    if (matcher.may_end() && (tokens.empty() || random() % 4 == 0)) return text;
    EXPECT_FALSE(tokens.empty()) << "stuck behind " << text;
    if (tokens.empty()) return "";
    const int32_t token = tokens[random() % tokens.size()];
    matcher.take(token);
    text += constraint->vocabulary().bytes(token);
    if (matcher.must_end()) return text;
  }
  return matcher.may_end() ? text : "";
}

TEST(JsonSchemaProperty, WhatEndsIsAllowed) {
  std::mt19937 random(11);
  int num_ended = 0, num_answers = 0;
  for (uint32_t seed = 0; seed < 120; ++seed) {
    const OrderedJson schema = SchemaMaker(seed).make();
    ASSERT_EQ(refusal_of(Shape::schema(schema, "schema")), "accepted") << schema;
    const auto constraint = constraint_of(Shape::schema(schema, "schema"));
    const Validator validator(schema);
    for (int i = 0; i < 6; ++i, ++num_answers) {
      const int length = i < 3 ? 100 : 20;
      const std::string text = random_answer(constraint, length, random);
      if (text.empty()) {
        EXPECT_GT(constraint->shortest(), length) << schema;  // it had to be closed otherwise
        continue;
      }
      ++num_ended;
      // Names that the schema does not list may come twice, which parse_json() refuses.
      const Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
      ASSERT_FALSE(value.is_discarded()) << schema << "\n" << text;
      EXPECT_TRUE(validator.allows(schema, value)) << schema << "\n" << text;
    }
  }
  EXPECT_GT(num_ended, num_answers * 95 / 100);
}

// The validator tells right from wrong: a value with one thing changed is refused by both.
TEST(JsonSchemaProperty, WhatIsNotAllowedCannotBeWritten) {
  const OrderedJson schema = parse_ordered_json(
      R"({"type": "object", "properties": {"a": {"type": "integer", "maximum": 5}}, "required": ["a"]})",
      "s");
  const auto constraint = constraint_of(Shape::schema(schema, "schema"));
  const Validator validator(schema);
  EXPECT_TRUE(validator.allows(schema, Json::parse(R"({"a": 5})")) &&
              accepts(constraint, R"({"a": 5})"));
  for (const char* wrong : {R"({"a": 6})", R"({"a": "5"})", R"({"b": 5})", R"([5])"}) {
    EXPECT_FALSE(validator.allows(schema, Json::parse(wrong))) << wrong;
    EXPECT_FALSE(accepts(constraint, wrong)) << wrong;
  }
}

}  // namespace
}  // namespace dsmoe::constrain

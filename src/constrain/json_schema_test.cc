#include <gtest/gtest.h>

#include "constrain/test_support.h"

namespace dsmoe::constrain {
namespace {

struct Case {
  const char* schema;
  std::vector<std::string> right;
  std::vector<std::string> wrong;
};

void check(std::initializer_list<Case> cases) {
  for (const Case& c : cases) {
    const auto constraint = constraint_of(schema_of(c.schema));
    for (const auto& text : c.right)
      EXPECT_TRUE(accepts(constraint, text)) << c.schema << " " << text;
    for (const auto& text : c.wrong)
      EXPECT_FALSE(accepts(constraint, text)) << c.schema << " " << text;
  }
}

TEST(JsonSchema, Types) {
  check({
      {R"({"type":"null"})", {"null"}, {"nul", "0", ""}},
      {R"({"type":"boolean"})", {"true", "false"}, {"True", "1"}},
      {R"({"type":"integer"})",
       {"0", "-1", "1234567890123456"},
       {"01", "1.0", "-0", "-", "1e3", "12345678901234567"}},
      {R"({"type":"number"})",
       {"0", "-0.5", "1e9", "12.25E-10"},
       {".5", "1.", "1e", "1e999", "+1"}},
      {R"({"type":"string"})",
       {R"("")", R"("a\n\u00e9日\ud83d\ude00")"},
       {R"(")", R"("a)", "\"\n\"", R"("\x")", R"("\ud83d")", R"("\ude00")", "\"\xff\""}},
      {R"({"type":["string","null"]})", {"null", R"("x")"}, {"1"}},
      {R"({})", {"1", "[]", R"({"a": [1, {"b": null}]})"}, {"", "{", "{1:2}", "[1,]"}},
      {R"(true)", {"1"}, {""}},
      {R"({"type":"object"})", {"{}", R"({"a":1})", "{\n  \"a\": 1\n}"}, {"[]", R"({"a"})"}},
  });
}

TEST(JsonSchema, Objects) {
  check({
      {R"({"type":"object","properties":{"b":{"type":"integer"},"a":{"type":"boolean"}},"required":["b","a"]})",
       {R"({"b":1,"a":true})", R"({ "b" : 1})"[0] == '{' ? R"({"b": 1, "a": true})" : ""},
       {R"({"a":true,"b":1})", R"({"b":1})", R"({"b":1,"a":true,"c":0})", R"({"b":1"a":true})"}},
      {R"({"properties":{"a":{"type":"integer"},"b":{"type":"integer"},"c":{"type":"integer"}},"required":["b"]})",
       {R"({"b":1})", R"({"a":1,"b":1})", R"({"b":1,"c":1})", R"({"a":1,"b":1,"c":1})"},
       {"{}", R"({"a":1})", R"({"c":1,"b":1})", R"({,"b":1})", R"({"b":1,})"}},
      {R"({"properties":{"a":{}},"additionalProperties":false})",
       {"{}", R"({"a":[]})"},
       {R"({"b":1})"}},
      {R"({"additionalProperties":{"type":"integer"}})",
       {"{}", R"({"x":1,"y":2})"},
       {R"({"x":"1"})"}},
      {R"({"properties":{"name":{"type":"string"},"no":{"type":"null"}},"required":["name"],"additionalProperties":{"type":"integer"}})",
       {R"({"name":"x"})", R"({"name":"x","nam":1})", R"({"name":"x","names":1,"":2})",
        R"({"name":"x","no":null,"é":3})"},
       {R"({"name":"x","name":1})", R"({"name":"x","n\u006f":1})", R"({"name":"x","no":1})",
        R"({"nam":1})"}},
      {R"({"type":"object","additionalProperties":false})", {"{}"}, {R"({"a":1})"}},
      {R"({"properties":{"\"é\n":{"type":"null"}},"required":["\"é\n"]})",
       {R"({"\"é\n":null})"},
       {}},
  });
}

TEST(JsonSchema, Arrays) {
  check({
      {R"({"type":"array","items":{"type":"integer"}})",
       {"[]", "[1]", "[1, 2,3]"},
       {"[,]", "[1 2]", R"(["a"])"}},
      {R"({"type":"array","items":{"type":"integer"},"minItems":2,"maxItems":3})",
       {"[1,2]", "[1,2,3]"},
       {"[]", "[1]", "[1,2,3,4]"}},
      {R"({"items":{"type":"array","items":{"type":"null"},"maxItems":1},"minItems":1})",
       {"[[]]", "[[null],[]]"},
       {"[]", "[[null,null]]"}},
      {R"({"type":"array","maxItems":0})", {"[]"}, {"[1]"}},
      {R"({"type":"array","items":{"const":1},"minItems":2})", {"[1,1]", "[1, 1,1]"}, {"[1]"}},
      {R"({"type":"array","items":{"type":"integer"},"minItems":100,"maxItems":100000})",
       {"[1" +
        [] {
          std::string s;
          for (int i = 0; i < 99; ++i) s += ",1";
          return s;
        }() +
        "]"},
       {"[1,1]"}},
      {R"({"type":"array","items":{"type":"integer"},"maxItems":1})", {"[]", "[7]"}, {"[7,7]"}},
  });
}

TEST(JsonSchema, Strings) {
  check({
      {R"({"type":"string","minLength":2,"maxLength":3})",
       {R"("ab")", R"("日本語")", R"("\n\ud83d\ude00")"},
       {R"("a")", R"("abcd")"}},
      {R"({"maxLength":0})", {R"("")"}, {R"("a")"}},
      {R"({"format":"date"})", {R"("2024-12-31")"}, {R"("2024-02-30")", R"("2024-13-01")"}},
      {R"({"format":"date-time"})",
       {R"("2024-12-31T23:59:59Z")", R"("1999-01-01T00:00:00.5+02:00")"},
       {R"("2024-12-31")", R"("2024-12-31T24:00:00Z")"}},
      {R"({"format":"uuid"})", {R"("123e4567-e89b-12d3-a456-426614174000")"}, {R"("123e4567")"}},
      {R"({"format":"ipv4"})", {R"("255.0.10.1")"}, {R"("256.0.0.1")", R"("1.2.3")"}},
      {R"({"format":"email"})", {R"("a.b@example.org")"}, {R"("a@b")", R"("@x.org")"}},
      {R"({"enum":["a","\"b",1,null,[1,{"x":2}]]})",
       {R"("a")", R"("\"b")", "1", "null", R"([1,{"x":2}])"},
       {R"("b")", "2"}},
      {R"({"type":"string","enum":["a",1]})", {R"("a")"}, {"1"}},
      {R"({"const":{"a":1.5}})", {R"({"a":1.5})"}, {"1.5"}},
  });
}

TEST(JsonSchema, NumberRanges) {
  check({
      {R"({"type":"integer","minimum":-12,"maximum":105})",
       {"-12", "-9", "-1", "0", "7", "99", "105"},
       {"-13", "-0", "106", "200", "007", "-20", "1000"}},
      {R"({"type":"integer","minimum":10})", {"10", "11", "99", "100"}, {"9", "-10", "0"}},
      {R"({"type":"integer","exclusiveMaximum":0})", {"-1", "-100"}, {"0", "1", "-0"}},
      {R"({"type":"integer","exclusiveMinimum":1,"exclusiveMaximum":3})", {"2"}, {"1", "3"}},
      {R"({"type":"integer","minimum":1.5,"maximum":2.5})", {"2"}, {"1", "3"}},
      {R"({"type":"number","minimum":0,"maximum":1})",
       {"0", "0.25", "1", "1.0", "0.000001"},
       {"1.1", "-0.1", "2", "1.000001"}},
      {R"({"type":"number","exclusiveMinimum":0})", {"0.1", "5", "0.01"}, {"0", "0.0", "-1"}},
      {R"({"type":"number","minimum":-0.5,"exclusiveMaximum":0.5})",
       {"-0.5", "-0.25", "0", "0.49"},
       {"0.5", "-0.51", "0.50"}},
      {R"({"type":"number","maximum":-2.75})", {"-2.75", "-3", "-10.5"}, {"-2.7", "0", "-2"}},
  });
}

TEST(JsonSchema, Multiples) {
  check({
      {R"({"type":"integer","multipleOf":7})",
       {"0", "7", "-7", "91", "700000000000007"},
       {"1", "8", "-1", "-0", "07", "7.0", "7000000000000007"}},
      {R"({"type":"integer","multipleOf":5,"minimum":-12,"exclusiveMaximum":30})",
       {"-10", "-5", "0", "25"},
       {"-15", "30", "3", "-12"}},
      {R"({"type":"number","multipleOf":0.25})",
       {"0", "0.25", "-1.5", "3.75", "2.50"},
       {"0.2", "0.3", "0.125", "1e2", "-0.0"}},
      {R"({"type":"number","multipleOf":0.01,"minimum":0.995,"maximum":2})",
       {"1", "1.0", "1.07", "1.99", "2.00"},
       {"0.99", "1.075", "2.01"}},
      {R"({"multipleOf":10})", {"10", "-120", "0"}, {"5", "10.0", "1e1"}},
      {R"({"type":"integer","multipleOf":2.5})", {"5", "10", "0"}, {"2.5", "2", "7"}},
      {R"({"type":"integer","multipleOf":1000})", {"1000", "-250000"}, {"100", "1"}},
      {R"({"type":"integer","multipleOf":0.5})", {"1", "17"}, {"0.5"}},
  });
}

TEST(JsonSchema, OneOf) {
  check({
      {R"({"oneOf":[{"type":"integer"},{"type":"string"},{"type":["null","array"]}]})",
       {"1", R"("a")", "null", "[]"},
       {"1.5", "true"}},
      {R"({"oneOf":[{"enum":["a","b"]},{"const":"c"},{"const":1},{"type":"object"}]})",
       {R"("a")", R"("c")", "1", "{}"},
       {R"("d")", "2"}},
      {R"({"oneOf":[{"$ref":"#/$defs/cat"},{"$ref":"#/$defs/dog"}],"discriminator":{"propertyName":"kind"},
           "$defs":{"cat":{"type":"object","properties":{"kind":{"const":"cat"},"lives":{"type":"integer"}},"required":["kind"]},
                    "dog":{"type":"object","properties":{"kind":{"enum":["dog","puppy"]}},"required":["kind"]}}})",
       {R"({"kind":"cat","lives":9})", R"({"kind":"puppy"})"},
       {R"({"kind":"dog","lives":9})", R"({"kind":"cow"})"}},
      {R"({"oneOf":[{"anyOf":[{"type":"null"},{"type":"boolean"}]},{"oneOf":[{"const":3},{"const":4}]}]})",
       {"null", "true", "3"},
       {"5"}},
  });
  for (
      const char* overlapping :
      {R"({"oneOf":[{"type":"integer"},{"type":"number"}]})",
       R"({"oneOf":[{"type":"string"},{"minLength":2}]})",
       R"({"oneOf":[{"enum":["a","b"]},{"const":"b"}]})",
       R"({"oneOf":[{"const":1},{"const":1.0}]})", R"({"oneOf":[{"const":"a"},{"type":"string"}]})",
       R"({"oneOf":[{"type":"null"},{"anyOf":[{"type":"string"},{"type":"null"}]}]})",
       R"({"oneOf":[{"type":"object","properties":{"a":{"const":1}},"required":["a"]},
                     {"type":"object","properties":{"a":{"const":2}}}]})",
       R"({"oneOf":[{"$ref":"#/$defs/x"},{"type":"integer"}],"$defs":{"x":{"type":["null","integer"]}}})",
       R"({"oneOf":[{},{"type":"null"}]})"}) {
    const std::string refusal = refusal_of(schema_of(overlapping));
    EXPECT_NE(refusal.find("schema.oneOf: a value might be of 0 and of 1"), std::string::npos)
        << overlapping << ": " << refusal;
  }
}

TEST(JsonSchema, OneOfOfManyIsBounded) {
  std::string many = R"({"oneOf":[)";
  for (int i = 0; i < 3000; ++i) many += fmt::format(R"({}{{"const":{}}})", i > 0 ? "," : "", i);
  EXPECT_NE(refusal_of(schema_of(many + "]}")).find("too many pairs"), std::string::npos);
  std::string large = R"({"enum":[0)";
  for (int i = 1; i < 2000; ++i) large += fmt::format(",{}", i);
  const std::string twice = R"({"oneOf":[)" + large + "]}," + large + "]}]}";
  EXPECT_NE(refusal_of(schema_of(twice)).find("too many pairs"), std::string::npos);
}

TEST(JsonSchema, References) {
  check({
      {R"({"$defs":{"n":{"type":"object","properties":{"v":{"type":"integer"},"next":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}},"required":["v","next"]}},"$ref":"#/$defs/n"})",
       {R"({"v":1,"next":null})", R"({"v":1,"next":{"v":2,"next":null}})"},
       {R"({"v":1,"next":{}})"}},
      {R"({"type":"array","items":{"$ref":"#"}})", {"[]", "[[],[[]]]"}, {"[1]", "[[]"}},
      {R"({"properties":{"a":{"type":"null"},"b":{"$ref":"#/properties/a"}},"required":["a","b"]})",
       {R"({"a":null,"b":null})"},
       {R"({"a":null,"b":1})"}},
      {R"({"anyOf":[{"type":"integer"},{"allOf":[{"type":"null"}]}]})", {"1", "null"}, {"true"}},
      {R"({"$defs":{"a":{"properties":{"x":{"type":"integer"}},"required":["x"]},"b":{"properties":{"x":{"type":"integer"},"y":{"type":"null"}},"required":["x","y"]}},"anyOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/b"}]})",
       {R"({"x":1})", R"({"x":1,"y":null})"},
       {R"({"y":null})"}},
  });
}

// Each bracket may open either of two lists: after n of them there are 2^n ways to be there.
TEST(JsonSchema, TokensOfManyBracketsInsideOfListsThatLookAlike) {
  std::vector<std::string> bytes;
  for (int b = 0; b < 256; ++b) bytes.emplace_back(1, static_cast<char>(b));
  bytes.emplace_back(48, '[');
  const auto vocabulary = std::make_shared<const Vocabulary>(std::move(bytes));
  const auto constraint =
      std::make_shared<const Constraint>(schema_of(R"({"$ref":"#/$defs/a","$defs":{
          "a":{"type":"array","items":{"anyOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/b"}]}},
          "b":{"type":"array","items":{"anyOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/b"}]},
               "maxItems":5}}})"),
                                         vocabulary);
  Matcher matcher(constraint);
  TokenBits bits;
  matcher.allowed(1000, bits);
  EXPECT_TRUE(has_token(bits, 256));
  matcher.take(256);
  // 48 are open, and a token more opens as many: 96 have to be closed behind it.
  matcher.allowed(97, bits);
  EXPECT_TRUE(has_token(bits, 256));
  matcher.allowed(96, bits);
  EXPECT_FALSE(has_token(bits, 256));
}

TEST(JsonSchema, RefusesByPath) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"properties":{"a":{"oneOf":[]}}})", "schema.properties.a.oneOf: "},
      {R"({"oneOf":[{"type":"null"}],"type":"null"})", "schema.type: not supported beside oneOf"},
      {R"({"type":"integer","multipleOf":0})", "schema.multipleOf: "},
      {R"({"type":"integer","multipleOf":-2})", "schema.multipleOf: "},
      {R"({"type":"integer","multipleOf":"2"})", "schema.multipleOf: "},
      {R"({"type":"integer","multipleOf":1001})", "schema.multipleOf: "},
      {R"({"type":"number","multipleOf":1e-7})", "schema.multipleOf: "},
      {R"({"type":"number","multipleOf":1e300})", "schema.multipleOf: "},
      {R"({"type":"integer","minimum":1,"maximum":6,"multipleOf":7})", "no answer"},
      {R"({"items":{"type":"string","pattern":"("}})", "schema.items.pattern: "},
      {R"({"type":"strin"})", "schema.type: "},
      {R"({"type":[]})", "schema.type: "},
      {R"({"format":"color"})", "schema.format: "},
      {R"({"anyOf":[{"type":"null"},{"not":{}}]})", "schema.anyOf.1.not: "},
      {R"({"$ref":"#/$defs/x"})", "schema.$ref: "},
      {R"({"$ref":"other.json"})", "schema.$ref: "},
      {R"({"$ref":"#/$defs/x","$defs":{"x":{"$ref":"#/$defs/x"}}})", "schema.$defs.x: "},
      {R"({"$ref":"#/$defs/x","$defs":{"x":{"anyOf":[{"$ref":"#/$defs/x"},{"type":"null"}]}}})",
       "schema.$defs.x: "},
      {R"({"$ref":"#/$defs/x","$defs":{"x":{"properties":{"y":{"$ref":"#/$defs/x"}},"required":["y"]}}})",
       "no answer"},
      {R"({"minLength":3,"maxLength":2})", "schema.minLength: "},
      {R"({"type":"array","minItems":-1})", "schema.minItems: "},
      {R"({"type":"array","maxItems":1e12})", "schema.maxItems: "},
      {R"({"required":["a"]})", "schema.required: "},
      {R"({"type":"integer","minimum":"a"})", "schema.minimum: "},
      {R"({"type":"integer","minimum":5,"maximum":4})", "no answer"},
      {R"({"enum":[]})", "schema.enum: "},
      {R"({"type":"string","enum":[1]})", "no answer"},
      {R"({"properties":[]})", "schema.properties: "},
      {R"(false)", "no answer"},
      {R"(3)", "schema: expected a schema"},
      {R"({"pattern":"a","maxLength":3})", "schema.pattern: "},
      {R"({"anyOf":[{}],"type":"null"})", "schema.type: not supported beside anyOf"},
      {R"({"patternProperties":{}})", "schema.patternProperties: "},
  };
  for (const auto& [schema, reason] : cases) {
    const std::string refusal = refusal_of(schema_of(schema));
    EXPECT_NE(refusal.find(reason), std::string::npos) << schema << ": " << refusal;
  }
}

}  // namespace
}  // namespace dsmoe::constrain

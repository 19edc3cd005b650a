// Deep, wide, endless and malformed ones.
#include "serve/structured_cases.h"

#include "base/json.h"

namespace dsmoe::testing {
namespace {

std::string with(const std::string& fields) {
  return R"({"prompt": "The cat", "max_tokens": 20, )" + fields + "}";
}
std::string schema(const std::string& text) { return with("\"guided_json\": " + text); }
std::string regex(const std::string& pattern) {
  return with("\"guided_regex\": " + Json(pattern).dump());
}
std::string repeated(const std::string& text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}
// begin, f(0), f(1) ... with commas between them, end
template <class F>
std::string list(const std::string& begin, int count, F&& f, const std::string& end) {
  std::string all = begin;
  for (int i = 0; i < count; ++i) all += std::string(i > 0 ? "," : "") + f(i);
  return all + end;
}
std::string number(int i) { return std::to_string(i); }

// $defs d0, d1 ...: each of d(i + 1) twice.
std::string doubling(int count) {
  return list(R"({"$ref": "#/$defs/d0", "$defs": {)", count,
              [&](int i) {
                const std::string next = i + 1 == count
                                             ? R"({"type": "null"})"
                                             : R"({"$ref": "#/$defs/d)" + number(i + 1) + "\"}";
                return "\"d" + number(i) + R"(": {"properties": {"a": )" + next + R"(, "b": )" +
                       next + R"(}, "required": ["a", "b"]})";
              },
              "}}");
}
// A list of alternatives that all begin alike and go on alike.
std::string alike(int count) {
  return list(R"({"anyOf": [)", count,
              [](int i) {
                return R"({"properties": {"x": {"type": "string"}, "y": {"type": "string"}, "z)" +
                       number(i) + R"(": {"type": "null"}}, "required": ["x", "y", "z)" +
                       number(i) + "\"]}";
              },
              "]}");
}

// Two rules that begin alike. Each has few enough ways to go on, both together too many.
std::string two_lists(int count) {
  const auto rule = [&](const std::string& name, int first) {
    return list(
        "\"" + name + R"(": {"type": "array", "minItems": 1, "items": {"anyOf": [)", count,
        [&](int i) { return R"({"$ref": "#/$defs/d)" + number(first + i) + "\"}"; }, "]}},");
  };
  return list(R"({"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": {)" +
                  rule("a", 0) + rule("b", count),
              2 * count,
              [](int i) { return "\"d" + number(i) + R"(": {"const": )" + number(i) + "}"; }, "}}");
}

std::vector<BodyCase> schema_cases() {
  return {
      {"schema a number", schema("5"), 400, "guided_json"},
      {"schema a list", schema("[1]"), 400, "guided_json"},
      {"schema text", schema(R"("{]")"), 400, "guided_json"},
      {"schema false", schema("false"), 400, "guided_json"},
      {"type unknown", schema(R"({"type": "text"})"), 400, "guided_json"},
      {"type a number", schema(R"({"type": 3})"), 400, "guided_json"},
      {"type empty", schema(R"({"type": []})"), 400, "guided_json"},
      {"keyword unknown", schema(R"({"propertyNames": {}})"), 400, "guided_json"},
      {"keyword oneOf", schema(R"({"oneOf": [{}, {}]})"), 400, "guided_json"},
      {"keyword not", schema(R"({"not": {}})"), 400, "guided_json"},
      {"keyword if", schema(R"({"if": {}, "then": {}})"), 400, "guided_json"},
      {"properties a list", schema(R"({"properties": []})"), 400, "guided_json"},
      {"property a number", schema(R"({"properties": {"a": 1}})"), 400, "guided_json"},
      {"required a text", schema(R"({"required": "a"})"), 400, "guided_json"},
      {"required unknown", schema(R"({"required": ["a"]})"), 400, "guided_json"},
      {"items a list", schema(R"({"items": [{}]})"), 400, "guided_json"},
      {"minItems negative", schema(R"({"minItems": -1})"), 400, "guided_json"},
      {"minItems a fraction", schema(R"({"minItems": 0.5})"), 400, "guided_json"},
      {"minItems beyond", schema(R"({"minItems": 1e300})"), 400, "guided_json"},
      {"minItems a billion", schema(R"({"minItems": 1000000000})"), 400, "guided_json"},
      {"minLength over maxLength", schema(R"({"minLength": 2, "maxLength": 1})"), 400},
      {"minimum over maximum", schema(R"({"type": "integer", "minimum": 2, "maximum": 1})"), 400},
      {"minimum endless", schema(R"({"minimum": 1e308})"), 400, "guided_json"},
      {"enum empty", schema(R"({"enum": []})"), 400, "guided_json"},
      {"enum a text", schema(R"({"enum": "a"})"), 400, "guided_json"},
      {"format unknown", schema(R"({"format": "colour"})"), 400, "guided_json"},
      {"ref elsewhere", schema(R"({"$ref": "http://x/y"})"), 400, "guided_json"},
      {"ref nowhere", schema(R"({"$ref": "#/a/~2/%"})"), 400, "guided_json"},
      {"ref to itself", schema(R"({"$ref": "#"})"), 400, "guided_json"},
      {"ref in a ring",
       schema(
           R"({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}})"),
       400, "guided_json"},
      {"ref without an end", schema(R"({"properties": {"a": {"$ref": "#"}}, "required": ["a"]})"),
       400, "guided_json"},
      {"ref without an end in lists",
       schema(R"({"type": "array", "items": {"$ref": "#"}, "minItems": 1})"), 400, "guided_json"},
      {"deep schema", schema(repeated(R"({"items": )", 40) + "{}" + repeated("}", 40)), 400},
      {"deep text", with("\"guided_json\": " + Json(repeated(R"({"items": )", 5000)).dump()), 400},
      {"all but deep",
       schema(repeated(R"({"type": "array", "items": )", 14) + "{}" + repeated("}", 14)), 200},
      {"doubling references", schema(doubling(10)), 200},
      {"doubling references to a billion", schema(doubling(30)), 400, "guided_json"},
      {"alternatives alike", schema(alike(40)), 200},
      {"many alternatives alike", schema(alike(2000)), 200},
      {"a thousand properties",
       schema(list(R"({"properties": {)", 1000,
                   [](int i) { return "\"p" + number(i) + R"(": {"type": "integer"})"; }, "}}")),
       400},
      {"a hundred properties",
       schema(list(R"({"properties": {)", 100,
                   [](int i) { return "\"p" + number(i) + R"(": {"type": "integer"})"; }, "}}")),
       200},
      {"enum of ten thousand",
       schema(list(R"({"enum": [)", 10000, [](int i) { return "\"v" + number(i) + '"'; }, "]}")),
       200},
      {"enum of half a megabyte",
       schema(list(R"({"enum": [)", 5000,
                   [](int i) { return "\"" + std::string(100, 'x') + number(i) + '"'; }, "]}")),
       400},
      {"a hundred thousand items",
       schema(R"({"type": "array", "items": {"type": "null"}, "maxItems": 100000})"), 200},
      {"a million characters", schema(R"({"type": "string", "maxLength": 1000000})"), 200},
      {"too many ways at one token", schema(two_lists(300)), 400},
      {"name of a megabyte", schema("{\"properties\": {\"" + std::string(300000, 'n') + "\": {}}}"),
       400},
  };
}

std::vector<BodyCase> regex_cases() {
  return {
      {"regex a list", with(R"("guided_regex": ["a"])"), 400, "guided_regex"},
      {"regex open", regex("(a"), 400, "guided_regex"},
      {"regex look ahead", regex("a(?=b)"), 400, "guided_regex"},
      {"regex back reference", regex("(a)\\1"), 400, "guided_regex"},
      {"regex nested repetitions", regex("((a{1,1000}){1,1000}){1,1000}"), 400, "guided_regex"},
      {"regex of stars", regex("(((a*)*)*)*b"), 200},
      {"regex exploding", regex("(a|b)*a(a|b){25}"), 400, "guided_regex"},
      {"regex of optional letters", regex("(a?){500}a{500}"), 200},
      {"regex counted twice", regex("[a-z]{1,100000}[a-z]{1,100000}"), 400, "guided_regex"},
      {"regex counted", regex("[a-z]{1,100000}"), 200},
      {"regex deep", regex(repeated("(", 30000) + repeated(")", 30000)), 400, "guided_regex"},
      {"regex long", regex(std::string(100000, 'a')), 400, "guided_regex"},
      {"regex of alternatives",
       regex(list(
           "", 5000, [](int i) { return "a" + number(i) + "|"; }, "")),
       200},
  };
}

}  // namespace

std::vector<BodyCase> structured_cases() {
  std::vector<BodyCase> cases = schema_cases();
  for (BodyCase& each : regex_cases()) cases.push_back(std::move(each));
  const std::vector<BodyCase> fields = {
      {"choices empty text", with(R"("guided_choice": [""])"), 200},
      {"choices nested", with(R"("guided_choice": [["a"]])"), 400, "guided_choice"},
      {"choices by the thousand",
       with("\"guided_choice\": " + list(
                                        "[", 70000, [](int) { return "\"a\""; }, "]")),
       400, "guided_choice"},
      {"choices large", with("\"guided_choice\": [\"" + std::string(400000, 'c') + "\"]"), 400,
       "guided_choice"},
      {"two of them", with(R"("guided_regex": "a", "guided_choice": ["a"])"), 400, "guided_choice"},
      {"format a text", with(R"("response_format": "json_object")"), 400, "response_format"},
      {"format unknown", with(R"("response_format": {"type": "xml"})"), 400,
       "response_format.type"},
      {"format without schema",
       with(R"("response_format": {"type": "json_schema", "json_schema": {"name": "x"}})"), 400,
       "response_format.json_schema.schema"},
      {"outputs unknown", with(R"("structured_outputs": {"grammar": "x"})"), 400,
       "structured_outputs.grammar"},
      {"outputs twice", with(R"("structured_outputs": {"regex": "a", "json": {}})"), 400,
       "structured_outputs.json"},
  };
  cases.insert(cases.end(), fields.begin(), fields.end());
  return cases;
}

}  // namespace dsmoe::testing

// Grammars, alternatives, multiples, banned words, tools: deep, wide, endless and contradictory.
#include "base/json.h"
#include "serve/structured_cases.h"

namespace dsmoe::testing {
namespace {

std::string with(const std::string& fields) {
  return R"({"prompt": "The cat", "max_tokens": 20, )" + fields + "}";
}
std::string grammar(const std::string& text) { return with("\"grammar\": " + Json(text).dump()); }
std::string schema(const std::string& text) { return with("\"guided_json\": " + text); }
std::string repeated(const std::string& text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}
template <class F>
std::string list(const std::string& begin, int count, F&& f, const std::string& end) {
  std::string all = begin;
  for (int i = 0; i < count; ++i) all += std::string(i > 0 ? "," : "") + f(i);
  return all + end;
}
std::string number(int i) { return std::to_string(i); }

// Rules r0, r1 ...: f(i) is what stands behind the ::= of each.
template <class F>
std::string rules(int count, F&& f) {
  std::string text = "root ::= r0\n";
  for (int i = 0; i < count; ++i) text += "r" + number(i) + " ::= " + f(i) + "\n";
  return text;
}

// {"kind": NAME, ...} by the const of a required property.
std::string kind(int i) {
  return R"({"type": "object", "properties": {"kind": {"const": "k)" + number(i) +
         R"("}, "v": {"type": "string"}}, "required": ["kind"]})";
}

std::vector<BodyCase> grammar_cases() {
  return {
      {"grammar a list", with(R"("grammar": ["root ::= x"])"), 400, "grammar"},
      {"grammar an object", with(R"("guided_grammar": {})"), 400, "guided_grammar"},
      {"grammar without root", grammar("a ::= \"a\""), 400, "grammar"},
      {"grammar of another kind", grammar("?start: \"a\""), 400, "grammar"},
      {"grammar open", grammar("root ::= (\"a\""), 400, "grammar"},
      {"grammar open quote", grammar("root ::= \"a"), 400, "grammar"},
      {"grammar of bytes", grammar("root ::= [\\x80-\\xff]+"), 200},
      {"grammar deep", grammar("root ::= " + repeated("(", 50000)), 400, "grammar"},
      {"grammar of a megabyte", grammar("root ::= \"" + std::string(400000, 'a') + "\""), 400,
       "grammar"},
      {"grammar begins with itself", grammar("root ::= root \"a\" | \"a\""), 400, "grammar"},
      {"grammar of names that are not there", grammar("root ::= " + repeated("a ", 100000)), 400,
       "grammar"},
      {"grammar in a ring", grammar("root ::= a\na ::= b\nb ::= a"), 400, "grammar"},
      {"grammar without an end", grammar("root ::= \"a\" root"), 400, "grammar"},
      {"grammar of nothing", grammar("root ::= \"\""), 200},
      {"grammar of four thousand rules",
       grammar(rules(4000, [](int i) { return i == 3999 ? "\"a\"" : "\"a\" r" + number(i + 1); })),
       400, "grammar"},
      {"grammar doubling",
       grammar(rules(30,
                     [](int i) {
                       const std::string next = " r" + number(i + 1);
                       return i == 29 ? "\"a\"" : next + next;
                     })),
       200},
      {"grammar of alternatives alike",
       grammar(list(
           "root ::= \"a\"", 2000, [](int i) { return "|\"aaa" + number(i) + "\""; }, "")),
       400, "grammar"},
      {"grammar of repetitions", grammar("root ::= ((\"a\"{4000}){4000}){4000}"), 400, "grammar"},
      {"grammar of a million", grammar("root ::= \"a\"{1000000}"), 400, "grammar"},
      {"grammar exploding", grammar("root ::= [ab]* \"a\" [ab]{25}"), 400, "grammar"},
      {"grammar of brackets", grammar("root ::= \"(\" root \")\" | [a-z]"), 200},
      {"grammar of stars", grammar("root ::= (((\"a\"*)*)*)* \"b\""), 200},
      {"grammar and schema", with(R"("grammar": "root ::= \"a\"", "json_schema": {})"), 400},
  };
}

std::vector<BodyCase> schema_cases() {
  return {
      {"oneOf empty", schema(R"({"oneOf": []})"), 400, "guided_json"},
      {"oneOf an object", schema(R"({"oneOf": {}})"), 400, "guided_json"},
      {"oneOf overlapping", schema(R"({"oneOf": [{"type": "number"}, {"type": "integer"}]})"), 400,
       "guided_json"},
      {"oneOf of kinds", schema(list(R"({"oneOf": [)", 60, [](int i) { return kind(i); }, "]}")),
       200},
      {"oneOf of a thousand kinds",
       schema(list(R"({"oneOf": [)", 1000, [](int i) { return kind(i); }, "]}")), 400,
       "guided_json"},
      {"oneOf in a ring", schema(R"({"oneOf": [{"$ref": "#/$defs/a"}, {"type": "null"}], "$defs": {
                  "a": {"oneOf": [{"$ref": "#/$defs/b"}]}, "b": {"oneOf": [{"$ref": "#/$defs/a"}]}}})"),
       400, "guided_json"},
      {"oneOf nested",
       schema(repeated(R"({"oneOf": [{"type": "null"}, )", 12) + R"({"type": "integer"})" +
              repeated("]}", 12)),
       400, "guided_json"},
      {"oneOf of large enums",
       schema(R"({"oneOf": [)" + list(R"({"enum": [)", 3000, number, "]},") +
              list(R"({"enum": [)", 3000, [](int i) { return number(9000 + i); }, "]}]}")),
       400, "guided_json"},
      {"multiple of nothing", schema(R"({"type": "integer", "multipleOf": 0})"), 400,
       "guided_json"},
      {"multiple of less", schema(R"({"type": "integer", "multipleOf": -3})"), 400, "guided_json"},
      {"multiple of a text", schema(R"({"type": "integer", "multipleOf": "3"})"), 400,
       "guided_json"},
      {"multiple of too much", schema(R"({"type": "integer", "multipleOf": 1e300})"), 400,
       "guided_json"},
      {"multiple of a thousand", schema(R"({"type": "integer", "multipleOf": 1000})"), 200},
      {"multiple of cents", schema(R"({"type": "number", "multipleOf": 0.01, "minimum": 0})"), 200},
      {"multiple of 997 everywhere",
       schema(list(
           R"({"type": "object", "properties": {)", 40,
           [](int i) { return "\"p" + number(i) + R"(": {"type": "integer", "multipleOf": 997})"; },
           "}}")),
       400, "guided_json"},
      {"no multiple between",
       schema(R"({"type": "integer", "multipleOf": 100, "minimum": 1, "maximum": 99})"), 400,
       "guided_json"},
      {"enum of a hundred thousand",
       schema(
           list(R"({"enum": [)", 100000, [](int i) { return number(i * 7919 % 1000003); }, "]}")),
       400, "guided_json"},
  };
}

std::vector<BodyCase> restriction_cases() {
  return {
      {"bad words a text", with(R"("bad_words": "x")"), 400, "bad_words"},
      {"bad words of numbers", with(R"("bad_words": [1])"), 400, "bad_words"},
      {"bad words an empty one", with(R"("bad_words": ["x", ""])"), 400, "bad_words"},
      {"bad words by the thousand",
       with(list(
           "\"bad_words\": [", 1000, [](int) { return "\"x\""; }, "]")),
       400, "bad_words"},
      {"bad words long", with("\"bad_words\": [\"" + std::string(5000, 'x') + "\"]"), 400,
       "bad_words"},
      {"bad words all alike",
       with(list(
           "\"bad_words\": [", 128, [](int i) { return "\"" + std::string(128 + i, 'a') + "\""; },
           "]")),
       200},
      {"bad words every letter",
       with(list(
           "\"bad_words\": [", 95,
           [](int i) { return Json(std::string(1, static_cast<char>(32 + i))).dump(); }, "]")),
       200},
      {"bad words and a schema", with(R"("bad_words": ["x"], "guided_json": {})"), 400,
       "bad_words"},
      {"allowed tokens a text", with(R"("allowed_token_ids": "5")"), 400, "allowed_token_ids"},
      {"allowed tokens beyond", with(R"("allowed_token_ids": [5, 300])"), 400, "allowed_token_ids"},
      {"allowed tokens beyond 32 bits", with(R"("allowed_token_ids": [99999999999])"), 400,
       "allowed_token_ids"},
      {"allowed tokens below", with(R"("allowed_token_ids": [-1])"), 400, "allowed_token_ids"},
      {"allowed tokens by the million",
       with(list(
           "\"allowed_token_ids\": [", 1000000, [](int) { return "5"; }, "]")),
       200},
      {"allowed tokens and a bias",
       with(R"("allowed_token_ids": [5], "logit_bias": {"5": -100, "6": 100})"), 200},
      {"allowed is only the end", with(R"("allowed_token_ids": [1], "min_tokens": 19)"), 200},
      {"prompt scores of a stream", with(R"("prompt_logprobs": 1, "stream": true)"), 400,
       "prompt_logprobs"},
  };
}

}  // namespace

std::vector<BodyCase> field_cases() {
  std::vector<BodyCase> cases = grammar_cases();
  for (auto part : {schema_cases, restriction_cases}) {
    for (BodyCase& each : part()) cases.push_back(std::move(each));
  }
  return cases;
}

std::vector<BodyCase> tool_cases() {
  const auto chat = [](const std::string& fields) {
    return R"({"messages": [{"role": "user", "content": "x"}], "max_tokens": 20, )" + fields + "}";
  };
  const auto function = [](const std::string& name, const std::string& parameters) {
    return R"({"type": "function", "function": {"name": ")" + name + R"(", "parameters": )" +
           parameters + "}}";
  };
  const auto tools = [&](const std::string& parameters) {
    return chat("\"tools\": [" + function("f", parameters) + "]");
  };
  const std::string one = "\"tools\": [" + function("f", "{}") + "]";
  return {
      {"tools by the thousand",
       chat(list(
           "\"tools\": [", 3000, [&](int i) { return function("f" + number(i), "{}"); }, "]")),
       400, "tools"},
      {"tools with one name",
       chat("\"tools\": [" + function("f", "{}") + "," + function("f", "{}") + "]"), 400,
       "tools[1]"},
      {"a hundred large tools",
       chat(list(
           "\"tools\": [", 100,
           [&](int i) {
             return function(
                 "f" + number(i),
                 list(R"({"type": "object", "properties": {)", 200,
                      [](int p) { return "\"p" + number(p) + R"(": {"type": "number"})"; }, "}}"));
           },
           "]")),
       400},
      {"tool of another type", chat(R"("tools": [{"type": "web_search"}])"), 400, "tools[0].type"},
      {"tool without a function", chat(R"("tools": [{"type": "function"}])"), 400,
       "tools[0].function"},
      {"tool name of markers", chat("\"tools\": [" + function("</tool_call>", "{}") + "]"), 400,
       "tools[0].function.name"},
      {"tool name long", chat("\"tools\": [" + function(std::string(65, 'f'), "{}") + "]"), 400,
       "tools[0].function.name"},
      {"tool parameters a list", tools("[]"), 400, "tools[0].function.parameters"},
      {"tool parameters unsupported", tools(R"({"type": "object", "not": {}})"), 400},
      {"tool parameters deep", tools(repeated(R"({"items": )", 40) + "{}" + repeated("}", 40)),
       400},
      {"tool parameters without an end",
       tools(R"({"properties": {"a": {"$ref": "#"}}, "required": ["a"]})"), 400},
      {"tool_choice without tools", chat(R"("tool_choice": "required")"), 400, "tool_choice"},
      {"tool_choice of another",
       chat(one + R"(, "tool_choice": {"type": "function", "function": {"name": "g"}})"), 400,
       "tool_choice"},
      {"tool_choice a number", chat(one + R"(, "tool_choice": 1)"), 400, "tool_choice"},
      {"tools and bad words", chat(one + R"(, "bad_words": ["x"])"), 400, "bad_words"},
      {"calls by the thousand",
       R"({"messages": [{"role": "assistant", "tool_calls": [)" +
           list(
               "", 1000,
               [](int i) {
                 return R"({"id": ")" + number(i) +
                        R"(", "function": {"name": "f", "arguments": "{}"}})";
               },
               "]}]}"),
       400, "messages[0].tool_calls"},
      {"call with broken arguments",
       R"({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]})",
       400, "messages[0].tool_calls[0].function.arguments"},
      {"template arguments of the server's own",
       chat(R"("chat_template_kwargs": {"messages": []})"), 400, "chat_template_kwargs.messages"},
      {"continue and begin",
       chat(R"("continue_final_message": true, "add_generation_prompt": true)"), 400,
       "continue_final_message"},
      {"continue nothing",
       R"({"messages": [{"role": "user", "content": ""}], "continue_final_message": true})", 400,
       "continue_final_message"},
  };
}

}  // namespace dsmoe::testing

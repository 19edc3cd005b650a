// Tools: in prompts, in answers plain and streamed, in every API, by schema.
#include <gtest/gtest.h>

#include <random>

#include "base/log.h"
#include "constrain/constraint.h"
#include "serve/small_server.h"
#include "serve/tool_shape.h"
#include "text/tools/call_reader.h"

namespace dsmoe::testing {
namespace {

class ToolsTest : public SmallServerTest {
 protected:
  static void SetUpTestSuite() { start(LogLevel::warning, {.positions = 1024}); }
};

const Json kTown{
    {"type", "object"},
    {"properties",
     {{"town", {{"type", "string"}, {"maxLength", 8}}}, {"days", {{"enum", {1, 2, 3}}}}}},
    {"required", {"town", "days"}},
    {"additionalProperties", false}};
const Json kNothing{
    {"type", "object"}, {"properties", Json::object()}, {"additionalProperties", false}};

Json tool(const std::string& name, const Json& parameters) {
  return {{"type", "function"}, {"function", {{"name", name}, {"parameters", parameters}}}};
}

Json asked(const Json& more) {
  Json body{{"messages", {{{"role", "user"}, {"content", "Weather?"}}}},
            {"tools", {tool("weather", kTown), tool("now", kNothing)}},
            {"max_tokens", 200},
            {"temperature", 1},
            {"seed", 5}};
  body.update(more);
  return body;
}

void expect_valid(const std::string& name, const std::string& text) {
  const Json arguments = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(arguments.is_object()) << text;
  if (name == "now") {
    EXPECT_TRUE(arguments.empty()) << text;
    return;
  }
  EXPECT_EQ(name, "weather");
  EXPECT_EQ(arguments.size(), 2u) << text;
  EXPECT_TRUE(arguments["town"].is_string()) << text;
  EXPECT_GE(arguments["days"], 1) << text;
  EXPECT_LE(arguments["days"], 3) << text;
}

TEST_F(ToolsTest, ARequiredCallIsValidWhateverTheModel) {
  for (int seed = 0; seed < 12; ++seed) {
    const Answer answer = server().chat(asked({{"tool_choice", "required"}, {"seed", seed}}));
    ASSERT_EQ(answer.status, 200) << answer.body;
    const Json choice = answer.json()["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "tool_calls") << answer.body;
    EXPECT_TRUE(choice["message"]["content"].is_null());
    ASSERT_GE(choice["message"]["tool_calls"].size(), 1u);
    for (const Json& call : choice["message"]["tool_calls"]) {
      EXPECT_EQ(call["type"], "function");
      EXPECT_TRUE(call["id"].get<std::string>().starts_with("call_"));
      expect_valid(call["function"]["name"], call["function"]["arguments"]);
    }
  }
}

// A tool named "schema" is not a schema beside the tools: each has its own constraint.
TEST_F(ToolsTest, ToolsAndFormatsOfTheSameWordsStayApart) {
  const Json parameters{{"const", {{"x", 1}}}};
  const Json both = asked({{"tools", {tool("now", kNothing), tool("schema", parameters)}}});
  SmallServer fresh({}, {.positions = 1024});
  const Json expected = fresh.chat(both).json()["choices"];
  Json format{{"type", "json_schema"}};
  format["json_schema"] = {{"name", "n"}, {"schema", parameters}};
  const Answer formatted =
      server().chat(asked({{"tools", {tool("now", kNothing)}}, {"response_format", format}}));
  ASSERT_EQ(formatted.status, 200) << formatted.body;
  EXPECT_EQ(server().chat(both).json()["choices"], expected);
}

// Templates get a copy of them, and trees of a million values take a hundred megabytes each.
TEST_F(ToolsTest, TreesForTheTemplateHaveLimits) {
  const Json many(70000, Json::array());
  Json large{{"type", "object"}};
  large["other"] = many;
  const std::pair<const char*, Json> cases[] = {{"tools", {tool("now", large)}},
                                                {"chat_template_kwargs", {{"other", many}}}};
  for (const auto& [field, value] : cases) {
    Json body = asked({{"max_tokens", 1}});
    body[field] = value;
    const Answer answer = server().chat(body);
    EXPECT_EQ(answer.status, 400) << field << answer.body.substr(0, 200);
    EXPECT_EQ(answer.json()["error"]["param"], field);
  }
}

TEST_F(ToolsTest, ANamedToolIsTheOneCalledOnce) {
  for (const char* name : {"weather", "now"}) {
    const Json choice{{"type", "function"}, {"function", {{"name", name}}}};
    const Json answer = server().chat(asked({{"tool_choice", choice}})).json();
    const Json calls = answer["choices"][0]["message"]["tool_calls"];
    ASSERT_EQ(calls.size(), 1u) << answer;
    EXPECT_EQ(calls[0]["function"]["name"], name);
    expect_valid(name, calls[0]["function"]["arguments"]);
  }
}

TEST_F(ToolsTest, StreamedCallsAddUpToThePlainOnes) {
  for (int seed = 0; seed < 6; ++seed) {
    Json body = asked({{"tool_choice", "required"}, {"seed", seed}});
    const Json plain = server().chat(body).json()["choices"][0];
    body["stream"] = true;
    Json calls = Json::array();
    std::string finish;
    for (const Json& event : server().chat(body).events()) {
      const Json& choice = event["choices"][0];
      EXPECT_EQ(choice["delta"].value("content", ""), "");
      for (const Json& call : choice["delta"].value("tool_calls", Json::array())) {
        const std::size_t index = call["index"];
        if (index == calls.size()) {
          calls.push_back(call);
        } else {
          ASSERT_EQ(index + 1, calls.size());
          calls[index]["function"]["arguments"].get_ref<std::string&>() +=
              call["function"]["arguments"].get<std::string>();
        }
      }
      if (choice["finish_reason"].is_string()) finish = choice["finish_reason"];
    }
    EXPECT_EQ(finish, "tool_calls");
    const Json& expected = plain["message"]["tool_calls"];
    ASSERT_EQ(calls.size(), expected.size());
    for (std::size_t i = 0; i < calls.size(); ++i) {
      EXPECT_EQ(calls[i]["function"], expected[i]["function"]);
    }
  }
}

TEST_F(ToolsTest, ParallelCallsCanBeForbidden) {
  int most = 0;
  for (int seed = 0; seed < 12; ++seed) {
    Json body = asked({{"tool_choice", "required"}, {"seed", seed}, {"max_tokens", 400}});
    const Json many = server().chat(body).json()["choices"][0]["message"]["tool_calls"];
    most = std::max(most, static_cast<int>(many.size()));
    body["parallel_tool_calls"] = false;
    EXPECT_EQ(server().chat(body).json()["choices"][0]["message"]["tool_calls"].size(), 1u);
  }
  EXPECT_GT(most, 1);
}

TEST_F(ToolsTest, AnAnswerMayBeTextAlone) {
  const Json text = server().chat(asked({{"max_tokens", 20}})).json()["choices"][0];
  EXPECT_TRUE(text["message"]["content"].is_string());
  EXPECT_FALSE(text["message"].contains("tool_calls"));
  // Cut by the limit, not closed by it.
  EXPECT_EQ(text["finish_reason"], "length");
  EXPECT_FALSE(text.contains("closed_by_max_tokens"));
}

serve::ToolUse two_tools(serve::ToolChoice choice) {
  return {.callable = {{"weather", OrderedJson(kTown)}, {"now", OrderedJson(kNothing)}},
          .choice = choice};
}

class Answers {
 public:
  explicit Answers(const constrain::Shape& shape)
      : text_(small_text()),
        constraint_(std::make_shared<const constrain::Constraint>(
            shape, constrain::vocabulary_of(*text_.tokenizer, 300))) {}

  bool may_begin_with(std::string_view text) const {
    constrain::Matcher matcher(constraint_);
    constrain::TokenBits bits;
    for (const int32_t id : text_.tokenizer->encode(text, {.add_special = text::AddSpecial::no})) {
      matcher.allowed(1000, bits);
      if (!constrain::has_token(bits, id)) return false;
      matcher.take(id);
    }
    return true;
  }
  // One of random tokens, whole after at most 500.
  std::string random(uint64_t seed) const {
    std::mt19937_64 random(seed);
    constrain::Matcher matcher(constraint_);
    constrain::TokenBits bits;
    std::string text;
    for (int64_t left = 500; !matcher.must_end() && left > 0; --left) {
      matcher.allowed(left, bits);
      std::vector<int32_t> ids;
      for (int32_t id = 0; id < 300; ++id) {
        if (constrain::has_token(bits, id)) ids.push_back(id);
      }
      if (ids.empty()) break;
      const int32_t id = ids[random() % ids.size()];
      matcher.take(id);
      text += text_.tokenizer->id_to_bytes(id).value_or("");
    }
    EXPECT_TRUE(matcher.may_end()) << text;
    return text;
  }

 private:
  serve::TextParts text_;
  std::shared_ptr<const constrain::Constraint> constraint_;
};

TEST(ToolShape, ArgumentsAreHeldToTheSchemaOnceACallBegins) {
  const Answers answers(serve::tool_answer(text::hermes_syntax(),
                                           two_tools(serve::ToolChoice::automatic), std::nullopt));
  const std::string begin = "Hm.<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"days\": ";
  EXPECT_TRUE(answers.may_begin_with("Hm, <tool is no call."));
  EXPECT_TRUE(answers.may_begin_with(begin + "2, \"town\": \"X\"}}\n</tool_call>"));
  EXPECT_TRUE(answers.may_begin_with(begin + "2, \"town\": \"X\"}}\n</tool_call>\n<tool_call>"));
  EXPECT_FALSE(answers.may_begin_with(begin + "7"));
  EXPECT_FALSE(answers.may_begin_with(begin + "2}"));
  EXPECT_FALSE(answers.may_begin_with(begin + "2, \"town\": \"X\"}}\n</tool_call>\nand text"));
  EXPECT_FALSE(answers.may_begin_with("<tool_call>\n{\"name\": \"other"));
  EXPECT_FALSE(answers.may_begin_with("<tool_call>Hello"));
}

TEST(ToolShape, EveryFamilysCallsAreReadAgain) {
  for (const char* marker :
       {"<tool_call>", "<tool_call><arg_key>", "<tool_call><function=", "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁begin｜>```json", "<|tool_calls_section_begin|>"}) {
    const text::CallSyntax& syntax = *text::find_call_syntax(marker);
    const Answers answers(
        serve::tool_answer(syntax, two_tools(serve::ToolChoice::required), std::nullopt));
    for (uint64_t seed = 0; seed < 8; ++seed) {
      const std::string answer = answers.random(seed);
      text::CallReader reader(syntax, {{"weather", {"town"}}});
      std::string name, arguments;
      int64_t num_ended = 0;
      for (const text::CallEvent& event : reader.push(answer)) {
        using Kind = text::CallEvent::Kind;
        EXPECT_NE(event.kind, Kind::text) << event.text << " in " << answer;
        if (event.kind == Kind::begin) name = event.text;
        if (event.kind == Kind::begin) arguments.clear();
        if (event.kind == Kind::arguments) arguments += event.text;
        if (event.kind != Kind::end) continue;
        ++num_ended;
        // Texts without quotes are as long as they like, and of any bytes.
        if (syntax.body != text::CallBody::key_value) expect_valid(name, arguments);
        EXPECT_TRUE(Json::accept(arguments)) << arguments;
      }
      EXPECT_GE(num_ended, 1) << syntax.name << ": " << answer;
      EXPECT_EQ(num_ended, reader.num_calls()) << answer;
    }
  }
}

// A text with an enum is written without quotes and read as one of its values; what a tool defines
// may be referred to.
TEST(ToolShape, TextsWithoutQuotesAreOfTheirEnum) {
  const OrderedJson parameters = parse_ordered_json(
      R"({"properties": {"unit": {"type": "string", "enum": ["C", "F"]}, "at": {"$ref": "#/$defs/at"}},
          "required": ["unit", "at"], "$defs": {"at": {"type": "integer", "maximum": 9, "minimum": 5}}})",
      "parameters");
  for (const char* marker : {"<tool_call><arg_key>", "<tool_call><function="}) {
    const text::CallSyntax& syntax = *text::find_call_syntax(marker);
    const Answers answers(serve::tool_answer(
        syntax, {.callable = {{"weather", parameters}}, .choice = serve::ToolChoice::required},
        std::nullopt));
    for (uint64_t seed = 0; seed < 8; ++seed) {
      text::CallReader reader(syntax, {{"weather", {"unit"}}});
      std::string arguments;
      for (const text::CallEvent& event : reader.push(answers.random(seed))) {
        if (event.kind == text::CallEvent::Kind::begin) arguments.clear();
        if (event.kind == text::CallEvent::Kind::arguments) arguments += event.text;
      }
      const Json read = Json::parse(arguments, nullptr, false);
      ASSERT_TRUE(read.is_object()) << arguments;
      EXPECT_TRUE(read["unit"] == "C" || read["unit"] == "F") << arguments;
      EXPECT_TRUE(read["at"] >= 5 && read["at"] <= 9) << arguments;
    }
  }
}

TEST_F(ToolsTest, ToolsAreInThePromptAndNoneLeavesThemOut) {
  const auto prompt = [&](const Json& body) {
    return server().post("/apply-template", body).json()["prompt"].get<std::string>();
  };
  const std::string with = prompt(asked(Json::object()));
  EXPECT_NE(with.find("{\"name\":\"weather\",\"parameters\":{"), std::string::npos) << with;
  EXPECT_EQ(prompt(asked({{"tool_choice", "none"}})), "<|begin|>User: Weather?\n\nAssistant:");
  const Json turns{{{"role", "user"}, {"content", "Weather?"}},
                   {{"role", "assistant"},
                    {"content", nullptr},
                    {"tool_calls",
                     {{{"id", "1"},
                       {"type", "function"},
                       {"function", {{"name", "weather"}, {"arguments", "{\"town\": \"X\"}"}}}}}}},
                   {{"role", "tool"}, {"tool_call_id", "1"}, {"content", "sun"}}};
  EXPECT_EQ(prompt({{"messages", turns}}),
            "<|begin|>User: Weather?\n\nAssistant: <tool_call>\n{\"name\": \"weather\", "
            "\"arguments\": {\"town\":\"X\"}}\n</tool_call><|end|>User: <tool_response>\nsun\n"
            "</tool_response>\n\nAssistant:");
}

TEST_F(ToolsTest, ResponsesAndMessagesCallTools) {
  const Json response =
      server()
          .post("/v1/responses",
                {{"input", "Weather?"},
                 {"tools", {{{"type", "function"}, {"name", "weather"}, {"parameters", kTown}}}},
                 {"tool_choice", "required"},
                 {"seed", 3},
                 {"parallel_tool_calls", false}})
          .json();
  ASSERT_EQ(response["output"].size(), 1u) << response;
  EXPECT_EQ(response["status"], "completed");
  EXPECT_EQ(response["output"][0]["type"], "function_call");
  expect_valid(response["output"][0]["name"], response["output"][0]["arguments"]);
  Json body{{"messages", {{{"role", "user"}, {"content", "Weather?"}}}},
            {"tools", {{{"name", "weather"}, {"input_schema", kTown}}}},
            {"tool_choice", {{"type", "any"}, {"disable_parallel_tool_use", true}}},
            {"seed", 3},
            {"max_tokens", 200}};
  const Json message = server().post("/v1/messages", body).json();
  EXPECT_EQ(message["stop_reason"], "tool_use") << message;
  ASSERT_EQ(message["content"].size(), 1u);
  EXPECT_EQ(message["content"][0]["type"], "tool_use");
  expect_valid("weather", message["content"][0]["input"].dump());
  // The call and its result go back.
  body["messages"].push_back({{"role", "assistant"}, {"content", message["content"]}});
  body["messages"].push_back({{"role", "user"},
                              {"content",
                               {{{"type", "tool_result"},
                                 {"tool_use_id", message["content"][0]["id"]},
                                 {"content", "sun"}}}}});
  EXPECT_EQ(server().post("/v1/messages", body).status, 200);
}

TEST_F(ToolsTest, WrongToolsAreRefusedByName) {
  const auto param = [&](const Json& more) -> Json {
    const Answer answer = server().chat(asked(more));
    EXPECT_EQ(answer.status, 400) << answer.body;
    return answer.json()["error"]["param"];
  };
  Json many = Json::array();
  for (int i = 0; i < 3000; ++i) many.push_back(tool("t" + std::to_string(i), kNothing));
  EXPECT_EQ(param({{"tools", many}}), "tools");
  EXPECT_EQ(param({{"tools", {{{"type", "web_search"}}}}}), "tools[0].type");
  EXPECT_EQ(param({{"tools", {tool("a b", kNothing)}}}), "tools[0].function.name");
  EXPECT_EQ(param({{"tools", {tool(std::string(65, 'x'), kNothing)}}}), "tools[0].function.name");
  EXPECT_EQ(param({{"tools", {tool("a", kNothing), tool("a", kNothing)}}}), "tools[1]");
  EXPECT_EQ(param({{"tools", {tool("a", 5)}}}), "tools[0].function.parameters");
  EXPECT_EQ(param({{"tool_choice", "often"}}), "tool_choice");
  EXPECT_EQ(param({{"tool_choice", {{"type", "function"}, {"function", {{"name", "x"}}}}}}),
            "tool_choice");
  EXPECT_EQ(param({{"tools", nullptr}, {"tool_choice", "required"}}), "tool_choice");
  EXPECT_EQ(param({{"tools", {tool("a", {{"type", "object"}, {"$ref", "#/nowhere"}})}}}), "tools");
}

}  // namespace
}  // namespace dsmoe::testing

// Constrained answers over HTTP: every spelling, beside everything else, and what strangers send.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "base/log.h"
#include "serve/constraint_field.h"
#include "serve/small_server.h"
#include "serve/structured_cases.h"

namespace dsmoe::testing {
namespace {

using Clock = std::chrono::steady_clock;

class Structured : public SmallServerTest {
 protected:
  static void SetUpTestSuite() { start(LogLevel::quiet); }
  // The order of keys matters: bodies are text.
  static Answer complete(const std::string& fields) {
    return Client(server().port())
        .request("POST", "/v1/completions", R"({"prompt": "The cat", )" + fields + "}");
  }
  static std::string text_of(const std::string& fields) {
    const Answer answer = complete(fields);
    EXPECT_EQ(answer.status, 200) << answer.body;
    if (answer.status != 200) return "";
    EXPECT_EQ(answer.json()["choices"][0]["finish_reason"], "stop") << answer.body;
    return answer.json()["choices"][0]["text"];
  }
};

constexpr const char* kSchema =
    R"({"type": "object", "properties": {"z": {"type": "integer"}, "a": {"enum": ["x", "y"]}},
        "required": ["z", "a"], "additionalProperties": false})";

TEST_F(Structured, EverySpellingOfOneSchemaGivesTheSame) {
  const std::string schema = kSchema;
  const std::string common = R"("max_tokens": 60, "seed": 5, )";
  const std::string expected = text_of(common + R"("guided_json": )" + schema);
  ASSERT_TRUE(expected.starts_with("{")) << expected;
  EXPECT_LT(expected.find("\"z\""), expected.find("\"a\""));  // not sorted
  EXPECT_TRUE(Json::parse(expected)["z"].is_number_integer());
  for (
      const std::string& field :
      {R"("response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": true, "schema": )" +
           schema + "}}",
       R"("response_format": {"type": "json_object", "schema": )" + schema + "}",
       R"("response_format": {"type": "json_schema", "schema": )" + schema + "}",
       R"("structured_outputs": {"json": )" + schema + "}", R"("json_schema": )" + schema,
       "\"guided_json\": " + Json(schema).dump()}) {
    EXPECT_EQ(text_of(common + field), expected) << field;
  }
}

TEST_F(Structured, ChoicesPatternsAndObjects) {
  for (int seed = 0; seed < 10; ++seed) {
    const std::string common = fmt::format(R"("max_tokens": 30, "seed": {}, )", seed);
    const std::string choice = text_of(common + R"("guided_choice": ["the dog", "the fog", "é"])");
    EXPECT_TRUE(choice == "the dog" || choice == "the fog" || choice == "é") << choice;
    EXPECT_EQ(text_of(common + R"("structured_outputs": {"choice": ["the dog", "the fog", "é"]})"),
              choice);
    const std::string digits = text_of(common + R"("guided_regex": "[0-9]{2,4}")");
    EXPECT_TRUE(digits.size() >= 2 && digits.size() <= 4 &&
                digits.find_first_not_of("0123456789") == std::string::npos)
        << digits;
    EXPECT_EQ(text_of(common + R"("regex": "^[0-9]{2,4}$")"), digits);
    EXPECT_TRUE(
        Json::parse(text_of(common + R"("response_format": {"type": "json_object"})")).is_object());
  }
}

TEST_F(Structured, EverySpellingOfAGrammarGivesTheSame) {
  const std::string grammar =
      Json("root ::= \"<\" word (\" \" word)* \">\"\nword ::= [a-f]{2,4} | \"é\"").dump();
  const std::string common = R"("max_tokens": 30, "seed": 7, )";
  const std::string expected = text_of(common + R"("guided_grammar": )" + grammar);
  ASSERT_TRUE(expected.starts_with("<") && expected.ends_with(">")) << expected;
  for (const std::string& field : {R"("grammar": )" + grammar, R"("ebnf": )" + grammar,
                                   R"("structured_outputs": {"grammar": )" + grammar + "}"}) {
    EXPECT_EQ(text_of(common + field), expected) << field;
  }
  const Answer wrong = complete(R"("grammar": "root ::= (\"a\"")");
  EXPECT_EQ(wrong.status, 400);
  EXPECT_EQ(wrong.json()["error"]["param"], "grammar");
  EXPECT_EQ(wrong.json()["error"]["message"], "grammar: line 1: a ( without its )");
}

// An answer that would have gone on says so, in every form; one that would not does not.
TEST_F(Structured, AnswersThatMaxTokensClosedSaySo) {
  const auto closed = [](const Json& choice) {
    return choice.value("closed_by_max_tokens", false);
  };
  const std::string endless = R"("temperature": 1, "guided_regex": "[a-z]{2,200}")";
  const Json cut = complete(R"("max_tokens": 5, )" + endless).json()["choices"][0];
  EXPECT_EQ(cut["finish_reason"], "stop");
  EXPECT_TRUE(closed(cut)) << cut;
  const Json list = complete(
                        R"("max_tokens": 12, "temperature": 1, "guided_json":
                        {"type": "array", "items": {"type": "integer"}, "minItems": 2}, "seed": 2)")
                        .json()["choices"][0];
  EXPECT_TRUE(Json::accept(list["text"].get<std::string>())) << list;
  EXPECT_TRUE(closed(list)) << list;
  const Json whole =
      complete(R"("max_tokens": 50, "guided_choice": ["the dog"])").json()["choices"][0];
  EXPECT_EQ(whole["text"], "the dog");
  EXPECT_FALSE(whole.contains("closed_by_max_tokens")) << whole;
  // Too short for anything: cut, not closed.
  const Json begun = complete(R"("max_tokens": 1, "guided_json": {"type": "object"}, "seed": 1,
                              "logit_bias": {"93": 100})")
                         .json()["choices"][0];
  EXPECT_EQ(begun["finish_reason"] == "length", !Json::accept(begun["text"].get<std::string>()));
  bool told = false;
  for (const Json& event : complete(R"("max_tokens": 5, "stream": true, )" + endless).events()) {
    for (const Json& choice : event["choices"]) {
      EXPECT_EQ(closed(choice), choice["finish_reason"] == "stop");
      told = told || closed(choice);
    }
  }
  EXPECT_TRUE(told);
  Client client(server().port());
  const std::string fields = R"("messages": [{"role": "user", "content": "x"}], "max_tokens": 5, )";
  const Json message = client.request("POST", "/v1/messages", "{" + fields + endless + "}").json();
  EXPECT_TRUE(closed(message)) << message;
  EXPECT_EQ(message["stop_reason"], "end_turn");
  const Json response = Client(server().port())
                            .request("POST", "/v1/responses",
                                     R"({"input": "x", "max_output_tokens": 5, )" + endless + "}")
                            .json();
  EXPECT_TRUE(closed(response)) << response;
  EXPECT_EQ(response["status"], "completed");
}

TEST_F(Structured, StreamsChoicesScoresAndStops) {
  const std::string common =
      R"("max_tokens": 50, "seed": 9, "temperature": 1, "guided_json": )" + std::string(kSchema);
  const Json plain = complete(common + R"(, "n": 3, "logprobs": 2)").json();
  ASSERT_EQ(plain["choices"].size(), 3u) << plain;
  for (const Json& choice : plain["choices"]) {
    EXPECT_TRUE(Json::parse(choice["text"].get<std::string>()).is_object());
    std::string joined;
    for (const Json& token : choice["logprobs"]["tokens"]) joined += token.get<std::string>();
    EXPECT_EQ(joined, choice["text"]);
  }
  // The first is what it is alone.
  EXPECT_EQ(text_of(common), plain["choices"][0]["text"]);
  std::vector<std::string> texts(3);
  for (const Json& event : complete(common + R"(, "n": 3, "stream": true)").events()) {
    for (const Json& choice : event["choices"]) {
      texts[choice["index"].get<std::size_t>()] += choice["text"].get<std::string>();
    }
  }
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(texts[i], plain["choices"][i]["text"]);
  // A stop string cuts; what is there is a beginning.
  const std::string cut = text_of(common + R"(, "stop": "\"a")");
  EXPECT_EQ(cut.find("\"a"), std::string::npos);
  EXPECT_TRUE(text_of(common).starts_with(cut));
}

TEST_F(Structured, ChatAnswersLookAsTheyMust) {
  const Answer answer =
      Client(server().port())
          .request(
              "POST", "/v1/chat/completions",
              R"({"messages": [{"role": "user", "content": "x"}], "max_tokens": 60, "logprobs": true, "response_format":
          {"type": "json_schema", "json_schema": {"name": "n", "schema": )" +
                  std::string(kSchema) + "}}}");
  ASSERT_EQ(answer.status, 200) << answer.body;
  const Json message = answer.json()["choices"][0];
  EXPECT_EQ(message["finish_reason"], "stop");
  EXPECT_TRUE(Json::parse(message["message"]["content"].get<std::string>()).contains("a"));
}

TEST_F(Structured, RefusesByPath) {
  const Answer answer = complete(
      R"("response_format": {"type": "json_schema", "json_schema": {"schema": {"properties": {"a": {"oneOf": []}}}}})");
  EXPECT_EQ(answer.status, 400);
  const Json error = answer.json()["error"];
  EXPECT_EQ(error["param"], "response_format.json_schema.schema");
  EXPECT_TRUE(error["message"].get<std::string>().starts_with(
      "response_format.json_schema.schema.properties.a.oneOf: "))
      << error;
}

// What takes long to prepare does not stop the thread of HTTP, however its name is written.
TEST_F(Structured, ANameWithEscapesGoesToTheWorkerToo) {
  using serve::may_have_constraint;
  EXPECT_TRUE(may_have_constraint(R"({"guided_regex": "a"})"));
  EXPECT_TRUE(may_have_constraint(R"({"guided_r\u0065gex": "a"})"));
  EXPECT_TRUE(may_have_constraint(R"({"to\u006fls": []})"));
  EXPECT_TRUE(may_have_constraint(R"({"\u0072esponse_format": {"type": "text"}})"));
  EXPECT_TRUE(may_have_constraint(R"({"\u0074ext": {"f\u006frmat": {}}})"));
  EXPECT_FALSE(may_have_constraint(R"({"prompt": "caf\u00e9 \ud83d\ude00 \n \"tool\""})"));
  EXPECT_EQ(text_of(R"("max_tokens": 30, "guided_ch\u006fice": ["the dog"])"), "the dog");
}

// Right status, no crash, and the server answers others in the meantime.
void expect_statuses(SmallServer& server, const std::vector<BodyCase>& cases,
                     const std::string& path) {
  std::atomic<bool> done{false};
  double slowest_health = 0;
  std::thread health([&] {
    while (!done) {
      const auto start = Clock::now();
      EXPECT_EQ(server.get("/health").status, 200);
      slowest_health =
          std::max(slowest_health, std::chrono::duration<double>(Clock::now() - start).count());
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  });
  double slowest = 0;
  for (const BodyCase& each : cases) {
    const auto start = Clock::now();
    const Answer answer = Client(server.port()).request("POST", path, each.body);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    slowest = std::max(slowest, seconds);
    EXPECT_EQ(answer.status, each.status) << each.name << ": " << answer.body.substr(0, 300);
    if (each.status == 200 || answer.status == 200) continue;
    const Json error = Json::parse(answer.body, nullptr, false);
    EXPECT_TRUE(error.is_object()) << each.name;
    if (error.is_object() && *each.param != '\0') {
      EXPECT_EQ(error["error"]["param"], each.param) << each.name << ": " << error;
    }
  }
  done = true;
  health.join();
  ::testing::Test::RecordProperty("slowest_case_ms", static_cast<int>(slowest * 1e3));
  ::testing::Test::RecordProperty("slowest_health_ms", static_cast<int>(slowest_health * 1e3));
  EXPECT_LT(slowest_health, 2);
}

TEST_F(Structured, SixtyKindsOfAbuse) {
  const std::vector<BodyCase> cases = structured_cases();
  EXPECT_GE(cases.size(), 60u);
  expect_statuses(server(), cases, "/v1/completions");
}

TEST_F(Structured, SixtyKindsOfAbuseOfTheOtherFields) {
  EXPECT_GE(field_cases().size() + tool_cases().size(), 60u);
  expect_statuses(server(), field_cases(), "/v1/completions");
  expect_statuses(server(), tool_cases(), "/v1/chat/completions");
}

}  // namespace
}  // namespace dsmoe::testing

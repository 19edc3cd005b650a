// /v1/responses and /v1/messages: the same engine's answers in other forms.
#include <gtest/gtest.h>

#include <sstream>

#include "base/log.h"
#include "serve/small_server.h"

namespace dsmoe::testing {
namespace {

class DialectsTest : public SmallServerTest {};

// "event: NAME\ndata: JSON\n\n": each name is that in the data.
std::vector<Json> named_events(const Answer& answer) {
  std::vector<Json> events;
  std::istringstream lines(answer.body);
  std::string name;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("event: ")) name = line.substr(7);
    if (!line.starts_with("data: ")) continue;
    events.push_back(Json::parse(line.substr(6)));
    EXPECT_EQ(events.back()["type"], name);
  }
  return events;
}

std::vector<std::string> types_of(const std::vector<Json>& events) {
  std::vector<std::string> types;
  for (const Json& event : events) {
    const std::string type = event["type"];
    if (types.empty() || types.back() != type) types.push_back(type);
  }
  return types;
}

Json response_body(const Json& more = Json::object()) {
  Json body{{"model", "small"},
            {"input", "The dog"},
            {"instructions", "Be brief."},
            {"max_output_tokens", 8},
            {"temperature", 0}};
  body.update(more);
  return body;
}

Json message_body(const Json& more = Json::object()) {
  Json body{{"model", "small"},
            {"system", "Be brief."},
            {"messages", {{{"role", "user"}, {"content", "The dog"}}}},
            {"max_tokens", 8},
            {"temperature", 0}};
  body.update(more);
  return body;
}

// An answer says them again, up to three times, on the thread of HTTP.
TEST_F(DialectsTest, WhatIsSaidAgainHasLimits) {
  const Json pairs{{"customer", "17"}, {"note", std::string(500, 'n')}};
  const Answer usual = server().post("/v1/responses", response_body({{"metadata", pairs}}));
  ASSERT_EQ(usual.status, 200) << usual.body;
  EXPECT_EQ(usual.json()["metadata"], pairs);
  const Json many(50000, Json::array()), long_text = std::string(2 << 20, 'x');
  for (const Json& metadata : {Json{{"a", many}}, Json{{"a", long_text}}}) {
    for (const bool stream : {false, true}) {
      const Answer answer = server().post(
          "/v1/responses", response_body({{"metadata", metadata}, {"stream", stream}}));
      EXPECT_EQ(answer.status, 400) << answer.body.substr(0, 300);
      EXPECT_EQ(answer.json()["error"]["param"], "metadata");
    }
  }
  Json tool{{"type", "function"}, {"name", "f"}, {"other", many}};
  const Answer tools =
      server().post("/v1/responses", response_body({{"tools", {tool}}, {"tool_choice", "none"}}));
  EXPECT_EQ(tools.status, 400) << tools.body.substr(0, 300);
  EXPECT_EQ(tools.json()["error"]["param"], "tools");
}

TEST_F(DialectsTest, AResponseIsTheChatsAnswer) {
  const Json chat = server()
                        .chat({{"messages",
                                {{{"role", "system"}, {"content", "Be brief."}},
                                 {{"role", "user"}, {"content", "The dog"}}}},
                               {"max_tokens", 8},
                               {"temperature", 0}})
                        .json();
  const std::string text = chat["choices"][0]["message"]["content"];
  const Answer answer = server().post("/v1/responses", response_body());
  ASSERT_EQ(answer.status, 200) << answer.body;
  const Json response = answer.json();
  EXPECT_EQ(response["object"], "response");
  EXPECT_EQ(response["status"], "incomplete");
  EXPECT_EQ(response["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(response["instructions"], "Be brief.");
  EXPECT_EQ(response["output"][0]["content"][0]["text"], text);
  EXPECT_EQ(response["usage"]["input_tokens"], chat["usage"]["prompt_tokens"]);
  EXPECT_EQ(response["usage"]["output_tokens"], 8);
  const Json items{
      {"input",
       {{{"role", "user"}, {"content", {{{"type", "input_text"}, {"text", "The dog"}}}}}}}};
  EXPECT_EQ(server().post("/v1/responses", response_body(items)).json()["output"][0]["content"],
            response["output"][0]["content"]);

  const std::vector<Json> events =
      named_events(server().post("/v1/responses", response_body({{"stream", true}})));
  EXPECT_EQ(
      types_of(events),
      (std::vector<std::string>{
          "response.created", "response.in_progress", "response.output_item.added",
          "response.content_part.added", "response.output_text.delta", "response.output_text.done",
          "response.content_part.done", "response.output_item.done", "response.incomplete"}));
  std::string streamed;
  for (std::size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i]["sequence_number"], i);
    if (events[i]["type"] == "response.output_text.delta") {
      streamed += events[i]["delta"].get<std::string>();
    }
  }
  EXPECT_EQ(streamed, text);
  EXPECT_EQ(events.back()["response"]["output"][0]["content"][0]["text"], text);
  EXPECT_EQ(events.back()["response"]["usage"]["output_tokens"], 8);
}

TEST_F(DialectsTest, AMessageIsTheChatsAnswer) {
  const std::string text =
      server().post("/v1/responses", response_body()).json()["output"][0]["content"][0]["text"];
  const Answer answer = server().post("/v1/messages", message_body());
  ASSERT_EQ(answer.status, 200) << answer.body;
  const Json message = answer.json();
  EXPECT_EQ(message["type"], "message");
  EXPECT_EQ(message["content"], (Json{{{"type", "text"}, {"text", text}}}));
  EXPECT_EQ(message["stop_reason"], "max_tokens");
  EXPECT_TRUE(message["stop_sequence"].is_null());
  EXPECT_EQ(message["usage"]["output_tokens"], 8);
  const Json blocks{
      {"system", {{{"type", "text"}, {"text", "Be brief."}}}},
      {"messages", {{{"role", "user"}, {"content", {{{"type", "text"}, {"text", "The dog"}}}}}}}};
  EXPECT_EQ(server().post("/v1/messages", message_body(blocks)).json()["content"],
            message["content"]);
  const int64_t counted =
      server().post("/v1/messages/count_tokens", message_body()).json()["input_tokens"];
  EXPECT_EQ(counted, message["usage"]["input_tokens"].get<int64_t>() +
                         message["usage"]["cache_read_input_tokens"].get<int64_t>());

  const std::vector<Json> events =
      named_events(server().post("/v1/messages", message_body({{"stream", true}})));
  EXPECT_EQ(types_of(events),
            (std::vector<std::string>{"message_start", "ping", "content_block_start",
                                      "content_block_delta", "content_block_stop", "message_delta",
                                      "message_stop"}));
  std::string streamed;
  for (const Json& event : events) {
    if (event["type"] == "content_block_delta") streamed += event["delta"]["text"];
  }
  EXPECT_EQ(streamed, text);
  EXPECT_EQ(events[events.size() - 2]["delta"]["stop_reason"], "max_tokens");
}

TEST_F(DialectsTest, AnAssistantsTextAtTheEndIsTheBeginningOfTheAnswer) {
  const Json messages{{{"role", "user"}, {"content", "The dog"}},
                      {{"role", "assistant"}, {"content", "sat"}}};
  const int64_t whole =
      server()
          .post("/v1/messages/count_tokens", message_body({{"messages", messages}}))
          .json()["input_tokens"];
  const Json ids =
      server()
          .post("/tokenize", {{"prompt", "Be brief.\n\nUser: The dog\n\nAssistant: sat"}})
          .json()["tokens"];
  EXPECT_EQ(whole, static_cast<int64_t>(ids.size()));
}

TEST_F(DialectsTest, AStopSequenceIsNamed) {
  const std::string text =
      server().post("/v1/messages", message_body()).json()["content"][0]["text"];
  std::size_t end = 1;
  while (end < text.size() && (text[end] & 0xC0) == 0x80) ++end;
  const std::string first = text.substr(0, end);
  const Json stopped =
      server().post("/v1/messages", message_body({{"stop_sequences", {first}}})).json();
  EXPECT_EQ(stopped["stop_reason"], "stop_sequence");
  EXPECT_EQ(stopped["stop_sequence"], first);
}

TEST_F(DialectsTest, AMessageIsHeldToASchema) {
  const Json schema{{"type", "object"},
                    {"properties", {{"days", {{"enum", {1, 2, 3}}}}}},
                    {"required", {"days"}},
                    {"additionalProperties", false}};
  const Json format{{"type", "json_schema"}, {"schema", schema}};
  for (const Json& more : {Json{{"output_config", {{"format", format}}}},
                           Json{{"output_format", format}},  // as older clients say it
                           Json{{"output_config", {{"format", format}, {"effort", nullptr}}}}}) {
    Json body = message_body(more);
    body["max_tokens"] = 60;
    const Answer answer = server().post("/v1/messages", body);
    ASSERT_EQ(answer.status, 200) << answer.body;
    const Json told = Json::parse(answer.json()["content"][0]["text"].get<std::string>());
    EXPECT_EQ(told.size(), 1u) << told;
    EXPECT_TRUE(told["days"] == 1 || told["days"] == 2 || told["days"] == 3) << told;
  }
  const auto refusal = [&](const Json& more) -> std::string {
    const Answer answer = server().post("/v1/messages", message_body(more));
    EXPECT_EQ(answer.status, 400) << answer.body;
    return answer.json()["error"]["message"];
  };
  for (const Json& wrong : {Json("json"), Json{{"type", "json_object"}},
                            Json{{"type", "json_schema"}, {"schema", nullptr}}}) {
    EXPECT_TRUE(refusal({{"output_format", wrong}}).starts_with("output_format: ")) << wrong;
    EXPECT_TRUE(
        refusal({{"output_config", {{"format", wrong}}}}).starts_with("output_config.format: "))
        << wrong;
  }
  EXPECT_TRUE(refusal({{"output_config", 1}}).starts_with("output_config: "));
  EXPECT_TRUE(
      refusal({{"output_config", {{"effort", "low"}}}}).starts_with("output_config.effort: "));
}

TEST_F(DialectsTest, WhatIsNotSupportedIsRefusedByItsOwnName) {
  const auto param = [&](const char* path, const Json& body) -> Json {
    const Answer answer = server().post(path, body);
    EXPECT_EQ(answer.status, 400) << answer.body;
    return answer.json()["error"].value("param", Json());
  };
  for (const auto& [name, value] :
       std::initializer_list<std::pair<const char*, Json>>{{"store", true},
                                                           {"previous_response_id", "resp_1"},
                                                           {"background", true},
                                                           {"truncation", "auto"},
                                                           {"input", 5},
                                                           {"input", Json::array()},
                                                           {"tool_choice", "auto"},
                                                           {"max_output_tokens", 0}}) {
    EXPECT_EQ(param("/v1/responses", response_body({{name, value}})), name) << value;
  }
  EXPECT_EQ(param("/v1/responses", response_body({{"input", {{{"type", "image"}}}}})),
            "input[0].type");
  EXPECT_EQ(param("/v1/responses",
                  response_body(
                      {{"input", {{{"role", "user"}, {"content", {{{"type", "input_image"}}}}}}}})),
            "input[0].content[0]");
  EXPECT_EQ(server().post("/v1/responses", response_body({{"store", false}})).status, 200);

  const auto message = [&](const Json& more) -> std::string {
    const Answer answer = server().post("/v1/messages", message_body(more));
    EXPECT_EQ(answer.status, 400) << answer.body;
    EXPECT_EQ(answer.json()["type"], "error");
    EXPECT_EQ(answer.json()["error"]["type"], "invalid_request_error");
    return answer.json()["error"]["message"];
  };
  EXPECT_TRUE(message({{"max_tokens", nullptr}}).starts_with("max_tokens: "));
  EXPECT_TRUE(message({{"thinking", {{"type", "enabled"}}}}).starts_with("thinking: "));
  EXPECT_TRUE(message({{"messages", Json::array()}}).starts_with("messages: "));
  EXPECT_TRUE(message({{"messages", {{{"role", "system"}, {"content", "x"}}}}})
                  .starts_with("messages[0].role: "));
  EXPECT_TRUE(message({{"messages", {{{"role", "user"}, {"content", {{{"type", "image"}}}}}}}})
                  .starts_with("messages[0].content[0].type: "));
  EXPECT_TRUE(message({{"temperature", 3}}).starts_with("temperature: "));
  EXPECT_EQ(server().post("/v1/messages", message_body({{"model", "x"}})).json()["error"]["type"],
            "not_found_error");
}

TEST(Dialects, AKeyMayComeInAnthropicsHeader) {
  set_log_level(LogLevel::warning);
  SmallServerOptions options;
  options.api.keys = {"secret"};
  SmallServer server(options);
  const std::string body = message_body().dump();
  const auto status = [&](const std::vector<std::string>& headers) {
    return Client(server.port()).request("POST", "/v1/messages", body, headers).status;
  };
  EXPECT_EQ(status({"x-api-key: secret"}), 200);
  EXPECT_EQ(status({"Authorization: Bearer secret"}), 200);
  EXPECT_EQ(status({"x-api-key: wrong"}), 401);
  EXPECT_EQ(status({"x-api-key: secret", "Authorization: Bearer wrong"}), 401);
  const Answer refused = Client(server.port()).request("POST", "/v1/messages", body);
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.json()["error"]["type"], "authentication_error");
}

}  // namespace
}  // namespace dsmoe::testing

// Requests that the openai and anthropic SDKs, LangChain, instructor, openai-agents, llm and
// lm-eval really sent (tests/clients/recorded.jsonl).
#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "base/log.h"
#include "serve/small_server.h"

namespace dsmoe::testing {
namespace {

// What the client of a route reads before all else.
void expect_shape(const std::string& path, const Json& asked, const Json& answer) {
  if (path == "/v1/messages") {
    EXPECT_EQ(answer["type"], "message");
    EXPECT_FALSE(answer["content"].empty());
    for (const Json& block : answer["content"]) {
      if (block["type"] == "tool_use") {
        EXPECT_TRUE(block["input"].is_object());
      } else {
        EXPECT_TRUE(block["text"].is_string());
      }
    }
  } else if (path == "/v1/messages/count_tokens") {
    EXPECT_GT(answer["input_tokens"], 0);
  } else if (path == "/v1/responses") {
    EXPECT_EQ(answer["object"], "response");
    for (const Json& item : answer["output"]) {
      const bool is_call = item["type"] == "function_call";
      EXPECT_TRUE(is_call ? item["arguments"].is_string() : item["content"].is_array());
    }
  } else if (path == "/v1/embeddings") {
    const bool is_packed = asked.value("encoding_format", "float") == "base64";
    for (const Json& one : answer["data"]) {
      EXPECT_TRUE(is_packed ? one["embedding"].is_string() : one["embedding"].is_array());
    }
  }
  for (const Json& choice : answer.value("choices", Json::array())) {
    if (path == "/v1/chat/completions") {
      const bool calls = choice["finish_reason"] == "tool_calls";
      EXPECT_EQ(calls, choice["message"].contains("tool_calls"));
      EXPECT_TRUE(calls || choice["message"]["content"].is_string());
    } else if (asked.value("echo", false)) {
      const std::size_t prompt = asked["prompt"][choice["index"].get<std::size_t>()].size();
      EXPECT_EQ(choice["logprobs"]["token_logprobs"].size(), prompt + 1);
    }
  }
}

TEST(RecordedClients, EveryRequestIsAnsweredInTheShapeItsClientReads) {
  set_log_level(LogLevel::quiet);
  std::ifstream file(std::string(DSMOE_SOURCE_DIR) + "/tests/clients/recorded.jsonl");
  ASSERT_TRUE(file.is_open());
  SmallServer server({}, {.positions = 4096});
  std::map<std::string, int> seen;
  for (std::string line; std::getline(file, line);) {
    const Json recorded = Json::parse(line);
    SCOPED_TRACE(line);
    const std::string path = recorded["path"];
    ++seen[path];
    std::vector<std::string> headers;
    for (const auto& [name, value] : recorded["headers"].items()) {
      headers.push_back(name + ": " + value.get<std::string>());
    }
    const Json& asked = recorded["body"];
    const Answer answer =
        Client(server.port())
            .request(recorded["method"], path, asked.is_null() ? "" : asked.dump(), headers);
    ASSERT_EQ(answer.status, recorded["status"]) << answer.body;
    if (answer.status != 200 || !asked.is_object()) continue;
    if (asked.value("stream", false)) {
      EXPECT_EQ(answer.is_done(), path.ends_with("/completions"));  // the others end by an event
    } else {
      expect_shape(path, asked, answer.json());
    }
  }
  // Of every client something: openai, LangChain, lm-eval, instructor, llm; agents; anthropic.
  for (const auto& [path, least] : std::map<std::string, int>{{"/v1/chat/completions", 20},
                                                              {"/v1/completions", 5},
                                                              {"/v1/responses", 6},
                                                              {"/v1/messages", 10},
                                                              {"/v1/messages/count_tokens", 1},
                                                              {"/v1/embeddings", 2},
                                                              {"/v1/models", 1}}) {
    EXPECT_GE(seen[path], least) << path;
  }
}

}  // namespace
}  // namespace dsmoe::testing

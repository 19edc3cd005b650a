// Requests that the openai and anthropic SDKs, LangChain and lm-eval really sent
// (tests/clients/recorded.jsonl).
#include <gtest/gtest.h>

#include <fstream>

#include "base/log.h"
#include "serve/small_server.h"

namespace dsmoe::testing {
namespace {

TEST(RecordedClients, EveryRequestIsAnsweredInTheShapeItsClientReads) {
  set_log_level(LogLevel::quiet);
  std::ifstream file(std::string(DSMOE_SOURCE_DIR) + "/tests/clients/recorded.jsonl");
  ASSERT_TRUE(file.is_open());
  SmallServer server;
  int count = 0;
  for (std::string line; std::getline(file, line); ++count) {
    const Json recorded = Json::parse(line);
    std::vector<std::string> headers;
    for (const auto& [name, value] : recorded["headers"].items()) {
      headers.push_back(name + ": " + value.get<std::string>());
    }
    const std::string body = recorded["body"].is_null() ? "" : recorded["body"].dump();
    const Answer answer =
        Client(server.port()).request(recorded["method"], recorded["path"], body, headers);
    ASSERT_EQ(answer.status, recorded["status"]) << line << answer.body;
    if (answer.status != 200 || !recorded["body"].is_object()) continue;
    if (recorded["body"].value("stream", false)) {
      const std::string path = recorded["path"];
      const bool has_end = path.ends_with("/completions");  // the others end by an event
      EXPECT_EQ(answer.is_done(), has_end) << line;
      continue;
    }
    const Json json = answer.json();
    if (!json.contains("choices")) continue;
    for (const Json& choice : json["choices"]) {
      if (recorded["path"] != "/v1/completions") {
        EXPECT_TRUE(choice["message"]["content"].is_string());
      } else if (recorded["body"].value("echo", false)) {
        const std::size_t prompt =
            recorded["body"]["prompt"][choice["index"].get<std::size_t>()].size();
        EXPECT_EQ(choice["logprobs"]["token_logprobs"].size(), prompt + 1);
      }
    }
  }
  EXPECT_GE(count, 5);
}

}  // namespace
}  // namespace dsmoe::testing

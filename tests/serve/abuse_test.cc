// What strangers may send: each gets the right status, the engine lives, a normal client is served.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include "base/log.h"
#include "serve/abuse_cases.h"
#include "serve/small_server.h"

namespace dsmoe::testing {
namespace {

class Abuse : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    set_log_level(LogLevel::quiet);
    SmallServerOptions options;
    options.http.max_header_bytes = 8192;
    options.http.max_body_bytes = std::size_t{1} << 20;
    server_ = std::make_unique<SmallServer>(options);
    normal_ = server_->complete(kNormal).json()["choices"];
  }
  static void TearDownTestSuite() { server_.reset(); }
  // Whatever was sent, the next client gets the same answer as ever.
  void TearDown() override { EXPECT_EQ(server_->complete(kNormal).json()["choices"], normal_); }

  static uint16_t port() { return server_->port(); }
  static int status_of(const std::string& raw) {
    Client client(port());
    client.send(raw);
    return client.receive().status;
  }

  static void run(const std::vector<BodyCase>& cases, const std::string& path) {
    for (const BodyCase& each : cases) {
      const Answer answer = Client(port()).request("POST", path, each.body);
      EXPECT_EQ(answer.status, each.status) << each.name << ": " << answer.body.substr(0, 300);
      if (each.status == 200) continue;
      const Json error = Json::parse(answer.body, nullptr, false);
      ASSERT_TRUE(error.is_object()) << each.name;
      EXPECT_TRUE(error["error"]["message"].is_string()) << each.name;
      if (*each.param != '\0') {
        EXPECT_EQ(error["error"]["param"], each.param) << each.name;
      }
    }
  }

  static const Json kNormal;
  static std::unique_ptr<SmallServer> server_;
  static Json normal_;
};
const Json Abuse::kNormal{{"prompt", "The cat"}, {"max_tokens", 8}, {"temperature", 0}};
std::unique_ptr<SmallServer> Abuse::server_;
Json Abuse::normal_;

TEST_F(Abuse, CompletionBodies) { run(completion_cases(), "/v1/completions"); }
TEST_F(Abuse, ChatBodies) { run(chat_cases(), "/v1/chat/completions"); }

TEST_F(Abuse, EveryFieldWithEveryOtherKind) { run(kind_cases(), "/v1/completions"); }

TEST_F(Abuse, FieldsOfOtherServersThatWouldChangeTheAnswer) {
  run(other_server_cases(R"({"prompt": "The cat", "max_tokens": 1)"), "/v1/completions");
  run(other_server_cases(R"({"messages": [{"role": "user", "content": "x"}], "max_tokens": 1)"),
      "/v1/chat/completions");
  EXPECT_EQ(server_->post("/tokenize", {{"prompt", "x"}, {"parse_special", false}}).status, 400);
  EXPECT_EQ(server_->post("/tokenize", {{"prompt", "x"}, {"parse_special", true}}).status, 200);
}

// Operators read why; nobody reads what people wrote.
TEST_F(Abuse, TheLogSaysWhyAndNothingOfTheRequest) {
  const auto spoken = [](std::string body) {
    for (const char* word : {"The cat", "\"x\"", "\"a\"", "king", "hello", "gpt-4"}) {
      const std::string text = *word == '"' ? "\"zebra\"" : "zebra";
      for (std::size_t at = 0; (at = body.find(word, at)) != std::string::npos; at += text.size()) {
        body.replace(at, std::string(word).size(), text);
      }
    }
    return body;
  };
  ::testing::internal::CaptureStderr();
  set_log_level(LogLevel::info);
  for (const BodyCase& each : completion_cases()) {
    Client(port()).request("POST", "/v1/completions", spoken(each.body));
  }
  for (const BodyCase& each : chat_cases()) {
    Client(port()).request("POST", "/v1/chat/completions", spoken(each.body));
  }
  set_log_level(LogLevel::quiet);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(log.find("zebra"), std::string::npos) << log.substr(log.find("zebra") - 200, 300);
  EXPECT_NE(
      log.find("status=400 param=temperature reason=\"temperature: expected 0 to 2, got -0.1"),
      std::string::npos)
      << log.substr(0, 2000);
}

TEST_F(Abuse, MoreKeysOrValuesThanAnyoneNeeds) {
  std::string keys = R"({"prompt": "a", "x": {"z": 0)", values = R"({"prompt": "a", "x": [0)";
  for (int i = 0; i < 140000; ++i) keys += fmt::format(",\"{}\":0", i);
  for (int i = 0; i < 2100000; ++i) values += ",0";
  SmallServer server;
  const auto message = [&](const std::string& body) -> std::string {
    const Answer answer = Client(server.port()).request("POST", "/v1/completions", body);
    EXPECT_EQ(answer.status, 400);
    return answer.json()["error"]["message"];
  };
  EXPECT_EQ(message(keys + "}}"), "request body: more than 131072 keys in this JSON");
  EXPECT_EQ(message(values + "]}"), "request body: more than 2097152 values in this JSON");
  const Json ids(258, 5);  // one more than prompt and answer together
  EXPECT_EQ(server.post("/detokenize", {{"tokens", ids}}).json()["error"]["param"], "tokens");
  EXPECT_EQ(server.post("/detokenize", {{"tokens", Json(257, 5)}}).status, 200);
}

TEST_F(Abuse, OtherRoutes) {
  EXPECT_EQ(server_->get("/nothing").status, 404);
  EXPECT_EQ(server_->get("/v1/").status, 404);
  EXPECT_EQ(server_->get("/assets/../../etc/passwd").status, 404);
  EXPECT_EQ(server_->get("/assets/%2e%2e/x").status, 404);
  EXPECT_EQ(server_->get("/v1/completions").status, 405);
  EXPECT_EQ(Client(port()).request("PUT", "/v1/models").status, 405);
  EXPECT_EQ(Client(port()).request("DELETE", "/health").status, 405);
  EXPECT_EQ(server_->get("/%00").status, 400);
  EXPECT_EQ(server_->get("/%zz").status, 400);
  EXPECT_EQ(server_->get("/v1/experts/tokens?layer=x").status, 400);
  EXPECT_EQ(server_->get("/v1/experts/tokens?layer=1&expert=99").status, 400);
  EXPECT_EQ(server_->get("/v1/experts/tokens?layer=1&limit=99999999999999999999").status, 400);
  EXPECT_EQ(server_->post("/tokenize", {{"prompt", 5}}).status, 400);
  EXPECT_EQ(server_->post("/tokenize", Json::object()).status, 400);
  EXPECT_EQ(server_->post("/detokenize", {{"tokens", {1, 300}}}).status, 400);
  EXPECT_EQ(server_->post("/detokenize", {{"tokens", "x"}}).status, 400);
  EXPECT_EQ(server_->post("/detokenize", Json::array()).status, 400);
}

TEST_F(Abuse, MalformedHttp) {
  EXPECT_EQ(status_of("nonsense\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET / HTTP/9.9\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET nothing HTTP/1.1\r\nHost: localhost\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET /health HTTP/1.1\r\nHost: localhost\r\nbad header\r\n\r\n"), 400);
  EXPECT_EQ(
      status_of("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n"),
      400);
  EXPECT_EQ(
      status_of("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n"),
      400);
  EXPECT_EQ(status_of("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "
                      "chunked\r\n\r\nzz\r\n"),
            400);
  EXPECT_EQ(status_of("GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + std::string(20000, 'a') +
                      "\r\n\r\n"),
            431);
  EXPECT_EQ(status_of("GET /" + std::string(20000, 'a') + " HTTP/1.1\r\nHost: localhost\r\n\r\n"),
            431);
  EXPECT_EQ(status_of("GET /health HTTP/1.0\r\n\r\n"), 200);
}

TEST_F(Abuse, HugeBodies) {
  EXPECT_EQ(status_of("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
                      "99999999999\r\n\r\n"),
            413);
  EXPECT_EQ(
      status_of(
          "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2000000\r\n\r\n" +
          std::string(2000000, ' ')),
      413);
  std::string chunked =
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 40; ++i) chunked += "10000\r\n" + std::string(65536, ' ') + "\r\n";
  EXPECT_EQ(status_of(chunked), 413);
  const std::string large =
      Json{{"prompt", "a"}, {"max_tokens", 1}, {"x", std::string(900000, 'y')}}.dump();
  EXPECT_EQ(status_of(format_request("POST", "/v1/completions", large)), 200);
}

int64_t peak_kilobytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::atoll(line.c_str() + 6);
  }
  return 0;
}

// A row of the replay takes K slots, for each choice: what the model cannot do is refused first.
TEST_F(Abuse, ReplayWithMoreExpertsThanTheModelHas) {
  const int64_t before = peak_kilobytes();
  const Json tokens(200, Json{{1}, {2}});
  const Json body{
      {"prompt", "a"}, {"n", 2}, {"num_experts_per_tok", 65536}, {"routed_experts", tokens}};
  const Answer answer = server_->complete(body);
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.json()["error"]["param"], "num_experts_per_tok");
  EXPECT_LT(peak_kilobytes() - before, 64 << 10);
}

// 128 answers whose experts would take gigabytes together. Nothing of it is made.
TEST_F(Abuse, AnswersThatCarryTooMuch) {
  SmallServerOptions options;
  SmallServer server(options, {.positions = 16384});
  const std::vector<int32_t> prompt(16000, 5);
  const Json routes{{"prompt", prompt},
                    {"n", 128},
                    {"max_tokens", 1},
                    {"return_routed_experts", true},
                    {"num_experts_per_tok", 8}};
  EXPECT_EQ(server.complete(routes).json()["error"]["param"], "prompt");
  const Json scores{
      {"prompt", prompt}, {"n", 128}, {"max_tokens", 1}, {"echo", true}, {"logprobs", 5}};
  EXPECT_EQ(server.complete(scores).json()["error"]["param"], "prompt");
}

// Deadlines of its own: those of the other tests must never strike, however slow the machine.
TEST_F(Abuse, SlowHeadAndBody) {
  SmallServerOptions options;
  options.http.header_deadline = std::chrono::milliseconds(200);
  options.http.body_deadline = std::chrono::milliseconds(200);
  options.http.idle_deadline = std::chrono::milliseconds(200);
  SmallServer server(options);
  const auto trickle = [&](const std::string& text) {
    Client client(server.port());
    const auto start = std::chrono::steady_clock::now();
    for (const char c : text) {
      if (!client.send(std::string(1, c))) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(15));
      if (std::chrono::steady_clock::now() - start > std::chrono::milliseconds(600)) break;
    }
    return client.receive().status;
  };
  EXPECT_EQ(trickle("GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + std::string(200, 'a')), 408);
  Client body(server.port());
  body.send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n\r\n{\"prompt\"");
  EXPECT_EQ(body.receive().status, 408);
  Client silent(server.port());
  EXPECT_TRUE(silent.is_closed());  // after the idle deadline
}

TEST_F(Abuse, ConnectionsThatLeave) {
  const Json body{
      {"prompt", "The cat"}, {"max_tokens", 200}, {"ignore_eos", true}, {"stream", true}};
  for (int i = 0; i < 10; ++i) {
    Client at_once(port());
    at_once.send(format_request("POST", "/v1/completions", body.dump()));
    if (i % 2 == 0) at_once.receive_some();
  }
  Client half(port());
  half.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{");
  half.close();
  for (int i = 0; i < 6000 && server_->service().engine().stats().running > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(server_->service().engine().stats().running, 0);
}

TEST_F(Abuse, Pipelining) {
  Client client(port());
  const std::string request = format_request("POST", "/v1/completions", kNormal.dump());
  std::string many;
  for (int i = 0; i < 5; ++i) many += request;
  client.send(many + format_request("GET", "/health", ""));
  for (int i = 0; i < 5; ++i) {
    const Answer answer = client.receive();
    ASSERT_EQ(answer.status, 200);
    EXPECT_EQ(answer.json()["choices"], normal_);
  }
  EXPECT_EQ(client.receive().status, 200);
}

TEST_F(Abuse, ExpectContinueAndHead) {
  Client client(port());
  const std::string body = kNormal.dump();
  client.send(
      fmt::format("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nExpect: "
                  "100-continue\r\nContent-Length: {}\r\n\r\n",
                  body.size()));
  EXPECT_TRUE(client.receive_some().starts_with("HTTP/1.1 100"));
  client.send(body);
  EXPECT_EQ(client.receive().status, 200);
  Client head(port());
  head.send("HEAD /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const std::string answer = head.receive_some();
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200"));
  EXPECT_TRUE(answer.ends_with("\r\n\r\n"));
}

}  // namespace
}  // namespace dsmoe::testing

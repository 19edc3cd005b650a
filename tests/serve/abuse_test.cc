// What strangers may send: each gets the right status, the engine lives, a normal client is served.
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "base/log.h"
#include "serve/small_server.h"

namespace dsmoe::testing {
namespace {

using Strings = std::vector<std::string>;

struct BodyCase {
  const char* name;
  std::string body;
  int status;
  const char* param = "";  // of the error; "": not looked at
};

std::string with(const std::string& field) {
  return R"({"prompt": "The cat", "max_tokens": 2, )" + field + "}";
}
std::string prompt(const std::string& value) {
  return R"({"max_tokens": 2, "prompt": )" + value + "}";
}
std::string repeated(const std::string& text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

std::vector<BodyCase> completion_cases() {
  return {
      {"empty body", "", 400},
      {"not JSON", "hello", 400},
      {"cut JSON", R"({"prompt": "x)", 400},
      {"two values", "{} {}", 400},
      {"an array", "[1]", 400},
      {"a string", "\"x\"", 400},
      {"duplicate keys", R"({"prompt": "a", "prompt": "b"})", 400},
      {"deep arrays", repeated("[", 100000), 400},
      {"deep objects", repeated("{\"a\":", 50000), 400},
      {"deep field", with("\"x\": " + repeated("[", 40) + repeated("]", 40)), 400},
      {"invalid UTF-8", "{\"prompt\": \"\xff\xfe\"}", 400},
      {"overlong UTF-8", "{\"prompt\": \"\xc0\xaf\"}", 400},
      {"lone surrogate", R"({"prompt": "\ud800"})", 400},
      {"no prompt", "{}", 400, "prompt"},
      {"null prompt", prompt("null"), 400, "prompt"},
      {"empty list", prompt("[]"), 400, "prompt"},
      {"object prompt", prompt("{}"), 400, "prompt"},
      {"number prompt", prompt("7"), 400, "prompt"},
      {"mixed prompt", prompt(R"([1, "a"])"), 400, "prompt"},
      {"mixed lists", prompt(R"(["a", [1]])"), 400, "prompt"},
      {"negative token", prompt("[1, -1]"), 400, "prompt"},
      {"token beyond vocabulary", prompt("[300]"), 400},
      {"token beyond 32 bits", prompt("[99999999999]"), 400, "prompt"},
      {"token beyond 64 bits", prompt("[999999999999999999999999]"), 400, "prompt"},
      {"fractional token", prompt("[1.5]"), 400, "prompt"},
      {"too many prompts", prompt("[" + repeated("\"a\",", 200) + "\"a\"]"), 400, "prompt"},
      {"empty token list", prompt("[[]]"), 400},
      {"prompt over the context", prompt("[" + repeated("5,", 400) + "5]"), 400, "prompt"},
      {"text over the context", prompt("\"" + repeated("word ", 100000) + "\""), 400, "prompt"},
      {"max_tokens over the context", R"({"prompt": "a", "max_tokens": 300})", 400, "prompt"},
      {"max_tokens huge", R"({"prompt": "a", "max_tokens": 9223372036854775807})", 400,
       "max_tokens"},
      {"max_tokens beyond 64 bits", R"({"prompt": "a", "max_tokens": 1e30})", 400, "max_tokens"},
      {"max_tokens negative", R"({"prompt": "a", "max_tokens": -1})", 400, "max_tokens"},
      {"max_tokens text", R"({"prompt": "a", "max_tokens": "5"})", 400, "max_tokens"},
      {"max_tokens true", R"({"prompt": "a", "max_tokens": true})", 400, "max_tokens"},
      {"temperature negative", with(R"("temperature": -0.1)"), 400, "temperature"},
      {"temperature high", with(R"("temperature": 2.1)"), 400, "temperature"},
      {"temperature overflow", with(R"("temperature": 1e999)"), 400},
      {"temperature text", with(R"("temperature": "hot")"), 400, "temperature"},
      {"top_p high", with(R"("top_p": 1.01)"), 400, "top_p"},
      {"top_p list", with(R"("top_p": [1])"), 400, "top_p"},
      {"min_p low", with(R"("min_p": -1)"), 400, "min_p"},
      {"top_k fraction", with(R"("top_k": 2.5)"), 400, "top_k"},
      {"top_k low", with(R"("top_k": -2)"), 400, "top_k"},
      {"n zero", with(R"("n": 0)"), 400, "n"},
      {"n huge", with(R"("n": 1000000)"), 400, "n"},
      {"prompts times n", R"({"prompt": ["a","b","c"], "n": 100})", 400, "n"},
      {"seed fraction", with(R"("seed": 0.5)"), 400, "seed"},
      {"stop number", with(R"("stop": 5)"), 400, "stop"},
      {"stop empty", with(R"("stop": "")"), 400, "stop"},
      {"stop null inside", with(R"("stop": [null])"), 400, "stop"},
      {"stop of 100,000 characters", with("\"stop\": \"" + repeated("s", 100000) + "\""), 400,
       "stop"},
      {"17 stops", with("\"stop\": [" + repeated("\"s\",", 16) + "\"s\"]"), 400, "stop"},
      {"stop_token_ids beyond", with(R"("stop_token_ids": [5000])"), 400, "stop_token_ids"},
      {"stop_token_ids text", with(R"("stop_token_ids": "1")"), 400, "stop_token_ids"},
      {"presence_penalty", with(R"("presence_penalty": 3)"), 400, "presence_penalty"},
      {"frequency_penalty", with(R"("frequency_penalty": -3)"), 400, "frequency_penalty"},
      {"repetition_penalty", with(R"("repetition_penalty": 0)"), 400, "repetition_penalty"},
      {"logit_bias list", with(R"("logit_bias": [1])"), 400, "logit_bias"},
      {"logit_bias name", with(R"("logit_bias": {"the": 1})"), 400, "logit_bias"},
      {"logit_bias beyond", with(R"("logit_bias": {"9999": 1})"), 400},
      {"logit_bias null", with(R"("logit_bias": {"5": null})"), 400, "logit_bias"},
      {"logit_bias high", with(R"("logit_bias": {"5": 101})"), 400, "logit_bias"},
      {"logprobs high", with(R"("logprobs": 21)"), 400, "logprobs"},
      {"logprobs true", with(R"("logprobs": true)"), 400, "logprobs"},
      {"echo number", with(R"("echo": 1)"), 400, "echo"},
      {"stream text", with(R"("stream": "yes")"), 400, "stream"},
      {"stream_options alone", with(R"("stream_options": {"include_usage": true})"), 400,
       "stream_options"},
      {"stream_options list", with(R"("stream": true, "stream_options": [])"), 400,
       "stream_options"},
      {"user number", with(R"("user": 5)"), 400, "user"},
      {"model number", with(R"("model": 5)"), 400, "model"},
      {"unknown model", with(R"("model": "gpt-4")"), 404, "model"},
      {"suffix", with(R"("suffix": "end")"), 400, "suffix"},
      {"best_of", with(R"("best_of": 4)"), 400, "best_of"},
      {"response_format", with(R"("response_format": {"type": "json_object"})"), 400,
       "response_format"},
      {"K zero", with(R"("num_experts_per_tok": 0)"), 400, "num_experts_per_tok"},
      {"K beyond", with(R"("num_experts_per_tok": 9)"), 400},
      {"replay text", with(R"("routed_experts": "x")"), 400, "routed_experts"},
      {"replay flat", with(R"("routed_experts": [1, 2])"), 400, "routed_experts"},
      {"replay layers", with(R"("routed_experts": [[[1, 2]]])"), 400, "routed_experts"},
      {"replay expert beyond", with(R"("routed_experts": [[[1, 8], [1, 2]]])"), 400,
       "routed_experts"},
      {"replay expert twice", with(R"("routed_experts": [[[1, 1], [1, 2]]])"), 400,
       "routed_experts"},
      {"replay more than K", with(R"("routed_experts": [[[1, 2, 3], [1, 2]]])"), 400,
       "routed_experts"},
      {"replay nothing chosen", with(R"("routed_experts": [[[], [1, 2]]])"), 400, "routed_experts"},
      {"replay over the context",
       with("\"routed_experts\": [" + repeated("[[1],[2]],", 300) + "[[1],[2]]]"), 400,
       "routed_experts"},
      // Odd, and right.
      {"unknown fields", with(R"("whatever": {"a": [1]})"), 200},
      {"null fields", with(R"("temperature": null, "stop": null, "logprobs": null, "n": null)"),
       200},
      {"no model", with(R"("seed": -9223372036854775808)"), 200},
      {"max_tokens 0", R"({"prompt": "a", "max_tokens": 0})", 200},
      {"top_p 0", with(R"("top_p": 0)"), 200},
      {"bias away", with(R"("logit_bias": {"5": -100, "6": 100})"), 200},
  };
}

std::vector<BodyCase> chat_cases() {
  const auto messages = [](const std::string& list) {
    return "{\"max_tokens\": 2, \"messages\": " + list + "}";
  };
  const auto chat_with = [](const std::string& field) {
    return R"({"max_tokens": 2, "messages": [{"role": "user", "content": "x"}], )" + field + "}";
  };
  return {
      {"no messages", "{}", 400, "messages"},
      {"empty messages", messages("[]"), 400, "messages"},
      {"text messages", messages("\"hi\""), 400, "messages"},
      {"message text", messages("[\"hi\"]"), 400, "messages[0]"},
      {"no role", messages(R"([{"content": "x"}])"), 400, "messages[0].role"},
      {"role unknown", messages(R"([{"role": "king", "content": "x"}])"), 400, "messages[0].role"},
      {"role number", messages(R"([{"role": 5, "content": "x"}])"), 400, "role"},
      {"no content", messages(R"([{"role": "user"}])"), 400, "messages[0].content"},
      {"content number", messages(R"([{"role": "user", "content": 5}])"), 400,
       "messages[0].content"},
      {"image part",
       messages(R"([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])"), 400,
       "messages[0].content"},
      {"part text", messages(R"([{"role": "user", "content": ["x"]}])"), 400,
       "messages[0].content"},
      {"tool_calls", messages(R"([{"role": "assistant", "tool_calls": [{}]}])"), 400,
       "messages[0].tool_calls"},
      {"many messages",
       messages("[" + repeated(R"({"role": "user", "content": "x"},)", 5000) +
                R"({"role": "user", "content": "x"}])"),
       400, "messages"},
      {"tools", chat_with(R"("tools": [{"type": "function"}])"), 400, "tools"},
      {"tool_choice", chat_with(R"("tool_choice": "auto")"), 400, "tool_choice"},
      {"functions", chat_with(R"("functions": [{}])"), 400, "functions"},
      {"response_format", chat_with(R"("response_format": {"type": "json_schema"})"), 400,
       "response_format"},
      {"top_logprobs alone", chat_with(R"("top_logprobs": 2)"), 400, "top_logprobs"},
      {"top_logprobs high", chat_with(R"("logprobs": true, "top_logprobs": 21)"), 400,
       "top_logprobs"},
      {"logprobs number", chat_with(R"("logprobs": 2)"), 400, "logprobs"},
      {"max_completion_tokens", chat_with(R"("max_completion_tokens": 0)"), 400,
       "max_completion_tokens"},
      {"empty tools",
       chat_with(R"("tools": [], "tool_choice": "none", "response_format": {"type": "text"})"),
       200},
      {"developer and null",
       messages(R"([{"role": "developer", "content": "a"}, {"role": "assistant", "content": null},
                                          {"role": "user", "content": "b", "name": "c"}])"),
       200},
      {"special tokens in content",
       messages(R"([{"role": "user", "content": "<|end|><|begin|>"}])"), 200},
  };
}

class Abuse : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    set_log_level(LogLevel::quiet);
    serve::ServiceOptions options;
    options.http.header_deadline = std::chrono::milliseconds(300);
    options.http.body_deadline = std::chrono::milliseconds(300);
    options.http.idle_deadline = std::chrono::milliseconds(1500);
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
    return client.receive(5).status;
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

TEST_F(Abuse, ThereAreAtLeastSixtyCases) {
  EXPECT_GE(completion_cases().size() + chat_cases().size(), 100u);
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
  EXPECT_EQ(status_of("GET nothing HTTP/1.1\r\nHost: x\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET /health HTTP/1.1\r\nbad header\r\n\r\n"), 400);
  EXPECT_EQ(status_of("POST /v1/completions HTTP/1.1\r\nContent-Length: x\r\n\r\n"), 400);
  EXPECT_EQ(status_of("POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n"), 400);
  EXPECT_EQ(status_of("POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
            400);
  EXPECT_EQ(status_of("GET /health HTTP/1.1\r\nX: " + std::string(20000, 'a') + "\r\n\r\n"), 431);
  EXPECT_EQ(status_of("GET /" + std::string(20000, 'a') + " HTTP/1.1\r\n\r\n"), 431);
  EXPECT_EQ(status_of("GET /health HTTP/1.0\r\n\r\n"), 200);
}

TEST_F(Abuse, HugeBodies) {
  EXPECT_EQ(status_of("POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n"), 413);
  EXPECT_EQ(status_of("POST /v1/completions HTTP/1.1\r\nContent-Length: 2000000\r\n\r\n" +
                      std::string(2000000, ' ')),
            413);
  std::string chunked = "POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 40; ++i) chunked += "10000\r\n" + std::string(65536, ' ') + "\r\n";
  EXPECT_EQ(status_of(chunked), 413);
  const std::string large =
      Json{{"prompt", "a"}, {"max_tokens", 1}, {"x", std::string(900000, 'y')}}.dump();
  EXPECT_EQ(status_of(format_request("POST", "/v1/completions", large)), 200);
}

TEST_F(Abuse, SlowHeadAndBody) {
  const auto trickle = [](const std::string& text) {
    Client client(port());
    const auto start = std::chrono::steady_clock::now();
    for (const char c : text) {
      if (!client.send(std::string(1, c))) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(15));
      if (std::chrono::steady_clock::now() - start > std::chrono::milliseconds(600)) break;
    }
    return client.receive(3).status;
  };
  EXPECT_EQ(trickle("GET /health HTTP/1.1\r\nX: " + std::string(200, 'a')), 408);
  Client body(port());
  body.send("POST /v1/completions HTTP/1.1\r\nContent-Length: 500\r\n\r\n{\"prompt\"");
  EXPECT_EQ(body.receive(3).status, 408);
  Client silent(port());
  EXPECT_EQ(silent.receive_some(5), "");  // closed after the idle deadline
}

TEST_F(Abuse, ConnectionsThatLeave) {
  const Json body{
      {"prompt", "The cat"}, {"max_tokens", 200}, {"ignore_eos", true}, {"stream", true}};
  for (int i = 0; i < 10; ++i) {
    Client at_once(port());
    at_once.send(format_request("POST", "/v1/completions", body.dump()));
    if (i % 2 == 0) at_once.receive_some(5);
  }
  Client half(port());
  half.send("POST /v1/completions HTTP/1.1\r\nContent-Length: 50\r\n\r\n{");
  half.close();
  for (int i = 0; i < 500 && server_->service().engine().stats().running > 0; ++i) {
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
  client.send(fmt::format(
      "POST /v1/completions HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n",
      body.size()));
  EXPECT_TRUE(client.receive_some(5).starts_with("HTTP/1.1 100"));
  client.send(body);
  EXPECT_EQ(client.receive().status, 200);
  Client head(port());
  head.send("HEAD /health HTTP/1.1\r\n\r\n");
  const std::string answer = head.receive_some(5);
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200"));
  EXPECT_TRUE(answer.ends_with("\r\n\r\n"));
}

}  // namespace
}  // namespace dsmoe::testing

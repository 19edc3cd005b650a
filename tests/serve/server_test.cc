// The server as a whole: keys, loading, a full queue, draining, a dead engine.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "kernels/table.h"
#include "serve/api_keys.h"
#include "serve/small_server.h"

namespace dsmoe::testing {
namespace {

TEST(Server, KeysAreNeededEverywhereButHealthAndThePage) {
  SmallServer server({.api = {.keys = {"first-key", "second-key"}}});
  EXPECT_EQ(server.get("/health").status, 200);
  EXPECT_EQ(server.get("/").status, 200);
  for (const char* path :
       {"/v1/models", "/metrics", "/version", "/tokenizer_info", "/v1/experts", "/nothing"}) {
    EXPECT_EQ(server.get(path).status, 401) << path;
  }
  const auto with = [&](const std::string& header) {
    return Client(server.port())
        .request("GET", "/v1/models", "", {"Authorization: " + header})
        .status;
  };
  EXPECT_EQ(with("Bearer first-key"), 200);
  EXPECT_EQ(with("bearer second-key"), 200);
  EXPECT_EQ(with("Bearer first-ke"), 401);
  EXPECT_EQ(with("Bearer first-key2"), 401);
  EXPECT_EQ(with("Bearer "), 401);
  EXPECT_EQ(with("Basic first-key"), 401);
  const Answer refused = server.complete({{"prompt", "x"}});
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.json()["error"]["code"], "invalid_api_key");
}

TEST(Server, AKeyGivenTwiceIsOneKey) {
  const serve::ApiKeys keys({"one", "one", "two"});
  ASSERT_TRUE(keys.find("one").has_value());
  ASSERT_TRUE(keys.find("two").has_value());
  EXPECT_NE(keys.find("one"), keys.find("two"));
  EXPECT_FALSE(keys.find("three").has_value());
}

// Listening, but no model yet.
TEST(Server, IsTruthfulWhileTheModelLoads) {
  ThreadPool pool(1);  // with the model, it outlives the service
  const kernels::Context context{.table = &kernels::select_cpu_table(), .pool = &pool};
  std::unique_ptr<model::Model> model;
  serve::Service service({.api = {.keys = {"key"}}, .http = {.port = 0}});
  std::thread thread([&] { service.run(); });
  const auto ask = [&](const std::string& method, const std::string& path) {
    return Client(service.port())
        .request(method, path, method == "POST" ? "{}" : "", {"Authorization: Bearer key"});
  };
  EXPECT_EQ(ask("GET", "/health").status, 503);
  EXPECT_EQ(ask("GET", "/health").json()["status"], "loading");
  EXPECT_EQ(ask("GET", "/health").headers.at("retry-after"), "1");
  EXPECT_EQ(ask("GET", "/").status, 200);
  EXPECT_EQ(ask("GET", "/version").status, 200);
  for (const char* path : {"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize",
                           "/v1/experts/reset"}) {
    const Answer refused = ask("POST", path);
    EXPECT_EQ(refused.status, 503) << path;
    EXPECT_EQ(refused.json()["error"]["code"], "loading") << path;
  }
  for (const char* path :
       {"/v1/models", "/metrics", "/tokenizer_info", "/v1/experts", "/v1/experts/tokens"}) {
    EXPECT_EQ(ask("GET", path).status, 503) << path;
  }
  EXPECT_EQ(Client(service.port()).get("/v1/models").status, 401);  // the key is asked for first
  model = small_model(context, {});
  service.open({.context = context, .model = *model, .text = small_text(), .id = "late"});
  EXPECT_EQ(ask("GET", "/health").status, 200);
  EXPECT_EQ(ask("GET", "/v1/models").json()["data"][0]["id"], "late");
  service.shut_down();
  thread.join();
}

TEST(Server, MoreAnswersThanItCouldEverHoldIsABadRequest) {
  SmallServer server({.engine = {.max_batch = 2, .max_queue = 3}});
  const auto status = [&](int n) {
    return server.complete({{"prompt", "The cat"}, {"max_tokens", 2}, {"n", n}}).status;
  };
  EXPECT_EQ(status(6), 400);
  EXPECT_EQ(status(5), 200);  // the batch's two beside the queue's three
}

// A stream of `n` answers so long that it is still running whatever comes next.
Json long_stream(int n) {
  return {{"prompt", "The cat"},
          {"max_tokens", 3000},
          {"ignore_eos", true},
          {"stream", true},
          {"n", n}};
}

TEST(Server, AFullQueueGives429) {
  SmallServer server({.engine = {.max_batch = 1, .max_queue = 2}}, {.positions = 4096});
  const Json one{{"prompt", "The cat"}, {"max_tokens", 1}};
  {
    Client filling(server.port());
    filling.send(format_request("POST", "/v1/completions", long_stream(3).dump()));
    ASSERT_NE(filling.receive_some(), "");
    const Answer refused = server.complete(one);
    EXPECT_EQ(refused.status, 429);
    EXPECT_EQ(refused.headers.at("retry-after"), "1");
    EXPECT_EQ(refused.json()["error"]["code"], "queue_full");
  }
  Answer answer;  // once the server has seen the client leave there is room again
  for (int i = 0; i < 6000 && (answer = server.complete(one)).status != 200; ++i) {
    EXPECT_EQ(answer.status, 429);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(answer.status, 200);
}

// The worker encodes them; the last one ends the request before any is computed.
TEST(Server, ManyLongPromptsDoNotHoldUpOthers) {
  SmallServer server({}, {.positions = 65536});
  std::string text;
  for (int i = 0; i < 10000; ++i) text += "The cat ";
  std::vector<std::string> prompts(60, text);
  prompts.push_back(text + text + text + text + text + text);
  std::atomic<bool> is_there{false};
  std::thread asking([&] {
    const Answer answer = server.complete({{"prompt", prompts}, {"max_tokens", 1}});
    is_there = true;
    EXPECT_EQ(answer.status, 400) << answer.body;
    EXPECT_NE(answer.body.find("context_length_exceeded"), std::string::npos) << answer.body;
  });
  int seen = 0;
  Client client(server.port());
  while (!is_there) {
    const std::string metrics = client.get("/metrics").body;
    seen += metrics.find("\ndsmoe_requests_preparing 1\n") != std::string::npos;
  }
  asking.join();
  EXPECT_GE(seen, 3);
}

// While a long answer is written down, others are answered too.
TEST(Server, ALongAnswerDoesNotHoldUpOthers) {
  SmallServer server;
  std::atomic<bool> is_there{false};
  std::thread asking([&] {
    const Json body{{"prompt", "The cat"}, {"max_tokens", 240},  {"n", 48},
                    {"logprobs", 20},      {"ignore_eos", true}, {"temperature", 0}};
    const Answer answer = server.complete(body);
    is_there = true;
    const Json json = answer.json();
    EXPECT_EQ(json["choices"].size(), 48u);
    EXPECT_EQ(json["choices"][47]["index"], 47);
    EXPECT_EQ(json["usage"]["completion_tokens"], 48 * 240);
  });
  int seen = 0;  // the engine is done with it, the answer is not there
  Client client(server.port());
  while (!is_there) {
    const std::string text = client.get("/metrics").body;
    const bool is_computed = text.find("\ndsmoe_sequences_running 0\n") != std::string::npos &&
                             text.find("\ndsmoe_sequences_waiting 0\n") != std::string::npos;
    const bool is_asked = text.find("\ndsmoe_requests_running 1\n") != std::string::npos &&
                          text.find("\ndsmoe_answer_tokens_total 0\n") == std::string::npos;
    seen += is_computed && is_asked ? 1 : 0;
  }
  asking.join();
  EXPECT_GE(seen, 3);
}

constexpr int kUnreadBytes = 4096;

// The one connection left is the one that asks.
TEST(Server, WhoReadsNothingIsClosedAfterTheWriteDeadline) {
  SmallServer server({.http = {.write_deadline = std::chrono::milliseconds(100)}});
  Client client(server.port(), kUnreadBytes);
  std::string many;  // answers far beyond what sockets hold
  for (int i = 0; i < 3000; ++i) many += "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
  client.send(many);
  EXPECT_EQ(wait_for_metric(server, "dsmoe_connections", 1), 1);
}

// Asks for an answer of some 12 MB and reads it slowly: all that came. `begun` is called once
// something has.
template <class F>
std::string read_slowly(SmallServer& server, F&& begun) {
  Client client(server.port(), 65536);
  const Json body{{"prompt", "The cat"}, {"max_tokens", 240},  {"n", 64},
                  {"logprobs", 20},      {"ignore_eos", true}, {"temperature", 0}};
  client.send(format_request("POST", "/v1/completions", body.dump(), {"Connection: close"}));
  std::string answer = client.receive_some();
  begun();
  for (std::string piece; !(piece = client.receive_some()).empty(); answer += piece) {
    std::this_thread::sleep_for(std::chrono::milliseconds(12));
  }
  return answer;
}

// A long answer over a slow line takes longer than the deadline, but never stands still so long.
TEST(Server, WhoReadsSlowlyGetsAllOfALongAnswer) {
  constexpr auto kDeadline = std::chrono::milliseconds(800);
  SmallServer server({.http = {.write_deadline = kDeadline}});
  std::chrono::steady_clock::time_point start;
  const std::string answer = read_slowly(server, [&] { start = std::chrono::steady_clock::now(); });
  EXPECT_GT(std::chrono::steady_clock::now() - start, 2 * kDeadline) << "it was not slow";
  EXPECT_TRUE(answer.ends_with("}")) << answer.size() << " bytes came";
}

TEST(Server, DrainingWaitsForWhoReadsSlowly) {
  SmallServer server;
  const std::string answer = read_slowly(server, [&] { server.service().shut_down(); });
  EXPECT_TRUE(answer.ends_with("}")) << answer.size() << " bytes came";
  server.stop();
}

TEST(Server, WhoLeavesTooMuchUnreadIsClosed) {
  // An answer so long that it is far from its end when the client is found out.
  SmallServer server({.http = {.max_backlog_bytes = 10000}}, {.positions = 4096});
  Client client(server.port(), kUnreadBytes);
  const Json body{{"messages", {{{"role", "user"}, {"content", "The cat"}}}},
                  {"max_tokens", 4000},
                  {"n", 64},
                  {"ignore_eos", true},
                  {"logprobs", true},
                  {"top_logprobs", 20},
                  {"stream", true}};
  client.send(format_request("POST", "/v1/chat/completions", body.dump()));
  EXPECT_EQ(wait_for_metric(server, "dsmoe_clients_gone_total", 1), 1);
  EXPECT_EQ(wait_for_metric(server, "dsmoe_connections", 1), 1);
  EXPECT_EQ(wait_for_metric(server, "dsmoe_sequences_running", 0), 0);
}

TEST(Server, DrainsRunningRequestsAndRefusesNewOnes) {
  SmallServer server({}, {.positions = 4096});
  Client streaming(server.port());
  streaming.send(format_request("POST", "/v1/completions", long_stream(1).dump()));
  ASSERT_NE(streaming.receive_some(), "");
  server.service().shut_down();
  const Json one{{"prompt", "x"}, {"max_tokens", 1}};
  Answer refused = server.complete(one);
  while (refused.status == 200) refused = server.complete(one);  // until it has heard of it
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.json()["error"]["code"], "draining");
  EXPECT_EQ(server.get("/health").json()["status"], "draining");
  std::string text;
  for (std::string piece; !(piece = streaming.receive_some()).empty();) text += piece;
  EXPECT_NE(text.find("\"finish_reason\":\"length\""), std::string::npos);
  EXPECT_NE(text.find("data: [DONE]"), std::string::npos);
  server.stop();
}

TEST(Server, TheDrainDeadlineEndsWhatStillRuns) {
  SmallServer server({.http = {.drain_deadline = std::chrono::milliseconds(1)}},
                     {.positions = 4096});
  Client streaming(server.port());
  streaming.send(format_request("POST", "/v1/completions", long_stream(16).dump()));
  ASSERT_NE(streaming.receive_some(), "");
  server.stop();
  std::string text;
  for (std::string piece; !(piece = streaming.receive_some()).empty();) text += piece;
  EXPECT_NE(text.find("\"code\":\"draining\""), std::string::npos);
  EXPECT_NE(text.find("data: [DONE]"), std::string::npos);
}

TEST(Server, ADeadEngineTurnsHealthTo503) {
  SmallServer server;
  EXPECT_EQ(server.get("/health").status, 200);
  server.service().engine().inject(infer::Engine::Fault::thrown);
  const auto start = std::chrono::steady_clock::now();
  int status = 200;
  while (status == 200 && std::chrono::steady_clock::now() - start < std::chrono::seconds(60)) {
    status = server.get("/health").status;
  }
  EXPECT_EQ(status, 503);
  EXPECT_EQ(server.complete({{"prompt", "x"}}).status, 503);
}

TEST(Server, StrangersNeedAKey) {
  serve::ServiceOptions options;
  options.http.host = "0.0.0.0";
  EXPECT_THROW(serve::check_exposure(options, serve::WithoutKeys::refused), Error);
  serve::check_exposure(options, serve::WithoutKeys::allowed);
  options.api.keys = {"k"};
  serve::check_exposure(options, serve::WithoutKeys::refused);
  options = {};
  serve::check_exposure(options, serve::WithoutKeys::refused);
}

}  // namespace
}  // namespace dsmoe::testing

// Large bodies and long answers are the worker's: while it is busy everybody else is served.
#include "serve/worker.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <new>
#include <thread>

#include "base/log.h"
#include "serve/small_server.h"

namespace dsmoe::testing {
namespace {

// Keeps the worker of a server from everything until it is opened.
class Gate {
 public:
  explicit Gate(SmallServer& server) {
    server.service().worker().add([opened = opened_.get_future().share()] { opened.wait(); },
                                  [] {});
  }
  ~Gate() { open(); }
  void open() {
    if (!std::exchange(is_open_, true)) opened_.set_value();
  }

 private:
  std::promise<void> opened_;
  bool is_open_ = false;
};

class WorkerTest : public ::testing::Test {
 protected:
  void SetUp() override { set_log_level(LogLevel::quiet); }
};

const std::string kLarge(std::size_t{1} << 15, 'y');

std::string large(Json body) {
  body["whatever"] = kLarge;
  return body.dump();
}

const Json kPrompt{{"prompt", "The cat"}, {"max_tokens", 4}, {"temperature", 0}};

int64_t metric(SmallServer& server, const std::string& name) {
  const std::string text = "\n" + server.get("/metrics").body;
  const std::size_t at = text.find("\n" + name + " ");
  return at == std::string::npos ? 0 : std::atoll(text.c_str() + at + name.size() + 2);
}

int64_t requests_of(SmallServer& server, const std::string& route, int status) {
  return metric(server,
                fmt::format("dsmoe_requests_total{{route=\"{}\",status=\"{}\"}}", route, status));
}

// True once `f` says so; false after a minute.
template <class F>
bool comes_true(F&& f) {
  for (int i = 0; i < 6000; ++i) {
    if (f()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

TEST_F(WorkerTest, NobodyWaitsForLargeBodies) {
  SmallServer server;
  const Json ids = server.post("/tokenize", {{"prompt", "The cat"}}).json()["tokens"];
  const Json normal = server.complete(kPrompt).json()["choices"];
  const std::vector<std::pair<std::string, std::string>> requests{
      {"/v1/completions", large(kPrompt)},
      {"/v1/chat/completions",
       large({{"messages", {{{"role", "user"}, {"content", "The cat"}}}}, {"max_tokens", 4}})},
      {"/tokenize", large({{"prompt", "The cat"}})},
      {"/detokenize", large({{"tokens", ids}})},
      {"/v1/completions", "{\"x\": [" + kLarge}};
  Gate gate(server);
  std::vector<std::unique_ptr<Client>> clients;
  for (const auto& [path, body] : requests) {
    clients.push_back(std::make_unique<Client>(server.port()));
    clients.back()->send(format_request("POST", path, body));
  }
  Client experts(server.port());
  experts.send(format_request("GET", "/v1/experts/tokens?layer=1", ""));
  EXPECT_EQ(server.get("/health").status, 200);
  EXPECT_EQ(server.complete(kPrompt).json()["choices"], normal);
  EXPECT_EQ(server.post("/tokenize", {{"prompt", "The cat"}}).json()["tokens"], ids);
  EXPECT_EQ(server.get("/v1/experts").status, 200);
  gate.open();
  EXPECT_EQ(clients[0]->receive().json()["choices"], normal);
  EXPECT_EQ(clients[1]->receive().status, 200);
  EXPECT_EQ(clients[2]->receive().json()["tokens"], ids);
  EXPECT_NE(clients[3]->receive().json()["prompt"].get<std::string>().find("The cat"),
            std::string::npos);
  EXPECT_EQ(clients[4]->receive().status, 400);
  EXPECT_EQ(experts.receive().status, 200);
}

TEST_F(WorkerTest, AClientThatLeavesMeanwhileCostsNothing) {
  SmallServer server;
  Gate gate(server);
  {
    Client client(server.port());
    client.send(format_request("POST", "/v1/completions", large(kPrompt)));
  }
  ASSERT_TRUE(comes_true([&] { return requests_of(server, "/v1/completions", 499) == 1; }));
  gate.open();
  const Answer next =
      Client(server.port()).request("POST", "/tokenize", large({{"prompt", "The cat"}}));
  EXPECT_EQ(next.status, 200);  // behind it
  EXPECT_EQ(requests_of(server, "/v1/completions", 200), 0);
  EXPECT_EQ(requests_of(server, "/v1/completions", 499), 1);
  EXPECT_EQ(server.service().engine().stats().prompt_tokens, 0);
}

TEST_F(WorkerTest, DrainingWaitsForWhatTheWorkerHas) {
  SmallServer server;
  auto gate = std::make_unique<Gate>(server);
  Client before(server.port());
  before.send(format_request("POST", "/v1/completions", large(kPrompt)));
  ASSERT_TRUE(comes_true([&] { return metric(server, "dsmoe_requests_preparing") == 1; }));
  server.service().shut_down();
  ASSERT_TRUE(comes_true([&] { return server.get("/health").status == 503; }));
  const Answer refused = Client(server.port()).request("POST", "/v1/completions", large(kPrompt));
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.json()["error"]["code"], "draining");
  gate->open();
  EXPECT_EQ(before.receive().status, 200);
  gate.reset();
  server.stop();
}

TEST_F(WorkerTest, TheDrainDeadlineEndsWhatTheWorkerHas) {
  SmallServerOptions options;
  options.http.drain_deadline = std::chrono::milliseconds(50);
  SmallServer server(options);
  auto gate = std::make_unique<Gate>(server);
  Client client(server.port());
  client.send(format_request("POST", "/v1/completions", large(kPrompt)));
  ASSERT_TRUE(comes_true([&] { return metric(server, "dsmoe_requests_preparing") == 1; }));
  server.service().shut_down();
  const Answer ended = client.receive();
  EXPECT_EQ(ended.status, 503);
  EXPECT_EQ(ended.json()["error"]["code"], "draining");
  gate.reset();
  server.stop();
}

TEST_F(WorkerTest, LargeBodiesAreBoundedTogether) {
  SmallServer server;
  Gate gate(server);
  const std::string body = Json{{"prompt", "a"}, {"x", std::string(8300000, 'y')}}.dump();
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 9; ++i) {
    clients.push_back(std::make_unique<Client>(server.port()));
    clients.back()->send(format_request("POST", "/tokenize", body));
  }
  int num_refused = 0;
  const auto look = [&](Client& client) {
    const Answer answer = client.receive();
    if (answer.status == 200) return;
    ++num_refused;
    EXPECT_EQ(answer.status, 503);
    EXPECT_EQ(answer.json()["error"]["code"], "overloaded");
    EXPECT_EQ(answer.headers.count("retry-after"), 1u);
  };
  // The body that came last is refused, whichever it was; small ones are not.
  ASSERT_TRUE(comes_true([&] { return requests_of(server, "/tokenize", 503) == 1; }));
  EXPECT_EQ(server.post("/tokenize", {{"prompt", "a"}}).status, 200);
  gate.open();
  for (const auto& client : clients) look(*client);
  EXPECT_EQ(num_refused, 1);
  EXPECT_EQ(Client(server.port()).request("POST", "/tokenize", body).status, 200);
}

// Scores and routes of a prompt of 1,500 tokens are rendered by the worker, plain or streamed.
TEST_F(WorkerTest, LongAnswersSayTheSamePlainAndStreamed) {
  SmallServer server({}, {.positions = 2048});
  std::vector<int> prompt;
  for (int i = 0; i < 1500; ++i) prompt.push_back(2 + i * 31 % 290);
  Json body{{"prompt", prompt},  {"max_tokens", 6}, {"temperature", 0},
            {"echo", true},      {"logprobs", 5},   {"return_routed_experts", true},
            {"ignore_eos", true}};
  Gate gate(server);
  Client plain(server.port()), streamed(server.port());
  plain.send(format_request("POST", "/v1/completions", body.dump()));
  body["stream"] = true;
  streamed.send(format_request("POST", "/v1/completions", body.dump()));
  EXPECT_EQ(server.complete(kPrompt).status, 200);
  gate.open();
  const Json choice = plain.receive().json()["choices"][0];
  const Answer stream = streamed.receive();
  EXPECT_TRUE(stream.is_done());
  std::string text;
  Json scores = Json::array(), routes = Json::array();
  for (const Json& event : stream.events()) {
    const Json& piece = event["choices"][0];
    text += piece["text"].get<std::string>();
    if (piece.contains("routed_experts")) {
      for (const Json& token : piece["routed_experts"]) routes.push_back(token);
    }
    if (piece["logprobs"].is_null()) continue;
    for (const Json& score : piece["logprobs"]["token_logprobs"]) scores.push_back(score);
  }
  EXPECT_EQ(text, choice["text"]);
  EXPECT_EQ(scores, choice["logprobs"]["token_logprobs"]);
  EXPECT_EQ(scores.size(), 1506u);
  EXPECT_EQ(routes, choice["routed_experts"]);
  EXPECT_EQ(routes.size(), 1505u);
}

TEST_F(WorkerTest, AResultIsHandedBackOnceThereIsMemory) {
  std::atomic<int> num_failures{3};
  std::promise<void> done;
  serve::Worker worker([&](std::function<void()> f) {
    if (num_failures-- > 0) throw std::bad_alloc();
    f();
  });
  bool worked = false;
  worker.add([&] { worked = true; }, [&] { done.set_value(); });
  done.get_future().wait();
  EXPECT_TRUE(worked);
  EXPECT_LE(num_failures, 0);
}

}  // namespace
}  // namespace dsmoe::testing

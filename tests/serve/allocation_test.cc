// Memory runs out at any one place of the server's thread: that costs a request at most.
#include <dlfcn.h>
#include <execinfo.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/failing_memory.h"
#include "base/json.h"
#include "base/log.h"
#include "serve/small_server.h"

namespace {

enum class Where { server_thread, sinks };  // sinks: of the engine's thread
std::atomic<Where> where{Where::server_thread};
thread_local bool is_server_thread = false;

bool is_called_from(const char* function) {
  void* frames[32];
  const int count = ::backtrace(frames, 32);
  for (int i = 0; i < count; ++i) {
    Dl_info info{};
    if (::dladdr(frames[i], &info) == 0 || info.dli_sname == nullptr) continue;
    if (std::strstr(info.dli_sname, function) != nullptr) return true;
  }
  return false;
}

bool is_concerned() {
  if (where == Where::server_thread) return is_server_thread;
  return !is_server_thread && is_called_from("CompletionJob4Sink");
}

// Destructors of Json allocate. The server keeps a reserve for them (base/memory_reserve.h).
bool is_spared() { return is_called_from("json_value7destroy"); }

}  // namespace

// A constructor of Json that runs out of memory leaves what it has taken: some bytes for each of
// the failures that are made here. All else must not leak.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() {
  return "leak:nlohmann::json_abi*basic_json*initializer_list";
}

namespace dsmoe::testing {
namespace {

// A list of lists, as a hostile body may be: its owner asks for no memory when it ends. The
// library's destructor does, and would end the program where there is none.
TEST(LargeJson, EndsWithoutMemory) {
  std::string text = "{\"a\":[";
  for (int i = 0; i < 1000; ++i) text += "[1,{\"b\":[\"text\"]}],";
  text += "0]}";
  is_server_thread = true;
  FailingMemory::concerns(is_concerned);
  constexpr int64_t kNever = int64_t{1} << 40;
  const auto asked = [&](auto&& end) {
    const FailingMemory counting(kNever, 1);
    end();
    return counting.num_asked();
  };
  std::optional<JsonOwner<Json>> owned(std::in_place, parse_json(text, "test"));
  std::optional<Json> plain(parse_json(text, "test"));
  EXPECT_EQ(asked([&] { owned.reset(); }), 0);
  EXPECT_GT(asked([&] { plain.reset(); }), 0);
  is_server_thread = false;
}

std::unique_ptr<SmallServer> make_server() {
  set_log_level(LogLevel::quiet);
  FailingMemory::concerns(is_concerned, is_spared);
  SmallServerOptions options;
  options.on_thread = [] { is_server_thread = true; };
  auto server = std::make_unique<SmallServer>(options);
  EXPECT_EQ(server->get("/health").status, 200);  // it runs
  return server;
}

// What a client does while memory fails at the n-th place, for every n until it meets none.
template <class F>
int at_every_place(SmallServer& server, int64_t num_at_once, F&& client) {
  int place = 0;
  for (bool has_failed = true; has_failed && !::testing::Test::HasFailure(); ++place) {
    {
      const FailingMemory memory(place, num_at_once);
      client();
      has_failed = memory.has_failed();
    }
    EXPECT_EQ(server.get("/health").status, 200) << "after place " << place;
  }
  return place;
}

Json short_answer(bool is_stream) {
  return {{"prompt", "The cat"}, {"max_tokens", 2}, {"ignore_eos", true}, {"stream", is_stream}};
}

void expect_nothing_runs(SmallServer& server) {
  const auto running = [&] { return server.service().engine().stats().running; };
  for (int i = 0; i < 6000 && running() > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(running(), 0);
}

TEST(FailingAllocations, CostAConnectionWhileAcceptingAndAnswering) {
  const auto server = make_server();
  EXPECT_GT(at_every_place(*server, 1, [&] { server->get("/v1/models"); }), 50);
  EXPECT_GT(at_every_place(*server, 3, [&] { server->get("/nothing"); }), 50);
}

TEST(FailingAllocations, CostACompletionWhereverTheyAre) {
  const auto server = make_server();
  for (const bool is_stream : {false, true}) {
    EXPECT_GT(at_every_place(*server, 1, [&] { server->complete(short_answer(is_stream)); }), 100);
    const Answer answer = server->complete(short_answer(is_stream));
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(is_stream ? answer.is_done() : answer.json().contains("usage"), true);
  }
  expect_nothing_runs(*server);
  const std::string metrics = "\n" + server->get("/metrics").body;
  EXPECT_NE(metrics.find("\ndsmoe_connections 1\n"), std::string::npos) << metrics;
  EXPECT_NE(metrics.find("\ndsmoe_requests_running 0\n"), std::string::npos) << metrics;
}

TEST(FailingAllocations, OfTheEnginesThreadCostACompletionAndNotTheEngine) {
  const auto server = make_server();
  where = Where::sinks;
  for (const bool is_stream : {false, true}) {
    EXPECT_GT(at_every_place(*server, 1, [&] { server->complete(short_answer(is_stream)); }), 3);
    EXPECT_GT(at_every_place(*server, 9, [&] { server->complete(short_answer(is_stream)); }), 3);
  }
  where = Where::server_thread;
  EXPECT_EQ(server->complete(short_answer(false)).status, 200);
  expect_nothing_runs(*server);
}

TEST(FailingAllocations, OfAllKindsAreOverWhenThereIsMemoryAgain) {
  const auto server = make_server();
  {
    const FailingMemory memory(0, int64_t{1} << 40);
    for (int i = 0; i < 20; ++i) EXPECT_EQ(server->get("/health").status, 0);
  }
  EXPECT_EQ(server->get("/health").status, 200);
}

TEST(FailingAllocations, DoNotKeepTheServerFromStopping) {
  for (int place = 0; place < 40; ++place) {
    const auto server = make_server();
    Client streaming(server->port());
    const Json body{
        {"prompt", "The cat"}, {"max_tokens", 200}, {"ignore_eos", true}, {"stream", true}};
    streaming.send(format_request("POST", "/v1/completions", body.dump()));
    ASSERT_NE(streaming.receive_some(), "");
    const FailingMemory memory(place, 5);
    server->stop();
  }
}

}  // namespace
}  // namespace dsmoe::testing

// Load for minutes: every answer bitwise that of the same request alone, memory flat; then
// overload.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <random>
#include <thread>

#include "base/log.h"
#include "serve/small_server.h"

namespace dsmoe::testing {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double soak_seconds() {
  const char* text = std::getenv("DSMOE_SOAK_SECONDS");
  return text != nullptr ? std::atof(text) : 120;
}

int64_t resident_kib() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("VmRSS:")) return std::atoll(line.c_str() + 6);
  }
  return 0;
}

std::vector<Json> mixed_requests() {
  std::mt19937 random(1);
  std::vector<Json> requests;
  const std::string beginning =
      "The cat sat on the mat. The dog sat on the log. One day the cat and the dog met, and they "
      "sat "
      "on the mat together, and the rain in the lane ran down the drain again and again.";
  for (int i = 0; i < 48; ++i) {
    Json body{{"prompt", beginning.substr(0, 20 + random() % 140)},
              {"max_tokens", 10 + random() % 50},
              {"temperature", (random() % 3) * 0.6},
              {"seed", random() % 1000},
              {"stream", true},
              {"return_token_ids", true}};
    if (random() % 3 == 0) body["num_experts_per_tok"] = 1 + random() % 5;
    if (random() % 4 == 0) body["logprobs"] = random() % 4;
    if (random() % 4 == 0) body["return_routed_gates"] = true;
    if (random() % 6 == 0) {
      body["routed_experts"] = Json::array({{{1, 2}, {3, 4}}, {{5, 6}, {7, 0}}});
      body.erase("num_experts_per_tok");
    }
    if (random() % 5 == 0) body["stop"] = "at";
    requests.push_back(std::move(body));
  }
  return requests;
}

// What an answer says, whatever its chunks: text, tokens, scores and routes joined.
Json joined(const Answer& answer) {
  Json all{{"text", ""},
           {"ids", Json::array()},
           {"scores", Json::array()},
           {"routes", Json::array()},
           {"gates", Json::array()},
           {"finish", nullptr},
           {"done", answer.is_done()}};
  const auto append = [](Json& to, const Json& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  for (const Json& event : answer.events()) {
    const Json& choice = event.at("choices").at(0);
    all["text"] = all["text"].get<std::string>() + choice.at("text").get<std::string>();
    if (choice.contains("token_ids")) append(all["ids"], choice["token_ids"]);
    if (choice["logprobs"].is_object()) append(all["scores"], choice["logprobs"]["token_logprobs"]);
    if (choice.contains("routed_experts")) append(all["routes"], choice["routed_experts"]);
    if (choice.contains("routed_gates")) append(all["gates"], choice["routed_gates"]);
    if (!choice["finish_reason"].is_null()) all["finish"] = choice["finish_reason"];
  }
  return all;
}

TEST(Soak, SixtyFourStreamingClientsGetTheAnswersOfOne) {
  set_log_level(LogLevel::quiet);
  const std::vector<Json> requests = mixed_requests();
  std::vector<Json> alone;
  {
    SmallServer server({.engine = {.max_batch = 1}});
    for (const Json& request : requests) alone.push_back(joined(server.complete(request)));
  }
  SmallServer server({.engine = {.max_batch = 16, .num_pages = 24}, .threads = 2});
  std::atomic<int64_t> answers{0}, different{0}, errors{0};
  const double seconds = soak_seconds();
  const auto start = Clock::now();
  std::atomic<int64_t> early_kib{0};
  std::vector<std::thread> clients;
  for (unsigned c = 0; c < 64; ++c) {
    clients.emplace_back([&, c] {
      std::mt19937 random(c);
      while (seconds_since(start) < seconds) {
        const std::size_t which = random() % requests.size();
        const Answer answer = server.complete(requests[which]);
        if (answer.status != 200 || !answer.is_done()) {
          ++errors;
        } else if (joined(answer) != alone[which]) {
          ++different;
        }
        ++answers;
        if (seconds_since(start) > seconds / 4 && early_kib == 0) early_kib = resident_kib();
      }
    });
  }
  for (std::thread& client : clients) client.join();
  const int64_t late_kib = resident_kib();
  const infer::EngineStats stats = server.service().engine().stats();
  fmt::print(
      "soak: 64 clients, {:.0f} s: {} answers, {} tokens; {} different, {} errors; {} preemptions, "
      "{} of {} prompt tokens reused; resident {} KiB after a quarter, {} KiB at the end\n",
      seconds, answers.load(), stats.answer_tokens, different.load(), errors.load(),
      stats.preemptions, stats.reused_tokens, stats.prompt_tokens, early_kib.load(), late_kib);
  EXPECT_GT(answers, 64);
  EXPECT_EQ(errors, 0);
  EXPECT_EQ(different, 0);
  EXPECT_LT(late_kib, early_kib + early_kib / 10 + 8192);
}

TEST(Soak, OverloadGivesOnly200And429And503) {
  set_log_level(LogLevel::quiet);
  SmallServer server({.engine = {.max_batch = 2, .max_queue = 4}});
  std::atomic<int> ok{0}, refused{0}, other{0};
  std::vector<std::thread> clients;
  for (int c = 0; c < 300; ++c) {  // 50 times what runs and waits
    clients.emplace_back([&] {
      const int status =
          server.complete({{"prompt", "The cat"}, {"max_tokens", 40}, {"ignore_eos", true}}).status;
      ++(status == 200 ? ok : status == 429 || status == 503 ? refused : other);
    });
  }
  for (std::thread& client : clients) client.join();
  fmt::print("soak: 300 clients on 6 places: {} answered, {} refused with 429 or 503, {} others\n",
             ok.load(), refused.load(), other.load());
  EXPECT_GT(ok, 0);
  EXPECT_EQ(other, 0);
  EXPECT_EQ(server.get("/health").status, 200);
}

}  // namespace
}  // namespace dsmoe::testing

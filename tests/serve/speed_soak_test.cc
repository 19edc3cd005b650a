// What the server costs, on a model of 110 million parameters: its tokens per second beside those
// of `dsmoe bench`, the gaps of a stream beside long prompts, the waits of a normal client beside
// abuse.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

#include "base/scratch_folder.h"
#include "cli/program.h"
#include "serve/abuse_cases.h"
#include "serve/http_client.h"
#include "serve/running_server.h"

namespace dsmoe::testing {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point start, Clock::time_point end) {
  return std::chrono::duration<double>(end - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Below which 99 of 100 lie.
double ninety_ninth(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[(values.size() * 99 + 99) / 100 - 1];
}

class SpeedSoak : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    scratch_ = std::make_unique<ScratchFolder>();
    model_ = (*scratch_ / "model").string();
    const std::string config = std::string(DSMOE_SOURCE_DIR) + "/tests/serve/soak_config.json";
    const Ran made = run_dsmoe({"demo", "--random", "--config", config, "-o", model_, "-q"});
    ASSERT_EQ(made.code, 0) << made.err;
    server_ = std::make_unique<RunningServer>(RunningServerOptions{
        .program = DSMOE_PROGRAM, .arguments = {model_, "--port", "0", "--quiet"}});
    ASSERT_TRUE(server_->wait_until_serving());
  }
  static void TearDownTestSuite() {
    server_.reset();
    scratch_.reset();
  }
  static uint16_t port() { return server_->port(); }

  static double metric(const std::string& name) {
    const std::string text = "\n" + Client(port()).get("/metrics").body;
    const std::size_t at = text.find("\n" + name + " ");
    return at == std::string::npos ? std::nan("") : std::atof(text.c_str() + at + name.size() + 2);
  }

  static std::unique_ptr<ScratchFolder> scratch_;
  static std::string model_;
  static std::unique_ptr<RunningServer> server_;
};
std::unique_ptr<ScratchFolder> SpeedSoak::scratch_;
std::string SpeedSoak::model_;
std::unique_ptr<RunningServer> SpeedSoak::server_;

constexpr int kTokens = 128;

// Tokens per second of `count` clients that stream at once, from the first token of the first to
// the last of the last.
double client_rate(uint16_t port, int count) {
  std::vector<Clock::time_point> begins(static_cast<std::size_t>(count)), ends(begins);
  std::vector<std::thread> clients;
  for (int c = 0; c < count; ++c) {
    clients.emplace_back([&, c] {
      const auto place = static_cast<std::size_t>(c);
      const Json body{{"prompt", {5 + c}},
                      {"max_tokens", kTokens},
                      {"ignore_eos", true},
                      {"temperature", 0},
                      {"stream", true}};
      Client client(port);
      client.send(format_request("POST", "/v1/completions", body.dump()));
      std::string tail;
      bool has_begun = false;
      for (std::string piece; !(piece = client.receive_some()).empty();) {
        if (!has_begun && piece.find("data:") != std::string::npos) {
          begins[place] = Clock::now();
          has_begun = true;
        }
        tail = (tail + piece)
                   .substr(tail.size() + piece.size() > 64 ? tail.size() + piece.size() - 64 : 0);
        if (tail.find("[DONE]") != std::string::npos) break;
      }
      ends[place] = Clock::now();
    });
  }
  for (std::thread& client : clients) client.join();
  const double seconds = seconds_between(*std::min_element(begins.begin(), begins.end()),
                                         *std::max_element(ends.begin(), ends.end()));
  return count * (kTokens - 1) / seconds;
}

double bench_rate(const std::string& model, int batch) {
  const Ran ran =
      run_dsmoe({"bench", model, "--prompt", "0", "--generate", std::to_string(kTokens), "--batch",
                 std::to_string(batch), "--repetitions", "1", "--no-limits", "--json", "-q"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  return Json::parse(ran.out).at("results").at(0).at("tokens_per_second");
}

// Server and bench take turns, so that both meet the same moods of the machine.
TEST_F(SpeedSoak, StreamsAsFastAsTheBenchDecodes) {
  for (const int clients : {1, 16}) {
    std::vector<double> served, benched, ratios;
    client_rate(port(), clients);
    for (int round = 0; round < 5; ++round) {
      benched.push_back(bench_rate(model_, clients));
      served.push_back(client_rate(port(), clients));
      ratios.push_back(served.back() / benched.back());
    }
    fmt::print(
        "soak: {} clients: {:.0f} tokens/s served, {:.0f} in dsmoe bench; median ratio {:.3f} of "
        "{:.3f}\n",
        clients, median(served), median(benched), median(ratios), fmt::join(ratios, ", "));
    EXPECT_GE(median(ratios), 0.85) << clients << " clients";
  }
}

void read_long_prompt(uint16_t port, int32_t first) {
  std::vector<int32_t> prompt(2000, 9);
  prompt[0] = first;  // found in no cache
  EXPECT_EQ(Client(port).post("/v1/completions", {{"prompt", prompt}, {"max_tokens", 1}}).status,
            200);
}

TEST_F(SpeedSoak, ALongPromptDelaysNoStreamByMoreThanTwoChunks) {
  read_long_prompt(port(), 9);  // alone: in chunks
  Client streaming(port());
  const Json body{{"prompt", {5}}, {"max_tokens", 4000}, {"ignore_eos", true}, {"stream", true}};
  streaming.send(format_request("POST", "/v1/completions", body.dump()));
  ASSERT_NE(streaming.receive_some(), "");
  std::atomic<bool> done{false};
  std::vector<double> prefills;
  std::thread prefill([&] {
    for (int i = 0; i < 5; ++i) {
      const auto start = Clock::now();
      read_long_prompt(port(), 10 + i);
      prefills.push_back(seconds_between(start, Clock::now()));
    }
    done = true;
  });
  std::vector<double> gaps;
  auto last = Clock::now();
  while (!done && !streaming.receive_some().empty()) {
    const auto now = Clock::now();
    gaps.push_back(seconds_between(last, now));
    last = now;
  }
  prefill.join();
  ASSERT_GT(gaps.size(), 35u);  // eight chunks of 256 to a prompt
  const double worst = *std::max_element(gaps.begin(), gaps.end());
  const double chunk = metric("dsmoe_longest_step_seconds");
  fmt::print(
      "soak: 5 prompts of 2,000 tokens, {:.0f} ms each: longest chunk {:.1f} ms, longest gap of a "
      "stream {:.1f} ms (median {:.1f})\n",
      median(prefills) * 1e3, chunk * 1e3, worst * 1e3, median(gaps) * 1e3);
  EXPECT_LT(worst, 2 * chunk);
}

std::vector<double> normal_requests(uint16_t port, int count) {
  std::vector<double> times;
  for (int i = 0; i < count; ++i) {
    const auto start = Clock::now();
    const Json body{{"prompt", {5, 6, 7, i}}, {"max_tokens", 16}, {"ignore_eos", true}};
    EXPECT_EQ(Client(port).post("/v1/completions", body).status, 200);
    times.push_back(seconds_between(start, Clock::now()));
  }
  return times;
}

// Requests as raw bytes: all bodies of the abuse suite, and connections that stay or leave.
std::vector<std::string> attacks() {
  std::vector<std::string> all{
      "GET /health HTTP/1.1\r\nHost: localhost\r\nX: slow",
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n\r\n{\"prompt\"",
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n",
      "\xff\xfe\r\n\r\n",
      format_request("POST", "/v1/completions",
                     R"({"prompt": [5], "max_tokens": 2000, "ignore_eos": true, "stream": true})"),
      format_request("POST", "/v1/completions", R"({"prompt": [5], "max_tokens": 2000})"),
      format_request("GET", "/v1/models", "") + format_request("GET", "/v1/models", ""),
      format_request("GET", "/" + std::string(30000, 'a'), "")};
  for (const BodyCase& each : completion_cases()) {
    all.push_back(format_request("POST", "/v1/completions", each.body));
  }
  for (const BodyCase& each : chat_cases()) {
    all.push_back(format_request("POST", "/v1/chat/completions", each.body));
  }
  for (const BodyCase& each : kind_cases()) {
    all.push_back(format_request("POST", "/v1/completions", each.body));
  }
  return all;
}

TEST_F(SpeedSoak, AbuseDoesNotDoubleANormalClientsWait) {
  const std::vector<std::string> all = attacks();
  normal_requests(port(), 20);
  const double alone = ninety_ninth(normal_requests(port(), 300));
  std::atomic<bool> done{false};
  std::atomic<std::size_t> next{0};
  std::vector<std::thread> abusers;
  for (int a = 0; a < 4; ++a) {
    abusers.emplace_back([&] {
      while (!done) {
        Client client(port());
        client.send(all[next++ % all.size()]);
        std::this_thread::sleep_for(std::chrono::milliseconds(20));  // and leaves
      }
    });
  }
  const auto start = Clock::now();
  const double beside = ninety_ninth(normal_requests(port(), 300));
  done = true;
  for (std::thread& abuser : abusers) abuser.join();
  fmt::print(
      "soak: 99th percentile of a normal request {:.1f} ms alone, {:.1f} ms beside {:.0f} attacks "
      "a second of {} kinds\n",
      alone * 1e3, beside * 1e3,
      static_cast<double>(next.load()) / seconds_between(start, Clock::now()), all.size());
  EXPECT_LT(beside, 2 * alone);
  EXPECT_EQ(Client(port()).get("/health").status, 200);
}

}  // namespace
}  // namespace dsmoe::testing

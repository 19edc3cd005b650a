// Everything at once that strangers try, beside eight normal clients: none of them notices much.
// DSMOE_SOAK_SECONDS says how long, DSMOE_SOAK_ATTACKS (names with commas) which attacks.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <thread>

#include "base/scratch_folder.h"
#include "cli/program.h"
#include "serve/http_client.h"
#include "serve/running_server.h"
#include "serve/structured_cases.h"

namespace dsmoe::testing {
namespace {

using Clock = std::chrono::steady_clock;
using Done = std::atomic<bool>;
using Clients = std::vector<std::unique_ptr<Client>>;

// Under sanitizers times say nothing.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kTimesCount = false;
#else
constexpr bool kTimesCount = true;
#endif

constexpr int kConnections = 400;  // of the server
constexpr double kDrainSeconds = 5;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double soak_seconds() {
  const char* text = std::getenv("DSMOE_SOAK_SECONDS");
  return text != nullptr ? std::atof(text) : 300;
}

double ninety_ninth(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[(values.size() * 99 + 99) / 100 - 1];
}

void rest(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

// Until `done`, but not longer than that.
void hold(const Done& done, int milliseconds) {
  for (int i = 0; i < milliseconds / 10 && !done; ++i) rest(10);
}

// The write of "100 Continue" fails, and nobody ends the request.
void leaking_packets(uint16_t port, const Done& done) {
  while (!done) {
    Client client(port);
    client.send(
        "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /health HTTP/1.1\r\n"
        "Host: localhost\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n{}");
    client.close();
    rest(5);
  }
}

void bodies_held_open(uint16_t port, const Done& done) {
  const std::string head =
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8000000\r\n\r\n";
  const std::string piece(1'000'000, ' ');
  while (!done) {
    Clients clients;
    for (int i = 0; i < 30 && !done; ++i) {
      clients.push_back(std::make_unique<Client>(port));
      clients.back()->send(head);
      for (int sent = 0; sent < 7 && clients.back()->send(piece) && !done; ++sent) rest(2);
    }
    hold(done, 3000);
  }
}

void idle_connections(uint16_t port, const Done& done) {
  std::deque<std::unique_ptr<Client>> clients;
  while (!done) {
    clients.push_back(std::make_unique<Client>(port));
    if (clients.size() % 3 == 0) clients.back()->send("GET /hea");
    if (clients.size() > kConnections + 100) clients.pop_front();
    rest(2);
  }
}

void readers_that_do_not_read(uint16_t port, const Done& done) {
  std::string many;
  for (int i = 0; i < 500; ++i) many += format_request("GET", "/", "");
  while (!done) {
    Clients clients;
    for (int i = 0; i < 8; ++i) {
      clients.push_back(std::make_unique<Client>(port, 4096));
      clients.back()->send(many);
    }
    hold(done, 1000);
  }
}

// What takes long to parse or to answer on the one thread that does all HTTP.
void large_json(uint16_t port, const Done& done) {
  std::string ids = "{\"tokens\": [1", keys = "{\"prompt\": \"a\"", rows = "[]";
  for (int i = 0; i < 4'000'000; ++i) ids += ",1";
  for (int i = 0; i < 700'000; ++i) keys += fmt::format(",\"{}\":1", i);
  for (int i = 0; i < 1'700'000; ++i) rows += ",[]";
  const std::pair<const char*, std::string> requests[] = {
      {"/detokenize", ids + "]}"},
      {"/v1/completions", keys + "}"},
      {"/v1/completions", R"({"prompt": [5], "max_tokens": 1, "routed_experts": [)" + rows + "]}"}};
  while (!done) {
    for (const auto& [path, body] : requests) {
      Client client(port);
      client.send(format_request("POST", path, body));
      client.receive(1);
      hold(done, 200);
    }
  }
}

// The log's reader does not read: what is refused is logged.
void much_to_log(uint16_t port, const Done& done) {
  while (!done) {
    Client client(port);
    for (int i = 0; i < 20 && client.post("/v1/completions", {{"n", 0}}).status != 0; ++i) rest(5);
  }
}

// What takes long to prepare, and is refused late.
void fields(uint16_t port, const Done& done) {
  const std::pair<const char*, std::vector<BodyCase>> lists[] = {
      {"/v1/completions", structured_cases()},
      {"/v1/completions", field_cases()},
      {"/v1/chat/completions", tool_cases()}};
  while (!done) {
    for (const auto& [path, cases] : lists) {
      for (const BodyCase& each : cases) {
        if (done) return;
        Client(port).request("POST", path, each.body);
        rest(20);
      }
    }
  }
}

struct Attack {
  const char* name;
  void (*run)(uint16_t port, const Done& done);
};
constexpr Attack kAttacks[] = {{"packets", leaking_packets},
                               {"bodies", bodies_held_open},
                               {"idle", idle_connections},
                               {"readers", readers_that_do_not_read},
                               {"json", large_json},
                               {"log", much_to_log},
                               {"fields", fields}};

bool is_chosen(const std::string& name) {
  const char* names = std::getenv("DSMOE_SOAK_ATTACKS");
  return names == nullptr ||
         ("," + std::string(names) + ",").find("," + name + ",") != std::string::npos;
}

// Normal clients, and one that asks for /health.
class Normal {
 public:
  explicit Normal(uint16_t port) {
    for (int c = 0; c < 8; ++c) threads_.emplace_back([this, port, c] { ask(port, c); });
    threads_.emplace_back([this, port] { watch_health(port); });
  }
  ~Normal() { stop(); }
  void stop() {
    done_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  const std::vector<double>& times() const { return times_; }
  const std::vector<double>& health() const { return health_; }
  int num_failed() const { return num_failed_; }

 private:
  // Seconds of one request; counted as failed unless it is answered with 200.
  template <class F>
  double timed(F&& status) {
    const auto start = Clock::now();
    int code = 0;
    try {
      code = status();
    } catch (const std::exception& e) {
      fmt::print("soak: {}\n", e.what());
    }
    if (code != 200) fmt::print("soak: a normal client got {}\n", code);
    num_failed_ += code == 200 ? 0 : 1;
    return seconds_since(start);
  }
  void ask(uint16_t port, int client) {
    for (int i = 0; !done_; ++i) {
      const Json body{
          {"prompt", {5, 6, 7 + client, i % 50}}, {"max_tokens", 16}, {"ignore_eos", true}};
      const double time = timed([&] { return Client(port).post("/v1/completions", body).status; });
      const std::lock_guard lock(mutex_);
      times_.push_back(time);
    }
  }
  void watch_health(uint16_t port) {
    for (; !done_; rest(50)) {
      const double time = timed([&] { return Client(port).get("/health").status; });
      const std::lock_guard lock(mutex_);
      health_.push_back(time);
    }
  }

  Done done_{false};
  std::mutex mutex_;
  std::vector<double> times_, health_;
  std::atomic<int> num_failed_{0};
  std::vector<std::thread> threads_;
};

class Attackers {
 public:
  explicit Attackers(uint16_t port) {
    for (const Attack& attack : kAttacks) {
      if (!is_chosen(attack.name)) continue;
      threads_.emplace_back([this, port, run = attack.run] {
        while (!done_) {
          try {
            run(port, done_);
          } catch (const std::exception&) {  // it was refused: again
          }
        }
      });
    }
  }
  ~Attackers() {
    done_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  Done done_{false};
  std::vector<std::thread> threads_;
};

struct Use {
  int64_t kibibytes = 0, descriptors = 0;
};

Use use_of(pid_t pid) {
  const std::string process = "/proc/" + std::to_string(pid);
  Use use;
  std::ifstream status(process + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) use.kibibytes = std::atoll(line.c_str() + 6);
  }
  for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator(process + "/fd")) {
    ++use.descriptors;
  }
  return use;
}

// Normal clients beside the attacks, and then nobody.
struct Round {
  std::vector<double> times, health;
  int num_failed = 0;
  Use use;
};

Round run_round(const RunningServer& server, double seconds, bool is_attacked) {
  Round round;
  Normal normal(server.port());
  {
    std::optional<Attackers> attackers;
    if (is_attacked) attackers.emplace(server.port());
    rest(static_cast<int>(seconds * 1e3));
    normal.stop();
  }
  rest(2000);  // to see them leave
  round.times = normal.times();
  round.health = normal.health();
  round.num_failed = normal.num_failed();
  round.use = use_of(server.pid());
  return round;
}

TEST(AttackSoak, NormalClientsDoNotNoticeMuch) {
  const ScratchFolder scratch;
  const std::string config = std::string(DSMOE_SOURCE_DIR) + "/tests/clients/config.json";
  const std::string model = (scratch / "model").string(), log = (scratch / "log").string();
  const Ran made = run_dsmoe({"demo", "--random", "--config", config, "-o", model, "-q"});
  ASSERT_EQ(made.code, 0) << made.err;
  // A log that nobody reads: only where that is one of the attacks.
  int reader = -1;
  if (is_chosen("log")) {
    ASSERT_EQ(::mkfifo(log.c_str(), 0600), 0);
    reader = ::open(log.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  }
  RunningServer server({.program = DSMOE_PROGRAM,
                        .arguments = {model, "--port", "0", "--max-bodies", "64",
                                      "--max-connections", std::to_string(kConnections),
                                      "--drain-seconds", std::to_string(kDrainSeconds)},
                        .log_file = log});
  ASSERT_TRUE(server.wait_until_serving());

  const double seconds = soak_seconds();
  const Round quiet = run_round(server, seconds / 10, false);
  const Round first = run_round(server, seconds / 4, true);
  const Round second = run_round(server, seconds, true);
  const double alone = ninety_ninth(quiet.times), beside = ninety_ninth(second.times);
  const double health = *std::max_element(second.health.begin(), second.health.end());
  fmt::print(
      "soak: {:.0f} s of attacks beside 8 clients: {} answers, {} failed; 99th percentile {:.1f} "
      "ms "
      "quiet, {:.1f} ms beside; /health at most {:.1f} ms ({:.1f} quiet); resident {} KiB, {} "
      "descriptors after a quarter; {} KiB, {} descriptors at the end\n",
      seconds, second.times.size(), first.num_failed + second.num_failed, alone * 1e3, beside * 1e3,
      health * 1e3, *std::max_element(quiet.health.begin(), quiet.health.end()) * 1e3,
      first.use.kibibytes, first.use.descriptors, second.use.kibibytes, second.use.descriptors);
  EXPECT_EQ(quiet.num_failed + first.num_failed + second.num_failed, 0);
  EXPECT_GT(second.times.size(), 100u);
  if (kTimesCount) {
    EXPECT_LT(beside, 3 * alone);
    EXPECT_LT(health, 0.1);
  }
  EXPECT_LT(second.use.kibibytes, first.use.kibibytes + first.use.kibibytes / 10 + (16 << 10));
  EXPECT_LE(second.use.descriptors, first.use.descriptors + 2);

  // In the middle of it all.
  const auto attackers = std::make_unique<Attackers>(server.port());
  rest(1000);
  const auto start = Clock::now();
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait(), 0);
  const double drained = seconds_since(start);
  fmt::print("soak: SIGTERM in the middle of it: ended after {:.1f} s of {:.0f}\n", drained,
             kDrainSeconds);
  EXPECT_LT(drained, kDrainSeconds + (kTimesCount ? 3 : 30));
  if (reader >= 0) ::close(reader);
}

}  // namespace
}  // namespace dsmoe::testing

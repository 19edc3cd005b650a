// What a service manager hears: of the program, and of a heartbeat whose threads hang.
#include "serve/supervisor.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>

#include "base/scratch_folder.h"
#include "cli/program.h"
#include "serve/http_client.h"
#include "serve/running_server.h"
#include "serve/small_server.h"

namespace dsmoe::testing {
namespace {

using std::chrono::milliseconds;

// The manager's end.
class Manager {
 public:
  explicit Manager(const std::string& name) : socket_(::socket(AF_UNIX, SOCK_DGRAM, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, name.data(), name.size());
    if (name[0] == '@') address.sun_path[0] = '\0';
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    EXPECT_EQ(::bind(socket_, reinterpret_cast<sockaddr*>(&address), size), 0) << name;
    const timeval minute{.tv_sec = 60, .tv_usec = 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &minute, sizeof(minute));
  }
  ~Manager() { ::close(socket_); }
  Manager(const Manager&) = delete;
  Manager& operator=(const Manager&) = delete;

  std::string hear() { return receive(0); }  // empty after a minute
  bool has_heard_nothing() { return receive(MSG_DONTWAIT).empty(); }

 private:
  std::string receive(int flags) {
    char bytes[256];
    const ssize_t count = ::recv(socket_, bytes, sizeof bytes, flags);
    return count > 0 ? std::string(bytes, static_cast<std::size_t>(count)) : "";
  }
  int socket_;
};

std::string abstract_name() { return fmt::format("@dsmoe-supervisor-test-{}", ::getpid()); }

class ServedUnder : public ::testing::TestWithParam<bool> {};

TEST_P(ServedUnder, IsToldOfReadinessLifeAndEnd) {
  const ScratchFolder scratch;
  const std::string name = GetParam() ? abstract_name() : (scratch / "notify").string();
  Manager manager(name);
  const std::string folder = (scratch / "model").string();
  const std::string config = std::string(DSMOE_SOURCE_DIR) + "/tests/clients/config.json";
  const Ran made = run_dsmoe({"demo", "--random", "--config", config, "-o", folder, "-q"});
  ASSERT_EQ(made.code, 0) << made.err;
  RunningServer server(
      {.program = DSMOE_PROGRAM,
       .arguments = {folder, "--port", "0", "--threads", "1"},
       .environment = {"NOTIFY_SOCKET=" + name, "WATCHDOG_USEC=200000", "WATCHDOG_PID="}});
  ASSERT_EQ(manager.hear(), "READY=1");
  ASSERT_TRUE(server.wait_until_serving());
  EXPECT_EQ(Client(server.port()).get("/health").status, 200);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(manager.hear(), "WATCHDOG=1");
  server.signal(SIGTERM);
  std::string last;
  while ((last = manager.hear()) == "WATCHDOG=1") {
  }
  EXPECT_EQ(last, "STOPPING=1");
  EXPECT_EQ(server.wait(), 0);
}
INSTANTIATE_TEST_SUITE_P(PathOrName, ServedUnder, ::testing::Bool());

class HeartbeatTest : public ::testing::Test {
 protected:
  // What is posted runs at once, or never.
  serve::Post post() {
    return [this](const std::function<void()>& f) {
      ++num_posted_;
      if (http_answers_) f();
    };
  }
  // Told apart by how often it was asked: four times in the watchdog's time.
  serve::Heartbeat::SilentSeconds silence() {
    return [this] {
      ++num_asked_;
      num_asked_.notify_all();
      return silent_seconds_.load();
    };
  }
  void wait_until_asked(int times) {
    for (int asked; (asked = num_asked_) < times;) num_asked_.wait(asked);
  }

  Manager manager_{abstract_name()};
  serve::Supervisor supervisor_{{.socket = abstract_name(), .watchdog = milliseconds(20)}};
  std::atomic<bool> http_answers_{true};
  std::atomic<double> silent_seconds_{0};
  std::atomic<int> num_posted_{0}, num_asked_{0};
};

TEST_F(HeartbeatTest, StopsWhileAStepOfTheEngineHangsAndGoesOnAfterIt) {
  silent_seconds_ = 0.01;  // half of the watchdog's time
  const serve::Heartbeat heartbeat(supervisor_, post(), silence());
  wait_until_asked(8);
  EXPECT_TRUE(manager_.has_heard_nothing());
  silent_seconds_ = 0.009;  // a long prompt, whose layers go by
  EXPECT_EQ(manager_.hear(), "WATCHDOG=1");
}

TEST_F(HeartbeatTest, StopsWhileTheHttpThreadHangs) {
  http_answers_ = false;
  {
    const serve::Heartbeat heartbeat(supervisor_, post(), silence());
    std::this_thread::sleep_for(milliseconds(60));  // long enough for a dozen, were it wrong
  }
  EXPECT_EQ(num_posted_, 1);
  EXPECT_TRUE(manager_.has_heard_nothing());
}

// The server's own threads, and its engine in a step that hangs.
TEST_F(HeartbeatTest, OfAServerStopsWithItsEngine) {
  SmallServer server;
  infer::Engine& engine = server.service().engine();
  const auto wait_for_silence = [&](double seconds) {
    while (engine.silent_seconds() < seconds) std::this_thread::sleep_for(milliseconds(5));
  };
  serve::Supervisor supervisor({.socket = abstract_name(), .watchdog = milliseconds(200)});
  const serve::Heartbeat heartbeat(supervisor, server.service().post(),
                                   [&] { return engine.silent_seconds(); });
  EXPECT_EQ(manager_.hear(), "WATCHDOG=1");
  engine.inject(infer::Engine::Fault::stall);
  wait_for_silence(0.2);
  while (!manager_.has_heard_nothing()) {  // what was said before
  }
  wait_for_silence(0.4);  // four times it could have been said
  EXPECT_TRUE(manager_.has_heard_nothing());
  engine.inject(infer::Engine::Fault::none);
  EXPECT_EQ(manager_.hear(), "WATCHDOG=1");
  server.stop();
}

TEST_F(HeartbeatTest, IsSilentWhereNobodyAsks) {
  serve::Supervisor without_time({.socket = abstract_name()});
  const serve::Heartbeat heartbeat(without_time, post(), silence());
  serve::Supervisor without_socket({.watchdog = milliseconds(20)});
  const serve::Heartbeat other(without_socket, post(), silence());
  without_socket.ready();
  EXPECT_TRUE(manager_.has_heard_nothing());
  EXPECT_EQ(num_posted_, 0);
}

TEST(Supervisor, ANameThatCannotBeIsSaidAndNoMore) {
  for (const std::string& name :
       {std::string("relative"), "/" + std::string(200, 'x'), std::string("/nowhere/at/all")}) {
    ::testing::internal::CaptureStderr();
    serve::Supervisor supervisor({.socket = name});
    supervisor.ready();
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("NOTIFY_SOCKET=" + name), std::string::npos) << said;
    EXPECT_NE(said.find("the service manager is not told"), std::string::npos) << said;
  }
}

TEST(Supervisor, ReadsWhatTheManagerSays) {
  const auto options = [](const char* time, const std::string& process) {
    ::setenv("NOTIFY_SOCKET", "@x", 1);
    ::setenv("WATCHDOG_USEC", time, 1);
    ::setenv("WATCHDOG_PID", process.c_str(), 1);
    return serve::supervisor_from_environment();
  };
  EXPECT_EQ(options("3000000", std::to_string(::getpid())).watchdog, milliseconds(3000));
  EXPECT_EQ(options("3000000", "").socket, "@x");
  EXPECT_EQ(options("3000000", "1").watchdog.count(), 0) << "another process's";
  EXPECT_EQ(options("soon", "").watchdog.count(), 0);
  EXPECT_EQ(options("-5", "").watchdog.count(), 0);
  EXPECT_EQ(options("9000000000000000000", "").watchdog, std::chrono::hours(1));
}

}  // namespace
}  // namespace dsmoe::testing

// `dsmoe serve MODEL 2>&1 | READER`, where the reader leaves or stops: the server goes on.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include "base/scratch_folder.h"
#include "cli/program.h"
#include "serve/http_client.h"
#include "serve/running_server.h"

namespace dsmoe::testing {
namespace {

constexpr int kMany = 6000;  // lines: 700 KB, more than a pipe and the log's two buffers hold

bool is_ready(uint16_t port) {
  try {
    return Client(port).get("/health").status == 200;
  } catch (const std::runtime_error&) {  // it does not listen yet
    return false;
  }
}

class LogReader : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string folder = (scratch_ / "model").string();
    const std::string config = std::string(DSMOE_SOURCE_DIR) + "/tests/clients/config.json";
    const Ran made = run_dsmoe({"demo", "--random", "--config", config, "-o", folder, "-q"});
    ASSERT_EQ(made.code, 0) << made.err;
    server_.emplace(RunningServerOptions{.program = DSMOE_PROGRAM,
                                         .arguments = {folder, "--port", "0", "--threads", "1"},
                                         .log_with_output = true});
    ASSERT_TRUE(server_->wait_until_serving());
  }

  // Requests that are refused, each a line of the log.
  void ask(int times) {
    Client client(server_->port());
    for (int i = 0; i < times; ++i) {
      ASSERT_EQ(client.request("POST", "/v1/completions", "{}").status, 400) << "request " << i;
    }
  }
  void expect_good_end() {
    EXPECT_EQ(Client(server_->port()).get("/health").status, 200);
    server_->signal(SIGTERM);
    EXPECT_EQ(server_->wait(), 0);
  }

  ScratchFolder scratch_;
  std::optional<RunningServer> server_;
};

TEST_F(LogReader, MayLeave) {
  server_->leave();
  ask(20);
  expect_good_end();
}

TEST_F(LogReader, MayStopForGood) {
  ask(kMany);
  expect_good_end();
}

TEST_F(LogReader, IsToldWhatItMissed) {
  ask(kMany);
  int num_read = 0;
  std::string line;
  while ((line = server_->read_line()).find(" lines of this log were lost") == std::string::npos) {
    ASSERT_NE(line, "");
    if (line.find(" status=400") != std::string::npos) ++num_read;
  }
  EXPECT_EQ(line,
            "dsmoe: warning: " + std::to_string(kMany - num_read) + " lines of this log were lost");
  expect_good_end();
}

TEST_F(LogReader, MayLeaveBeforeTheServerIsReady) {
  const uint16_t port = server_->port();
  expect_good_end();
  server_.emplace(RunningServerOptions{
      .program = DSMOE_PROGRAM,
      .arguments = {(scratch_ / "model").string(), "--port", std::to_string(port)},
      .log_with_output = true});
  server_->leave();
  for (int i = 0; i < 6000 && !is_ready(port); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(is_ready(port));
  server_->signal(SIGTERM);
  EXPECT_EQ(server_->wait(), 0);
}

}  // namespace
}  // namespace dsmoe::testing

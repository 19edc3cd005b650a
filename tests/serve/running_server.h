// `dsmoe serve` as a user runs it, in the background.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace dsmoe::testing {

struct RunningServerOptions {
  std::string program;
  std::vector<std::string> arguments;         // after "serve"
  std::string folder = {};                    // to run in; empty: here
  std::string log_file = {};                  // stderr; empty: thrown away
  bool log_with_output = false;               // 2>&1 instead
  std::vector<std::string> environment = {};  // added to this process's: "NAME=value"
};

// Killed at the end of its life, if it still runs.
class RunningServer {
 public:
  explicit RunningServer(RunningServerOptions options);
  ~RunningServer();
  RunningServer(const RunningServer&) = delete;
  RunningServer& operator=(const RunningServer&) = delete;

  // The next line of its output without the newline, once it is there; empty at the end.
  std::string read_line();
  // Reads up to the line that says "serving"; false when it ended before.
  bool wait_until_serving();
  // Nobody reads its output any more.
  void leave();
  uint16_t port() const { return port_; }
  pid_t pid() const { return pid_; }
  void signal(int number);
  int wait();  // its exit code; 128 + signal when killed

 private:
  pid_t pid_ = -1;
  int output_ = -1;
  uint16_t port_ = 0;
};

}  // namespace dsmoe::testing

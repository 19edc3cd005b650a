// Tells the service manager (systemd and those that speak its protocol) that the server is ready,
// that it lives, and that it ends.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "serve/completion_job.h"

namespace dsmoe::serve {

// A service manager asks through the environment. Without NOTIFY_SOCKET every call does nothing.
struct SupervisorOptions {
  std::string socket;                     // a path, or @name; empty: nobody asks
  std::chrono::microseconds watchdog{0};  // to be told of life at least so often; 0: not asked for
};
SupervisorOptions supervisor_from_environment();

class Supervisor {
 public:
  explicit Supervisor(SupervisorOptions options = supervisor_from_environment());
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  void ready() { tell("READY=1"); }        // there is a model
  void stopping() { tell("STOPPING=1"); }  // it drains
  void alive() { tell("WATCHDOG=1"); }
  std::chrono::microseconds watchdog() const;  // 0: nobody asks

 private:
  void tell(std::string_view state);

  SupervisorOptions options_;
  int socket_ = -1;
};

// While one exists, a sign of life up to four times in the watchdog's time: when the HTTP thread
// has run what was last posted to it, and the engine was silent for less than half of that time.
// Nothing that was posted may run after its end.
class Heartbeat {
 public:
  using SilentSeconds = std::function<double()>;  // infer::Engine's

  Heartbeat(Supervisor& supervisor, Post post, SilentSeconds silent_seconds);
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

 private:
  void thread_main();
  void ask_http_thread();

  Supervisor& supervisor_;
  const Post post_;
  const SilentSeconds silent_seconds_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ending_ = false;
  std::atomic<bool> has_answered_{false};
  std::thread thread_;
};

}  // namespace dsmoe::serve

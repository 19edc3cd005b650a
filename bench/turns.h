// Turns of a second with another program: where TURNS names a file, whoever has locked it runs.
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>

#include "base/error.h"

namespace dsmoe::bench {

class Turns {
 public:
  Turns() = default;
  ~Turns() { give(); }
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

  // Before each run.
  void take() {
    const char* path = std::getenv("TURNS");
    if (path == nullptr) return;
    if (file_ >= 0 && Clock::now() - taken_ < std::chrono::seconds(1)) return;
    give();
    file_ = open(path, O_RDONLY | O_CLOEXEC);
    if (file_ < 0 || flock(file_, LOCK_EX) != 0) {
      fail(ErrorKind::input, "cannot lock {}, which TURNS names", path);
    }
    taken_ = Clock::now();
  }

 private:
  using Clock = std::chrono::steady_clock;

  void give() {
    if (file_ < 0) return;
    close(file_);
    file_ = -1;
    usleep(10'000);  // for the other to take it
  }

  int file_ = -1;
  Clock::time_point taken_;
};

}  // namespace dsmoe::bench

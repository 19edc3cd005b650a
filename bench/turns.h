// Turns with another program: where TURNS names a file, both lock it around each of their runs.
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdlib>

#include "base/error.h"

namespace dsmoe::bench {

class Turn {
 public:
  Turn() {
    const char* path = std::getenv("TURNS");
    if (path == nullptr) return;
    file_ = open(path, O_RDONLY | O_CLOEXEC);
    if (file_ < 0 || flock(file_, LOCK_EX) != 0) {
      fail(ErrorKind::input, "cannot lock {}, which TURNS names", path);
    }
  }
  ~Turn() {
    if (file_ < 0) return;
    close(file_);
    usleep(10'000);  // for the other to take it
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  int file_ = -1;
};

}  // namespace dsmoe::bench

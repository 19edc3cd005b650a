// How long threads had work and no CPU, as the kernel counts it.
#pragma once

#include <sys/types.h>

#include <vector>

namespace dsmoe {

class RunDelay {
 public:
  explicit RunDelay(int num_threads) : threads_(static_cast<std::size_t>(num_threads)) {}
  ~RunDelay();
  RunDelay(const RunDelay&) = delete;
  RunDelay& operator=(const RunDelay&) = delete;

  // From now on the idx-th is this thread of the process. Where the system does not show its
  // schedstat, it counts as one that never waited.
  void watch(int idx, pid_t thread);

  // Seconds that the first `count` threads waited, together, since each was last asked or watched.
  double since_last(int count);

 private:
  struct Watched {
    pid_t thread = 0;
    int file = -1;  // /proc/self/task/<thread>/schedstat
    long long nanoseconds = 0;
  };
  std::vector<Watched> threads_;
};

}  // namespace dsmoe

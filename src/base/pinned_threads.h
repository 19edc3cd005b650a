// Threads kept to CPUs of their own.
#pragma once

#include <sched.h>
#include <sys/types.h>

#include <vector>

namespace dsmoe {

// For a pool in a program that has other threads too. Where the pool has a thread for every CPU,
// another thread that runs for a moment displaces one of them; the scheduler then wakes that one on
// the CPU of the thread it works with. As the two wait for each other in turn, no CPU ever has two
// to run, so nothing moves them apart, and for tenths of a second everything takes three times as
// long. Beside threads that never rest, a pinned thread is the one that cannot get out of the way:
// so the pool pins only while it runs on all of its threads.
class PinnedThreads {
 public:
  // Of these threads of the process, one for each CPU of the calling thread. With more or fewer
  // threads than CPUs, pin() does nothing.
  explicit PinnedThreads(std::vector<pid_t> threads);
  ~PinnedThreads() { unpin(); }
  PinnedThreads(const PinnedThreads&) = delete;
  PinnedThreads& operator=(const PinnedThreads&) = delete;

  // The i-th thread to the i-th CPU, where the system allows it; and back to where it was.
  void pin();
  void unpin();

 private:
  std::vector<pid_t> threads_;
  std::vector<int> cpus_;          // empty: nothing to do
  std::vector<cpu_set_t> before_;  // while pinned
};

}  // namespace dsmoe

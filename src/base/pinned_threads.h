// Each thread of a pool on a CPU of its own, for as long as one works with it.
#pragma once

#include <sched.h>

#include <vector>

#include "base/thread_pool.h"

namespace dsmoe {

// For a program that has other threads beside the pool's. Where the pool has a thread for every
// CPU, another thread that runs for a moment displaces one of them; the scheduler then wakes that
// one on the CPU of the thread it works with. As the two wait for each other in turn, no CPU ever
// has two to run, so nothing moves them apart, and for tenths of a second everything takes three
// times as long.
//
// Does nothing where there are more or fewer threads than CPUs, or the system refuses. Made and
// destroyed by the thread that calls pool.run().
class PinnedThreads {
 public:
  explicit PinnedThreads(ThreadPool& pool);
  ~PinnedThreads();
  PinnedThreads(const PinnedThreads&) = delete;
  PinnedThreads& operator=(const PinnedThreads&) = delete;

 private:
  ThreadPool& pool_;
  std::vector<cpu_set_t> before_;  // [threads]; empty: nothing was done
};

}  // namespace dsmoe

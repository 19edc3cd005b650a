// Where the threads may run while they are pinned, and afterwards.
#include "base/pinned_threads.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>

#include "base/cpu_count.h"
#include "base/thread_pool.h"

namespace dsmoe {
namespace {

std::vector<int> cpus_of(pid_t thread) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  EXPECT_EQ(::sched_getaffinity(thread, sizeof(mask), &mask), 0);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &mask)) cpus.push_back(cpu);
  }
  return cpus;
}

// Each thread waits for the others to begin, so that none takes two shares.
std::vector<pid_t> threads_of(ThreadPool& pool) {
  std::vector<pid_t> threads(static_cast<std::size_t>(pool.num_threads()));
  std::atomic<int> begun{0};
  pool.run([&](int idx, int num) {
    threads[static_cast<std::size_t>(idx)] = ::gettid();
    ++begun;
    while (begun < num) std::this_thread::yield();
  });
  return threads;
}

TEST(PinnedThreads, AThreadForEveryCpuHasItForItself) {
  const std::vector<int> all = available_cpus();
  if (all.size() < 2) GTEST_SKIP() << "one CPU";
  ThreadPool pool(static_cast<int>(all.size()));
  const std::vector<pid_t> threads = threads_of(pool);
  for (const pid_t thread : threads) ASSERT_EQ(cpus_of(thread), all);
  {
    const ThreadPool::KeptApart kept_apart(pool);
    for (std::size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(cpus_of(threads[i]), std::vector<int>(1, all[i]));
    }
  }
  for (const pid_t thread : threads) EXPECT_EQ(cpus_of(thread), all);

  PinnedThreads pinned(threads);
  for (int round = 0; round < 2; ++round) {  // a second pin() changes nothing, nor an unpin()
    pinned.pin();
    pinned.pin();
    EXPECT_EQ(cpus_of(threads[1]), std::vector<int>(1, all[1]));
    pinned.unpin();
    pinned.unpin();
    EXPECT_EQ(cpus_of(threads[1]), all);
  }
}

TEST(PinnedThreads, AnyOtherNumberMayRunAnywhere) {
  const std::vector<int> all = available_cpus();
  ThreadPool pool(static_cast<int>(all.size()) + 1), one(1);
  const std::vector<pid_t> threads = threads_of(pool);
  const ThreadPool::KeptApart kept_apart(pool), one_kept_apart(one);
  for (const pid_t thread : threads) EXPECT_EQ(cpus_of(thread), all);
  EXPECT_EQ(cpus_of(::gettid()), all);
}

}  // namespace
}  // namespace dsmoe

// Where the threads may run while they are pinned, and afterwards.
#include "base/pinned_threads.h"

#include <gtest/gtest.h>

#include "base/cpu_count.h"

namespace dsmoe {
namespace {

std::vector<std::vector<int>> cpus_of_threads(ThreadPool& pool) {
  std::vector<std::vector<int>> cpus(static_cast<std::size_t>(pool.num_threads()));
  pool.run(
      [&](int thread_idx, int) { cpus[static_cast<std::size_t>(thread_idx)] = available_cpus(); });
  return cpus;
}

TEST(PinnedThreads, AThreadForEveryCpuHasItForItself) {
  const std::vector<int> all = available_cpus();
  if (all.size() < 2) GTEST_SKIP() << "one CPU";
  ThreadPool pool(static_cast<int>(all.size()));
  const std::vector<std::vector<int>> anywhere(all.size(), all);
  ASSERT_EQ(cpus_of_threads(pool), anywhere);
  {
    const PinnedThreads pinned(pool);
    std::vector<int> taken;
    for (const std::vector<int>& cpus : cpus_of_threads(pool)) {
      ASSERT_EQ(cpus.size(), 1u);
      taken.push_back(cpus[0]);
    }
    EXPECT_EQ(taken, all);
  }
  EXPECT_EQ(cpus_of_threads(pool), anywhere);
}

TEST(PinnedThreads, AnyOtherNumberMayRunAnywhere) {
  const std::vector<int> all = available_cpus();
  ThreadPool pool(static_cast<int>(all.size()) + 1), one(1);
  const PinnedThreads pinned(pool), pinned_one(one);
  for (const std::vector<int>& cpus : cpus_of_threads(pool)) EXPECT_EQ(cpus, all);
  for (const std::vector<int>& cpus : cpus_of_threads(one)) EXPECT_EQ(cpus, all);
}

}  // namespace
}  // namespace dsmoe

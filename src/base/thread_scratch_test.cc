#include "base/thread_scratch.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

namespace dsmoe {
namespace {

TEST(ThreadScratch, IsKeptAndGrows) {
  auto* small = thread_scratch(100);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(small) % 64, 0u);
  EXPECT_EQ(thread_scratch(100), small);
  EXPECT_EQ(thread_scratch<double>(10), reinterpret_cast<double*>(small));
  constexpr int64_t kMany = int64_t{3} << 20;
  auto* large = thread_scratch(kMany);
  std::memset(large, 1, kMany * sizeof(float));  // all of it is ours
  EXPECT_EQ(thread_scratch(1), large);
}

TEST(ThreadScratch, ThreadsDoNotShare) {
  auto* mine = thread_scratch(1000);
  mine[0] = 1;
  std::thread([&] {
    auto* theirs = thread_scratch(1000);
    EXPECT_NE(theirs, mine);
    theirs[0] = 2;
  }).join();
  EXPECT_EQ(mine[0], 1);
}

}  // namespace
}  // namespace dsmoe

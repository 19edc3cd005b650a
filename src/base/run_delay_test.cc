// A thread that shares its CPU waits, a thread that sleeps does not.
#include "base/run_delay.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "base/cpu_count.h"

namespace dsmoe {
namespace {

void spin(std::chrono::milliseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < end) {
  }
}

TEST(RunDelay, CountsTheTimeWithoutACpu) {
  if (::access("/proc/thread-self/schedstat", R_OK) != 0) GTEST_SKIP() << "no schedstat here";
  std::thread([] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(available_cpus()[0], &one);
    ASSERT_EQ(::sched_setaffinity(0, sizeof(one), &one), 0);
    RunDelay delay(1);
    delay.watch(0, ::gettid());
    std::atomic<bool> stop{false};
    std::thread other([&] {
      while (!stop) {
      }
    });
    spin(std::chrono::milliseconds(200));
    stop = true;
    other.join();
    EXPECT_GT(delay.since_last(1), 0.01);
    EXPECT_LT(delay.since_last(1), 0.01);  // counted once
  }).join();
}

TEST(RunDelay, AThreadThatIsNotThereNeverWaits) {
  RunDelay delay(2);
  delay.watch(0, ::gettid());
  delay.watch(1, 1);  // of another process
  EXPECT_GE(delay.since_last(2), 0);
  EXPECT_EQ(RunDelay(3).since_last(3), 0);
}

}  // namespace
}  // namespace dsmoe

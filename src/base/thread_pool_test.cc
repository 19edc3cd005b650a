// The pool calls every share once, takes over those nobody comes for, makes room, carries
// exceptions, nests, flushes denormals, allocates nothing per run.
#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <limits>
#include <new>
#include <stdexcept>
#include <string>

#include "base/cpu_count.h"
#include "base/error.h"
#include "base/flush_denormals.h"

namespace {
std::atomic<int64_t> num_allocations{0};
}  // namespace

// Counts every allocation of this test binary. Sanitizers bring their own operators, which must
// stay.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define DSMOE_COUNTS_ALLOCATIONS 1
// Not inlined, or g++ pairs its own new with our free and warns.
[[gnu::noinline]] void* operator new(size_t size) {
  num_allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
#endif

namespace dsmoe {
namespace {

// volatile: the product must be computed here, under the flags of the moment.
float denormal_product() {
  volatile float small = 1e-30f;
  return small * 1e-10f;
}

bool reads_denormal_as_zero() {
  volatile float denormal = std::numeric_limits<float>::denorm_min();
  return denormal * 1e38f == 0.0f;
}

std::string caught(ThreadPool& pool, FunctionRef<void(int, int)> f) {
  try {
    pool.run(f);
  } catch (const std::exception& e) {
    return e.what();
  }
  return "nothing";
}

TEST(ThreadPool, CallsEveryShareOnce) {
  for (const int n : {1, 2, 3, 8}) {
    ThreadPool pool(n);
    EXPECT_EQ(pool.num_threads(), n);
    for (int round = 0; round < 300; ++round) {
      std::vector<int> calls(n, 0);
      pool.run([&](int idx, int num) {
        ASSERT_EQ(num, n);
        ++calls[idx];  // not atomic on purpose: each share has its own slot, and run() must
                       // publish it
      });
      EXPECT_EQ(calls, std::vector<int>(n, 1));
    }
  }
}

TEST(ThreadPool, CallerHasShareZeroAndWorkersComeForTheOthers) {
  ThreadPool pool(3);
  std::vector<std::thread::id> ids(3);
  std::atomic<int> begun{0};
  pool.run([&](int idx, int) {
    ids[idx] = std::this_thread::get_id();
    ++begun;
    while (idx == 0 && begun < 3) std::this_thread::yield();  // so that the caller takes no other
  });
  EXPECT_EQ(ids[0], std::this_thread::get_id());
  EXPECT_NE(ids[1], ids[0]);
  EXPECT_NE(ids[2], ids[0]);
  EXPECT_NE(ids[1], ids[2]);
}

// Runs f on the worker of a pool of two, which has to come for its share.
void run_on_worker(ThreadPool& pool, FunctionRef<void()> f) {
  std::atomic<bool> done{false};
  pool.run([&](int idx, int) {
    if (idx == 1) {
      f();
      done = true;
    }
    while (!done) std::this_thread::yield();
  });
}

#ifndef __SANITIZE_THREAD__  // it delivers signals when it likes
std::atomic<bool> hold_up{false}, is_held_up{false};

// A thread inside a signal handler is one that gets no CPU, as far as its pool can tell.
TEST(ThreadPool, CallerTakesTheShareOfAWorkerThatDoesNotCome) {
  ThreadPool pool(2);
  pthread_t worker{};
  run_on_worker(pool, [&] { worker = pthread_self(); });
  struct sigaction action {
  }, before{};
  action.sa_handler = [](int) {
    is_held_up = true;
    while (hold_up) ::usleep(100);
    is_held_up = false;
  };
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  hold_up = true;
  ASSERT_EQ(pthread_kill(worker, SIGUSR1), 0);
  while (!is_held_up) std::this_thread::yield();

  const auto self = std::this_thread::get_id();
  for (int round = 0; round < 100; ++round) {
    std::vector<std::thread::id> ids(2);
    pool.run([&](int idx, int) { ids[idx] = std::this_thread::get_id(); });
    ASSERT_EQ(ids, std::vector<std::thread::id>(2, self));
  }
  EXPECT_EQ(caught(pool,
                   [](int idx, int) {
                     if (idx == 1) throw std::runtime_error("taken");
                   }),
            "taken");

  hold_up = false;
  while (is_held_up) std::this_thread::yield();
  run_on_worker(pool, [&] { EXPECT_NE(std::this_thread::get_id(), self); });  // it comes again
  sigaction(SIGUSR1, &before, nullptr);
}
#endif

// Shares of the runs until `enough`, or for half a minute.
int shares_when(ThreadPool& pool, FunctionRef<bool(int)> enough) {
  int shares = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  do {
    pool.run([&](int idx, int num) {
      if (idx == 0) shares = num;
      volatile int work = 0;
      while (work < 20'000) work = work + 1;
    });
  } while (!enough(shares) && std::chrono::steady_clock::now() < end);
  return shares;
}

// Threads that never rest take the CPUs; the pool makes room, and tries again when they are gone.
TEST(ThreadPool, AnAutomaticNumberMakesRoomForOthers) {
  ThreadPool pool(0);
  const int all = pool.num_threads();
  if (all == 1) GTEST_SKIP() << "one core";
  std::atomic<bool> stop{false};
  std::vector<std::thread> others(2 * available_cpus().size());
  for (std::thread& other : others) {
    other = std::thread([&] {
      while (!stop) {
      }
    });
  }
  const int fewer = shares_when(pool, [&](int shares) { return shares < all; });
  stop = true;
  for (std::thread& other : others) other.join();
  EXPECT_LT(fewer, all);
  EXPECT_GT(shares_when(pool, [&](int shares) { return shares > fewer; }), fewer);
}

// Only the automatic one: tests and users who ask for a number get it.
TEST(ThreadPool, AGivenNumberStays) {
  ThreadPool pool(4 * static_cast<int>(available_cpus().size()));
  for (int round = 0; round < 100; ++round) {
    EXPECT_EQ(shares_when(pool, [](int) { return true; }), pool.num_threads());
  }
}

TEST(ThreadPool, ZeroMeansPhysicalCores) {
  ThreadPool pool(0);
  EXPECT_GE(pool.num_threads(), 1);
  EXPECT_LE(pool.num_threads(), static_cast<int>(std::thread::hardware_concurrency()));
}

TEST(ThreadPool, RefusesImpossibleCounts) {
  EXPECT_THROW(ThreadPool(-1), Error);
  EXPECT_THROW(ThreadPool(1 << 20), Error);
}

TEST(ThreadPool, SleepingWorkersWake) {
  ThreadPool pool(3);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // far beyond the spinning
    std::atomic<int> calls{0};
    pool.run([&](int, int) { ++calls; });
    EXPECT_EQ(calls, 3);
  }
}

TEST(ThreadPool, SleepingCallerWakes) {
  ThreadPool pool(2);
  int value = 0;
  pool.run([&](int idx, int) {
    if (idx == 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    value = 7;
  });
  EXPECT_EQ(value, 7);
}

TEST(ThreadPool, CarriesTheExceptionOfTheLowestShare) {
  for (const int n : {1, 4}) {
    ThreadPool pool(n);
    std::atomic<int> finished{0};
    const auto all_throw = [&](int idx, int) {
      ++finished;
      throw std::runtime_error("thread " + std::to_string(idx));
    };
    EXPECT_EQ(caught(pool, all_throw), "thread 0");
    EXPECT_EQ(finished, n);
  }
  ThreadPool pool(4);
  for (int round = 0; round < 20; ++round) {
    const auto late_throw = [](int idx, int) {
      if (idx == 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (idx >= 2) throw std::runtime_error("thread " + std::to_string(idx));
    };
    EXPECT_EQ(caught(pool, late_throw), "thread 2");
    EXPECT_EQ(caught(pool, [](int, int) {}),
              "nothing");  // nothing is left over from the round before
  }
}

TEST(ThreadPool, NestedRunIsSerialOnTheCallingThread) {
  ThreadPool outer(3), other(2);
  for (ThreadPool* inner : {&outer, &other}) {
    std::vector<int> calls(3, 0);
    outer.run([&](int idx, int) {
      const auto self = std::this_thread::get_id();
      inner->run([&](int inner_idx, int inner_num) {
        if (inner_idx == 0 && inner_num == 1 && std::this_thread::get_id() == self) ++calls[idx];
      });
    });
    EXPECT_EQ(calls, std::vector<int>(3, 1));
  }
  int threads = 0;  // and the caller is not left marked as nested
  outer.run([&](int idx, int num) {
    if (idx == 0) threads = num;
  });
  EXPECT_EQ(threads, 3);
}

TEST(ThreadPool, NestedExceptionReachesTheCaller) {
  ThreadPool pool(2);
  const auto nested = [&](int idx, int) {
    if (idx == 1) pool.run([](int, int) { throw std::runtime_error("inner"); });
  };
  EXPECT_EQ(caught(pool, nested), "inner");
}

TEST(ThreadPool, CallersTakeTurns) {
  ThreadPool pool(2);
  int64_t total =
      0;  // guarded only by the pool's turn-taking: thread 0 of one run at a time writes it
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {
        pool.run([&](int idx, int) {
          if (idx == 0) ++total;
        });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(total, 600);
}

TEST(ThreadPool, FlushesDenormalsDuringRunOnly) {
  for (const int n : {1, 3}) {
    ThreadPool pool(n);
    ASSERT_NE(denormal_product(), 0.0f);
    std::vector<int> flushed(n, 0);
    pool.run([&](int idx, int) {
      flushed[idx] = denormal_product() == 0.0f && reads_denormal_as_zero() ? 1 : 0;
    });
    EXPECT_EQ(flushed, std::vector<int>(n, 1));
    EXPECT_NE(denormal_product(), 0.0f);
    EXPECT_FALSE(reads_denormal_as_zero());
    EXPECT_EQ(caught(pool, [](int, int) { throw std::runtime_error("x"); }), "x");
    EXPECT_NE(denormal_product(), 0.0f);
  }
}

TEST(FlushDenormals, NestsAndRestores) {
  {
    const FlushDenormals outer;
    EXPECT_EQ(denormal_product(), 0.0f);
    {
      const FlushDenormals inner;
      EXPECT_TRUE(reads_denormal_as_zero());
    }
    EXPECT_EQ(denormal_product(), 0.0f);
  }
  EXPECT_NE(denormal_product(), 0.0f);
}

#ifdef DSMOE_COUNTS_ALLOCATIONS
TEST(ThreadPool, RunAllocatesNothing) {
  ThreadPool pool(3);
  std::atomic<int64_t> sum{0};
  const auto work = [&](int64_t begin, int64_t end) { sum += end - begin; };
  parallel_for(pool, 1000, 1, work);
  const int64_t before = num_allocations;
  for (int round = 0; round < 100; ++round) parallel_for(pool, 1000, 1, work);
  EXPECT_EQ(num_allocations - before, 0);
  EXPECT_EQ(sum, 101 * 1000);
}
#endif

TEST(StaticPartition, CoversOnceInOrderAtGrainBorders) {
  for (const int64_t n : {1, 2, 7, 64, 100, 1001}) {
    for (const int64_t grain : {1, 3, 16, 2000}) {
      for (const int parts : {1, 2, 5, 16}) {
        int64_t at = 0, smallest = n, largest = 0;
        for (int part = 0; part < parts; ++part) {
          const Range range = static_partition(n, grain, part, parts);
          ASSERT_EQ(range.begin, at);
          ASSERT_LE(range.begin, range.end);
          ASSERT_TRUE(range.end % grain == 0 || range.end == n);
          at = range.end;
          smallest = std::min(smallest, range.end - range.begin);
          largest = std::max(largest, range.end - range.begin);
        }
        EXPECT_EQ(at, n);
        EXPECT_LT(largest - smallest, 2 * grain);
      }
    }
  }
  const int64_t huge = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(static_partition(huge, 3, 6, 7).end, huge);
  EXPECT_EQ(static_partition(0, 4, 0, 3).end, 0);
  EXPECT_THROW(static_partition(10, 0, 0, 1), Error);
}

TEST(ParallelFor, TouchesEachIndexOnce) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (const int64_t n : {0, 1, 5, 1000}) {
      std::vector<int> touched(n, 0);
      parallel_for(pool, n, 8, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) ++touched[i];
      });
      EXPECT_EQ(touched, std::vector<int>(n, 1));
    }
  }
}

TEST(ParallelFor, OneGrainRunsOnTheCallerWithDenormalsFlushed) {
  ThreadPool pool(2);
  int calls = 0;
  parallel_for(pool, 8, 8, [&](int64_t begin, int64_t end) {
    calls += begin == 0 && end == 8 && denormal_product() == 0.0f ? 1 : 0;
  });
  EXPECT_EQ(calls, 1);
}

TEST(FunctionRef, CallsWithoutCopying) {
  struct Counter {
    int calls = 0;
    int operator()(int by) { return calls += by; }
  } counter;
  const FunctionRef<int(int)> ref(counter);
  EXPECT_EQ(ref(2), 2);
  EXPECT_EQ(ref(3), 5);
  EXPECT_EQ(counter.calls, 5);
}

TEST(InTurns, EveryIndexOnceAndRunsInsideOnOneThread) {
  ThreadPool pool(3);
  std::vector<std::atomic<int>> calls(100);
  std::atomic<int> faults{0};
  in_turns(pool, calls.size(), [&](std::size_t idx, int thread_idx) {
    ++calls[idx];
    if (thread_idx < 0 || thread_idx >= 3) ++faults;
    pool.run([&](int, int num_threads) { faults += num_threads != 1; });
  });
  for (const std::atomic<int>& count : calls) EXPECT_EQ(count, 1);
  EXPECT_EQ(faults, 0);
  in_turns(pool, 0, [&](std::size_t, int) { ++faults; });
  EXPECT_EQ(faults, 0);
}

}  // namespace
}  // namespace dsmoe

// Workers poll a round counter, then sleep on it; the caller polls a countdown, then sleeps on
// that.
#include "base/thread_pool.h"

#include <immintrin.h>

#include "base/cpu_count.h"
#include "base/cpu_features.h"
#include "base/error.h"

namespace dsmoe {
namespace {

// True in workers, and in a caller during run().
thread_local bool inside_run = false;

class InsideRun {
 public:
  InsideRun() { inside_run = true; }
  ~InsideRun() { inside_run = false; }
};

// A pause costs 40 to 140 cycles: this is some 50 us, longer than the gaps between the ops of one
// decode step and shorter than what anyone would notice as a busy idle machine.
constexpr int kSpins = 2000;
constexpr int kMaxThreads = 4096;

// Returns once `value` is no longer `old`.
uint32_t wait_for_change(const std::atomic<uint32_t>& value, uint32_t old, int spins) {
  for (int i = 0; i < spins; ++i) {
    const uint32_t now = value.load(std::memory_order_acquire);
    if (now != old) return now;
    _mm_pause();
  }
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  if (num_threads < 0 || num_threads > kMaxThreads) {
    fail(ErrorKind::usage, "the number of threads must be 0 (automatic) to {}, not {}", kMaxThreads,
         num_threads);
  }
  amx_permitted();
  num_threads_ = num_threads == 0 ? available_physical_cores() : num_threads;
  // With more threads than CPUs a spinning thread only keeps a working one off its CPU.
  spins_ = num_threads_ <= static_cast<int>(available_cpus().size()) ? kSpins : 0;
  exceptions_.resize(num_threads_);
  workers_.reserve(num_threads_ - 1);
  try {
    for (int idx = 1; idx < num_threads_; ++idx) {
      workers_.emplace_back([this, idx] { worker_loop(idx); });
    }
  } catch (const std::exception& e) {
    const size_t started = workers_.size();
    round_.fetch_add(1);  // task_ is null: those that started leave
    round_.notify_all();
    for (std::thread& worker : workers_) worker.join();
    fail(ErrorKind::resource, "could start only {} of {} threads ({}); use fewer with --threads",
         started + 1, num_threads_, e.what());
  }
}

ThreadPool::~ThreadPool() {
  task_ = nullptr;
  round_.fetch_add(1);
  round_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(Task f) {
  if (inside_run) {
    f(0, 1);
    return;
  }
  const std::lock_guard lock(one_run_at_a_time_);
  const FlushDenormals flush;
  const InsideRun inside;
  if (num_threads_ == 1) {
    f(0, 1);
    return;
  }
  task_ = &f;
  unfinished_.store(num_threads_ - 1, std::memory_order_relaxed);
  // Sequentially consistent, so that a worker about to sleep either sees it or is seen by
  // notify_all.
  round_.fetch_add(1);
  round_.notify_all();
  call(f, 0);
  for (uint32_t left = unfinished_.load(std::memory_order_acquire); left != 0;) {
    left = wait_for_change(unfinished_, left, spins_);
  }
  for (std::exception_ptr& exception : exceptions_) {
    if (exception == nullptr) continue;
    const std::exception_ptr first = exception;
    std::fill(exceptions_.begin(), exceptions_.end(), nullptr);
    std::rethrow_exception(first);
  }
}

void ThreadPool::call(const Task& task, int thread_idx) {
  try {
    task(thread_idx, num_threads_);
  } catch (...) {
    exceptions_[thread_idx] = std::current_exception();
  }
}

void ThreadPool::worker_loop(int thread_idx) {
  const FlushDenormals flush;
  const InsideRun inside;
  for (uint32_t seen = 0;;) {
    seen = wait_for_change(round_, seen, spins_);
    // No round can be missed: the next starts only after this worker has counted itself out of this
    // one.
    if (task_ == nullptr) return;
    call(*task_, thread_idx);
    if (unfinished_.fetch_sub(1) == 1) unfinished_.notify_one();
  }
}

Range static_partition(int64_t n, int64_t grain, int part_idx, int num_parts) {
  DSMOE_CHECK(grain > 0 && num_parts > 0 && part_idx >= 0 && part_idx < num_parts,
              "grain {}, part {} of {}", grain, part_idx, num_parts);
  if (n <= 0) return {};
  const int64_t num_grains = (n - 1) / grain + 1;
  const int64_t each = num_grains / num_parts, rest = num_grains % num_parts;
  const int64_t first = part_idx * each + std::min<int64_t>(part_idx, rest);
  const int64_t last = first + each + (part_idx < rest ? 1 : 0);
  // The last grain may be short; cutting there keeps first * grain < n and so free of overflow.
  const auto cut = [&](int64_t grain_idx) {
    return grain_idx == num_grains ? n : grain_idx * grain;
  };
  return {cut(first), cut(last)};
}

}  // namespace dsmoe

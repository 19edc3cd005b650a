// Workers poll a round counter, then sleep on it; the caller polls a countdown, then sleeps on
// that.
#include "base/thread_pool.h"

#include <immintrin.h>
#include <unistd.h>

#include <chrono>

#include "base/cpu_count.h"
#include "base/cpu_features.h"
#include "base/error.h"

namespace dsmoe {
namespace {

using Clock = std::chrono::steady_clock;

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
// About a microsecond: a worker that is awake has taken its share by then, and looking at what it
// took would cost both of them a cache miss.
constexpr int kPatience = 32;
constexpr int kMaxThreads = 4096;

int checked_count(int num_threads) {
  if (num_threads < 0 || num_threads > kMaxThreads) {
    fail(ErrorKind::usage, "the number of threads must be 0 (automatic) to {}, not {}", kMaxThreads,
         num_threads);
  }
  return num_threads == 0 ? available_physical_cores() : num_threads;
}

// Polls until `value` is no longer `old`; returns what it was last.
uint32_t poll(const std::atomic<uint32_t>& value, uint32_t old, int spins) {
  uint32_t now = value.load(std::memory_order_acquire);
  for (int i = 0; i < spins && now == old; ++i) {
    _mm_pause();
    now = value.load(std::memory_order_acquire);
  }
  return now;
}

// Returns once `value` is no longer `old`.
uint32_t wait_for_change(const std::atomic<uint32_t>& value, uint32_t old, int spins) {
  const uint32_t now = poll(value, old, spins);
  if (now != old) return now;
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(int num_threads)
    : num_threads_(checked_count(num_threads)),
      adapts_(num_threads == 0 && num_threads_ > 1),
      exceptions_(static_cast<std::size_t>(num_threads_)),
      slots_(static_cast<std::size_t>(num_threads_)),
      thread_ids_(static_cast<std::size_t>(num_threads_)),
      fair_share_(num_threads_),
      delay_(num_threads_),
      unfinished_(static_cast<uint32_t>(num_threads_ - 1)),
      num_shares_(num_threads_) {
  amx_permitted();
  // With more threads than CPUs a spinning thread only keeps a working one off its CPU.
  spins_ = num_threads_ <= static_cast<int>(available_cpus().size()) ? kSpins : 0;
  workers_.reserve(static_cast<std::size_t>(num_threads_ - 1));
  try {
    for (int idx = 1; idx < num_threads_; ++idx) {
      workers_.emplace_back([this, idx] { worker_loop(idx); });
    }
  } catch (const std::exception& e) {
    const size_t started = workers_.size();
    stop();
    fail(ErrorKind::resource, "could start only {} of {} threads ({}); use fewer with --threads",
         started + 1, num_threads_, e.what());
  }
  wait_for_all();  // they have told their ids
  if (!adapts_) return;
  for (int idx = 1; idx < num_threads_; ++idx) {
    delay_.watch(idx, thread_ids_[static_cast<std::size_t>(idx)]);
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  leave_ = true;
  round_.fetch_add(1);
  round_.notify_all();
  num_shares_ = -1;  // no worker sleeps on this number
  num_shares_.notify_all();
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
  if (!adapts_) return run_shares(f);
  const auto begin = Clock::now();
  run_shares(f);
  seconds_ += std::chrono::duration<double>(Clock::now() - begin).count();
  if (seconds_ >= fair_share_.next_look()) look();
}

void ThreadPool::run_shares(const Task& task) {
  const int num_shares = num_shares_.load(std::memory_order_relaxed);
  if (num_shares == 1) {
    task(0, 1);
    return;
  }
  const uint32_t round = round_.load(std::memory_order_relaxed) + 1;
  task_ = &task;
  unfinished_.store(static_cast<uint32_t>(num_shares - 1), std::memory_order_relaxed);
  for (int idx = num_shares; idx < num_threads_; ++idx) {
    slot(idx).taken.store(round, std::memory_order_relaxed);
  }
  // Sequentially consistent, so that a worker about to sleep either sees it or is seen by
  // notify_all.
  round_.fetch_add(1);
  round_.notify_all();
  call(task, 0);
  help(task, round, num_shares);
  wait_for_all();
  for (std::exception_ptr& exception : exceptions_) {
    if (exception == nullptr) continue;
    const std::exception_ptr first = exception;
    std::fill(exceptions_.begin(), exceptions_.end(), nullptr);
    std::rethrow_exception(first);
  }
}

// What no worker has begun is done here.
void ThreadPool::help(const Task& task, uint32_t round, int num_shares) {
  for (int i = 0; i < kPatience; ++i) {
    if (unfinished_.load(std::memory_order_acquire) == 0) return;
    _mm_pause();
  }
  for (int idx = 1; idx < num_shares; ++idx) {
    if (!take(idx, round)) continue;
    call(task, idx);
    unfinished_.fetch_sub(1);
  }
}

void ThreadPool::wait_for_all() {
  for (uint32_t left = unfinished_.load(std::memory_order_acquire); left != 0;) {
    left = wait_for_change(unfinished_, left, spins_);
  }
}

bool ThreadPool::take(int share_idx, uint32_t round) {
  std::atomic<uint32_t>& taken = slot(share_idx).taken;
  uint32_t last = taken.load(std::memory_order_relaxed);
  // A worker that comes late may find its share taken in a later round than the one it saw.
  return static_cast<int32_t>(round - last) > 0 &&
         taken.compare_exchange_strong(last, round, std::memory_order_acq_rel);
}

void ThreadPool::call(const Task& task, int share_idx) {
  try {
    task(share_idx, num_shares_.load(std::memory_order_relaxed));
  } catch (...) {
    exceptions_[static_cast<std::size_t>(share_idx)] = std::current_exception();
  }
}

void ThreadPool::finish_one() {
  if (unfinished_.fetch_sub(1) == 1) unfinished_.notify_one();
}

void ThreadPool::worker_loop(int thread_idx) {
  const FlushDenormals flush;
  const InsideRun inside;
  thread_ids_[static_cast<std::size_t>(thread_idx)] = ::gettid();
  finish_one();
  for (uint32_t seen = 0; !leave_;) {
    const int num_shares = num_shares_.load(std::memory_order_acquire);
    if (0 <= num_shares && num_shares <= thread_idx) {
      num_shares_.wait(num_shares, std::memory_order_acquire);
      continue;
    }
    seen = wait_for_change(round_, seen, spins_);
    // The run cannot end before a share that was taken: task_ is that of this round.
    if (leave_ || !take(thread_idx, seen)) continue;
    call(*task_, thread_idx);
    finish_one();
  }
}

// Between runs: how many shares the next ones have.
void ThreadPool::look() {
  thread_ids_[0] = ::gettid();
  delay_.watch(0, thread_ids_[0]);
  const int before = fair_share_.threads();
  fair_share_.note(seconds_, delay_.since_last(before));
  seconds_ = 0;
  if (fair_share_.threads() == before) return;
  num_shares_ = fair_share_.threads();
  num_shares_.notify_all();
  if (pinned_) num_shares_ == num_threads_ ? pinned_->pin() : pinned_->unpin();
}

ThreadPool::KeptApart::KeptApart(ThreadPool& pool) : pool_(pool) {
  const std::lock_guard lock(pool_.one_run_at_a_time_);
  pool_.thread_ids_[0] = ::gettid();
  pool_.pinned_.emplace(pool_.thread_ids_);
  if (pool_.num_shares_ == pool_.num_threads_) pool_.pinned_->pin();
}

ThreadPool::KeptApart::~KeptApart() {
  const std::lock_guard lock(pool_.one_run_at_a_time_);
  pool_.pinned_.reset();
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

// A fork-join pool: run() calls one function on every thread and returns when all are done.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/fair_share.h"
#include "base/flush_denormals.h"
#include "base/function_ref.h"
#include "base/pinned_threads.h"
#include "base/run_delay.h"

namespace dsmoe {

// The caller has share 0; the pool owns num_threads - 1 workers (none for 1), one for each further
// share. A run allocates nothing. Denormals are flushed (base/flush_denormals.h) in every thread
// while it runs. AMX permission is requested when the first pool is made. Several threads may call
// run(); their runs take turns.
//
// On a machine that others use too, the caller takes the share of a worker that has not come for
// it. With an automatic number of threads, runs also have fewer shares for as long as threads are
// seen to wait for CPUs (base/fair_share.h). No result depends on either.
class ThreadPool {
 public:
  // 0: one thread per physical core available to the process (base/cpu_count.h).
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // The most shares that a run has.
  int num_threads() const { return num_threads_; }

  // Calls f(share_idx, num_shares) once per share, num_shares <= num_threads(): so f divides its
  // work by the number it is given, never by the pool's. Shares run side by side, but one may begin
  // only when another has ended: f must not wait for another share. From inside any pool's run() it
  // calls f(0, 1) on the calling thread. If calls throw, all shares still end, and the exception of
  // the lowest share_idx is rethrown.
  void run(FunctionRef<void(int share_idx, int num_shares)> f);

  // While one lives, threads keep to CPUs of their own (base/pinned_threads.h), as long as runs
  // have all shares. Made and destroyed by the thread that calls run().
  class KeptApart {
   public:
    explicit KeptApart(ThreadPool& pool);
    ~KeptApart();
    KeptApart(const KeptApart&) = delete;
    KeptApart& operator=(const KeptApart&) = delete;

   private:
    ThreadPool& pool_;
  };

 private:
  using Task = FunctionRef<void(int, int)>;

  // On a line of its own: written by its worker and, where the worker does not come, by the caller.
  struct alignas(64) Slot {
    std::atomic<uint32_t> taken{0};  // the last round whose share somebody took, or that had none
  };

  void worker_loop(int thread_idx);
  void stop();
  void run_shares(const Task& task);
  void help(const Task& task, uint32_t round, int num_shares);
  void wait_for_all();
  Slot& slot(int share_idx) { return slots_[static_cast<std::size_t>(share_idx)]; }
  bool take(int share_idx, uint32_t round);
  void call(const Task& task, int share_idx);
  void finish_one();
  void look();

  int num_threads_;
  bool adapts_;
  int spins_;  // polls before sleeping in the kernel
  std::mutex one_run_at_a_time_;
  const Task* task_ = nullptr;                  // of this round, for whoever took a share of it
  std::vector<std::exception_ptr> exceptions_;  // [num_threads]
  std::vector<Slot> slots_;                     // [num_threads]
  std::vector<pid_t> thread_ids_;               // [num_threads], the caller first
  FairShare fair_share_;
  RunDelay delay_;
  double seconds_ = 0;  // in runs since the last look
  std::optional<PinnedThreads> pinned_;
  // On cache lines of their own: all workers poll round_, all write unfinished_.
  alignas(64) std::atomic<uint32_t> round_{0};
  alignas(64) std::atomic<uint32_t> unfinished_;
  alignas(64) std::atomic<int> num_shares_;  // workers from this index on sleep on it
  std::atomic<bool> leave_{false};
  std::vector<std::thread> workers_;
};

struct Range {
  int64_t begin = 0, end = 0;
};

// The part_idx-th of num_parts contiguous pieces of [0, n), cut at multiples of `grain`, sizes
// differing by at most one grain. Depends on its arguments only. Pieces may be empty.
Range static_partition(int64_t n, int64_t grain, int part_idx, int num_parts);

// Calls f(begin, end) on the threads' pieces of [0, n); on the caller alone when n <= grain.
template <class F>
void parallel_for(ThreadPool& pool, int64_t n, int64_t grain, F&& f) {
  if (n <= 0) return;
  if (n <= grain) {
    const FlushDenormals flush;
    f(int64_t{0}, n);
    return;
  }
  const auto part = [&](int share_idx, int num_shares) {
    const Range range = static_partition(n, grain, share_idx, num_shares);
    if (range.begin < range.end) f(range.begin, range.end);
  };
  pool.run(part);
}

// f(idx, share_idx) for every idx below count: a share takes the next when it is done with one.
// What f runs on a pool runs on the calling thread alone.
template <class F>
void in_turns(ThreadPool& pool, std::size_t count, F&& f) {
  std::atomic<std::size_t> next{0};
  pool.run([&](int share_idx, int) {
    for (std::size_t idx = next++; idx < count; idx = next++) f(idx, share_idx);
  });
}

}  // namespace dsmoe

// A fork-join pool: run() calls one function on every thread and returns when all are done.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "base/flush_denormals.h"
#include "base/function_ref.h"

namespace dsmoe {

// The caller is thread 0; the pool owns num_threads - 1 workers (none for 1). A run allocates
// nothing. Denormals are flushed (base/flush_denormals.h) in every thread while it runs. AMX
// permission is requested when the first pool is made. Several threads may call run(); their runs
// take turns.
class ThreadPool {
 public:
  // 0: one thread per physical core available to the process (base/cpu_count.h).
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls f(thread_idx, num_threads) once per thread. From inside any pool's run() it calls f(0, 1)
  // on the calling thread instead: so f divides its work by the num_threads it is given, never by
  // the pool's. If calls throw, all threads still finish, and the exception of the lowest
  // thread_idx is rethrown.
  void run(FunctionRef<void(int thread_idx, int num_threads)> f);

 private:
  using Task = FunctionRef<void(int, int)>;

  void worker_loop(int thread_idx);
  void call(const Task& task, int thread_idx);

  int num_threads_;
  int spins_;  // polls before sleeping in the kernel
  std::mutex one_run_at_a_time_;
  const Task* task_ = nullptr;  // published by round_, null asks the workers to leave
  std::vector<std::exception_ptr> exceptions_;  // [num_threads]
  // On cache lines of their own: all workers poll round_, all write unfinished_.
  alignas(64) std::atomic<uint32_t> round_{0};
  alignas(64) std::atomic<uint32_t> unfinished_{0};
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
  const auto part = [&](int thread_idx, int num_threads) {
    const Range range = static_partition(n, grain, thread_idx, num_threads);
    if (range.begin < range.end) f(range.begin, range.end);
  };
  pool.run(part);
}

// f(idx, thread_idx) for every idx below count: a thread takes the next when it is done with one.
// What f runs on a pool runs on that thread alone.
template <class F>
void in_turns(ThreadPool& pool, std::size_t count, F&& f) {
  std::atomic<std::size_t> next{0};
  pool.run([&](int thread_idx, int) {
    for (std::size_t idx = next++; idx < count; idx = next++) f(idx, thread_idx);
  });
}

}  // namespace dsmoe

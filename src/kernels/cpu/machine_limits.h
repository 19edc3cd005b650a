// What the machine can do at most, measured: memory reads and matrix products.
#pragma once

#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "tensor/arena.h"

namespace dsmoe::kernels::cpu {

// Seconds. With one thread: of processor time, so that other programs' turns on the core do not
// count.
double now(const ThreadPool& pool);

// Bytes per second that all threads together read from memory far larger than the caches: the best
// of six loops (1, 4 and 8 streams per thread, with and without prefetch).
class ReadProbe {
 public:
  explicit ReadProbe(ThreadPool& pool);  // 4 GiB, or half of what is free

  // Passes for about `seconds`, at least one. The first call tries all six loops.
  void measure(double seconds);
  double median() const;     // of all passes of the best loop
  std::string name() const;  // "4 streams, prefetch"

 private:
  double pass(int loop);

  ThreadPool& pool_;
  tensor::Arena arena_;
  int64_t bytes_;
  const char* data_;
  int best_ = -1;
  std::vector<double> rates_;
};

enum class MatrixType { bf16, fp32 };

// Floating-point operations per second (a multiply-add counts two) of all threads: the larger
// median of a loop in registers and one fed from the first-level cache. bf16 takes AMX tiles where
// they are, fp32 and older machines the widest FMA.
class MatrixProbe {
 public:
  MatrixProbe(ThreadPool& pool, MatrixType type);

  void measure(double seconds);
  double median() const;     // 0: this CPU has no FMA
  std::string name() const;  // "AMX bf16, registers"

 private:
  ThreadPool& pool_;
  bool tiles_;
  std::vector<double> rates_[2];  // registers, first-level cache
};

// Half of the samples are larger.
double median_of(std::vector<double> samples);

}  // namespace dsmoe::kernels::cpu

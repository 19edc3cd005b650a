// How work is divided over threads, and the memory each thread works in.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include "base/error.h"
#include "base/thread_pool.h"
#include "kernels/cpu/tier.h"
#include "kernels/layout.h"

namespace dsmoe::kernels::cpu {

static_assert(kLanes == kPanelWidth && kAttentionKeys == kKeyBlock &&
              kSpanBlocks == kBlocksPerSpan);

inline Element element_of(DType dtype) {
  DSMOE_CHECK(dtype == DType::BF16 || dtype == DType::F32,
              "{} is not an operand type of the CPU tiers", tensor::name_of(dtype));
  return dtype == DType::BF16 ? Element::bf16 : Element::f32;
}

inline Coding coding_of(WeightCoding coding) {
  switch (coding) {
    case WeightCoding::int8:
      return Coding::int8;
    case WeightCoding::int4:
      return Coding::int4;
    default:
      return Coding::plain;
  }
}

// Units of work lie one behind the other on a line of costs; a thread takes those that start in its
// equal share of the line. A pure function of the costs, the thread and the number of threads.
class Share {
 public:
  Share(double total, int thread_idx, int num_threads)
      : begin_(total * thread_idx / num_threads),
        end_(thread_idx + 1 == num_threads ? total + 1 : total * (thread_idx + 1) / num_threads) {}

  // Of the next `count` units of equal cost: those that are this thread's.
  Range take(int64_t count, double cost) {
    const Range mine{first_at(begin_, count, cost), first_at(end_, count, cost)};
    cursor_ += static_cast<double>(count) * cost;
    return mine;
  }

 private:
  // The first of the units that starts at or behind `place`.
  int64_t first_at(double place, int64_t count, double cost) const {
    if (place <= cursor_) return 0;
    const double units = (place - cursor_) / cost;
    if (units >= static_cast<double>(count)) return count;
    const auto whole = static_cast<int64_t>(units);
    return whole + (static_cast<double>(whole) < units ? 1 : 0);
  }

  double begin_;
  double end_;
  double cursor_ = 0;
};

// Memory of the calling thread, 64-byte aligned, kept for its next call and freed with the thread.
inline float* thread_scratch(int64_t floats) {
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  thread_local std::unique_ptr<float, Free> memory;
  thread_local int64_t capacity = 0;
  if (capacity < floats) {
    const int64_t rounded = round_up(floats, 1024);
    memory.reset(static_cast<float*>(
        std::aligned_alloc(4096, static_cast<std::size_t>(rounded) * sizeof(float))));
    capacity = memory == nullptr ? 0 : rounded;
    if (memory == nullptr)
      fail(ErrorKind::resource, "no memory for {} floats of scratch in a thread", rounded);
  }
  return memory.get();
}

}  // namespace dsmoe::kernels::cpu

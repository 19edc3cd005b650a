// The ops of a table, each timed by itself.
#pragma once

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <type_traits>
#include <vector>

#include "kernels/ops.h"
#include "kernels/table.h"

namespace dsmoe::bench {

// Timer(context) starts, milliseconds() ends when the op has.
template <class Timer>
class OpTimes {
 public:
  // Wraps all ops, for good: contexts with this table use the wrapped ones from now on.
  explicit OpTimes(kernels::KernelTable& table) {
    using T = kernels::KernelTable;
#define DSMOE_WRAP(name, Arguments) wrap(table, Of<&T::name>(#name));
    DSMOE_OPS(DSMOE_WRAP)
    DSMOE_OPS_OF_MANY(DSMOE_WRAP)
    DSMOE_FUSED_OPS(DSMOE_WRAP)
#undef DSMOE_WRAP
  }

  // Means over so many runs, the longest first. Times of ops that threads called side by side are
  // added.
  void print(int runs) {
    std::sort(sums_.begin(), sums_.end(),
              [](const Sum* a, const Sum* b) { return a->milliseconds > b->milliseconds; });
    double total = 0;
    for (const Sum* sum : sums_) {
      total += sum->milliseconds;
      if (sum->calls > 0)
        std::printf("  %-24s %5d calls %9.3f ms\n", sum->name, sum->calls / runs,
                    sum->milliseconds / runs);
    }
    std::printf("  all ops %.3f ms\n", total / runs);
  }

 private:
  struct Sum {
    const char* name = nullptr;
    int calls = 0;
    double milliseconds = 0;
  };

  template <auto kSlot>
  struct Of {
    const char* name;
    inline static Sum sum;
    explicit Of(const char* op) : name(op) {}
  };

  template <auto kSlot, class Op>
  struct Timed;
  template <auto kSlot, class Result, class Args>
  struct Timed<kSlot, Result (*kernels::KernelTable::*)(const kernels::Context&, const Args&)> {
    inline static Result (*original)(const kernels::Context&, const Args&) = nullptr;
    static Result run(const kernels::Context& context, const Args& args) {
      Timer timer(context);
      const auto finish = [&] {
        const double time = timer.milliseconds();
        const std::lock_guard lock(sums_mutex_);
        Of<kSlot>::sum.calls += 1;
        Of<kSlot>::sum.milliseconds += time;
      };
      if constexpr (std::is_void_v<Result>) {
        original(context, args);
        finish();
      } else {
        const Result result = original(context, args);
        finish();
        return result;
      }
    }
  };

  template <auto kSlot>
  void wrap(kernels::KernelTable& table, const Of<kSlot>& of) {
    using Op = Timed<kSlot, decltype(kSlot)>;
    if (table.*kSlot == nullptr) return;  // callers ask whether it is there
    Op::original = table.*kSlot;
    table.*kSlot = &Op::run;
    Of<kSlot>::sum = {.name = of.name};
    sums_.push_back(&Of<kSlot>::sum);
  }

  inline static std::mutex sums_mutex_;  // threads may call ops side by side
  std::vector<Sum*> sums_;
};

}  // namespace dsmoe::bench

// The ops of a table, each timed by itself.
#pragma once

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <type_traits>
#include <vector>

#include "kernels/table.h"

namespace dsmoe::bench {

// Timer(context) starts, milliseconds() ends when the op has.
template <class Timer>
class OpTimes {
 public:
  // Wraps the ops of training, for good: contexts with this table use the wrapped ones from now on.
  explicit OpTimes(kernels::KernelTable& table) {
    using T = kernels::KernelTable;
    wrap(table, Of<&T::pack_weight>("pack_weight"));
    wrap(table, Of<&T::embedding_forward>("embedding_forward"));
    wrap(table, Of<&T::rms_norm_forward>("rms_norm_forward"));
    wrap(table, Of<&T::matmul_forward>("matmul_forward"));
    wrap(table, Of<&T::rope_forward>("rope_forward"));
    wrap(table, Of<&T::qkv_forward>("qkv_forward"));
    wrap(table, Of<&T::attention_forward>("attention_forward"));
    wrap(table, Of<&T::router_forward>("router_forward"));
    wrap(table, Of<&T::plan_build>("plan_build"));
    wrap(table, Of<&T::experts_up_forward>("experts_up_forward"));
    wrap(table, Of<&T::experts_down_forward>("experts_down_forward"));
    wrap(table, Of<&T::combine_forward>("combine_forward"));
    wrap(table, Of<&T::dispatch_gates>("dispatch_gates"));
    wrap(table, Of<&T::dispatch_rows>("dispatch_rows"));
    wrap(table, Of<&T::combine_backward>("combine_backward"));
    wrap(table, Of<&T::weight_gradient>("weight_gradient"));
    wrap(table, Of<&T::weight_gradients>("weight_gradients"));
    wrap(table, Of<&T::bias_gradient>("bias_gradient"));
    wrap(table, Of<&T::round_values>("round_values"));
    wrap(table, Of<&T::experts_down_backward>("experts_down_backward"));
    wrap(table, Of<&T::experts_up_backward>("experts_up_backward"));
    wrap(table, Of<&T::router_backward>("router_backward"));
    wrap(table, Of<&T::rms_norm_backward>("rms_norm_backward"));
    wrap(table, Of<&T::rope_backward>("rope_backward"));
    wrap(table, Of<&T::attention_backward>("attention_backward"));
    wrap(table, Of<&T::embedding_backward>("embedding_backward"));
    wrap(table, Of<&T::cross_entropy_backward>("cross_entropy_backward"));
    wrap(table, Of<&T::balance_loss>("balance_loss"));
    wrap(table, Of<&T::router_z_loss>("router_z_loss"));
    wrap(table, Of<&T::sum_of_squares>("sum_of_squares"));
    wrap(table, Of<&T::gradient_square_sums>("gradient_square_sums"));
    wrap(table, Of<&T::adamw_step>("adamw_step"));
    wrap(table, Of<&T::optimizer_step>("optimizer_step"));
  }

  // Of so many runs, the longest first. Times of ops that threads called side by side are added.
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

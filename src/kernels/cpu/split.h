// How work is divided over threads.
#pragma once

#include <algorithm>
#include <atomic>

#include "base/error.h"
#include "base/thread_pool.h"
#include "base/thread_scratch.h"
#include "kernels/context.h"
#include "kernels/cpu/tier.h"
#include "kernels/kv_pages.h"
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

// Units of work lie one behind the other on a line of costs; a share has those that start in its
// part of the line. A pure function of the costs, the share and the number of shares. Shares come
// in rounds of `round`, each round's smaller than those of the round before.
class Share {
 public:
  Share(double total, int idx, int count, int round)
      : begin_(total * (1 - weight(count - idx, round) / weight(count, round))),
        end_(idx + 1 == count
                 ? total + 1
                 : total * (1 - weight(count - idx - 1, round) / weight(count, round))) {}

  // Those of the next `count` units of equal cost that are in this share.
  Range take(int64_t count, double cost) {
    const Range mine{first_at(begin_, count, cost), first_at(end_, count, cost)};
    cursor_ += static_cast<double>(count) * cost;
    return mine;
  }

 private:
  // The last `shares` weigh 1 in the last round and 2 in the one before.
  static double weight(int shares, int round) {
    const double whole = shares / round;
    return round * whole * (whole + 1) / 2 + shares % round * (whole + 1);
  }

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

// Shares per thread: threads take them in turn, so that one on a slower CPU, or with a share that
// costs more than was thought, ends at most one of the last and smallest later than the others.
constexpr int kSharesPerThread = 8;

// Calls work(share) for all shares of the line, in one parallel region, or here alone where that is
// done before another thread would have woken up.
template <class Work>
void run_shares(const Context& context, double total, double worth_waking, Work&& work) {
  if (total == 0) return;
  const auto all = [&] {
    Share share(total, 0, 1, 1);
    work(share);
  };
  if (total < worth_waking) return all();
  const int threads = context.pool->num_threads();
  const int most = threads * kSharesPerThread;
  const int count = total < worth_waking * most
                        ? std::max(threads, static_cast<int>(total / worth_waking))
                        : most;
  std::atomic<int> next{0};
  const auto task = [&](int, int num_threads) {
    if (num_threads == 1) return all();
    for (int idx = next++; idx < count; idx = next++) {
      Share share(total, idx, count, threads);
      work(share);
    }
  };
  context.pool->run(task);
}

}  // namespace dsmoe::kernels::cpu

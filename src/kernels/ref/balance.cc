// Balance losses, group by group, with statistics in double.
#include <algorithm>
#include <span>

#include "base/thread_scratch.h"
#include "kernels/ref/ref.h"
#include "kernels/ref/scalar.h"

namespace dsmoe::kernels::ref {
namespace {

// f_i, P_i and d loss / d P_i of one group of tokens [begin, end), in the thread's working memory:
// every tier uses this op, and ops do not allocate once they have run.
struct GroupStatistics {
  explicit GroupStatistics(int64_t experts) {
    const auto size = static_cast<std::size_t>(experts);
    const std::span all(thread_scratch<double>(3 * experts), 3 * size);
    f = all.first(size);
    p = all.subspan(size, size);
    d_p = all.last(size);
  }
  int64_t num_tokens = 0;
  std::span<double> f, p, d_p;
};

// What a token's scores are divided by: sigmoid scores do not sum to one by themselves.
template <class S>
double score_sum(ScoreFunction score, const S* s, int64_t experts) {
  if (score == ScoreFunction::softmax) return 1.0;
  double sum = 0;
  for (int64_t e = 0; e < experts; ++e) sum += s[e];
  return sum;
}

template <class S>
void measure(const BalanceLoss& args, int64_t begin, int64_t end, GroupStatistics& group) {
  const int64_t experts = args.affinity.dim(1);
  const int64_t top_k = args.index.dim(1);
  group.num_tokens = end - begin;
  for (const std::span<double> sums : {group.f, group.p, group.d_p}) std::ranges::fill(sums, 0.0);
  for (int64_t t = begin; t < end; ++t) {
    const S* s = args.affinity.as<S>() + t * experts;
    const double sum = score_sum(args.score, s, experts);
    for (int64_t e = 0; e < experts; ++e) group.p[e] += s[e] / sum;
    for (int64_t slot = t * top_k; slot < (t + 1) * top_k; ++slot) {
      const int32_t e = args.index.as<int32_t>()[slot];
      if (e >= 0) group.f[e] += 1.0;
    }
  }
  if (group.num_tokens == 0) return;
  const auto tokens = static_cast<double>(group.num_tokens);
  for (double& f : group.f)
    f *= static_cast<double>(experts) / (static_cast<double>(top_k) * tokens);
  for (double& p : group.p) p /= tokens;
}

// The loss of one group goes to `losses`, d loss / d P_i to group.d_p.
void add_loss(const BalanceLoss& args, GroupStatistics& group, double* losses) {
  const auto experts = static_cast<int64_t>(group.f.size());
  const std::span<double> d_p = group.d_p;
  for (int64_t e = 0; e < experts; ++e) {
    const double weight = args.group_weight * args.alpha * group.f[e];
    losses[0] += weight * group.p[e];
    d_p[e] += weight;
  }
  if (args.device_alpha == 0) return;
  const int64_t size = experts / args.num_devices;
  for (int64_t device = 0; device < args.num_devices; ++device) {
    double f = 0, p = 0;
    for (int64_t e = device * size; e < (device + 1) * size; ++e) {
      f += group.f[e] / static_cast<double>(size);
      p += group.p[e];
    }
    const double weight = args.group_weight * args.device_alpha * f;
    losses[1] += weight * p;
    for (int64_t e = device * size; e < (device + 1) * size; ++e) d_p[e] += weight;
  }
}

}  // namespace

void balance_loss(const Context&, const BalanceLoss& args) {
  with_operand(args.affinity.dtype, [&]<class S>() {
    if constexpr (!std::is_same_v<S, Bf16>) {
      const int64_t experts = args.affinity.dim(1);
      GroupStatistics group(experts);
      const int64_t sequences = args.sequence_starts.dim(0) - 1;
      const int32_t* starts = args.sequence_starts.as<int32_t>();
      for (int64_t first = 0; first < sequences; first += args.sequences_per_group) {
        const int64_t begin = starts[first];
        const int64_t end = starts[std::min(sequences, first + args.sequences_per_group)];
        measure<S>(args, begin, end, group);
        add_loss(args, group, args.losses.as<double>());
        for (int64_t t = begin; t < end; ++t) {
          const S* s = args.affinity.as<S>() + t * experts;
          S* d_s = args.d_affinity.as<S>() + t * experts;
          const double tokens =
              static_cast<double>(group.num_tokens) * score_sum(args.score, s, experts);
          double mean = 0;  // the part of a normalised score's gradient that all scores share
          if (args.score == ScoreFunction::sigmoid) {
            const double sum = score_sum(args.score, s, experts);
            for (int64_t e = 0; e < experts; ++e) mean += group.d_p[e] * (s[e] / sum);
          }
          for (int64_t e = 0; e < experts; ++e)
            d_s[e] = static_cast<S>((group.d_p[e] - mean) / tokens);
        }
      }
    }
  });
}

void router_z_loss(const Context&, const RouterZLoss& args) {
  with_operand(args.logits.dtype, [&]<class S>() {
    if constexpr (!std::is_same_v<S, Bf16>) {
      const int64_t experts = args.logits.dim(1);
      for (int64_t t = 0; t < args.logits.dim(0); ++t) {
        if (args.is_counted.as<int32_t>()[t] == 0) continue;
        const S* s = args.logits.as<S>() + t * experts;
        S* d_logits = args.d_logits.as<S>() + t * experts;
        const S max = row_max<S>(experts, [&](int64_t e) { return s[e]; });
        const S sum = row_sum<S>(experts, [&](int64_t e) { return exp(s[e] - max); });
        const S lse = max + log(sum);
        args.loss.as<double>()[0] +=
            args.weight * static_cast<double>(lse) * static_cast<double>(lse);
        const S slope = static_cast<S>(2.0 * args.weight) * lse;
        for (int64_t e = 0; e < experts; ++e)
          d_logits[e] = d_logits[e] + slope * (exp(s[e] - max) / sum);
      }
    }
  });
}

}  // namespace dsmoe::kernels::ref

// Balance losses, group by group, with statistics in double.
#include <vector>

#include "kernels/ref/ref.h"
#include "kernels/ref/scalar.h"

namespace dsmoe::kernels::ref {
namespace {

// f_i and P_i of one group of tokens [begin, end).
struct GroupStatistics {
  int64_t num_tokens = 0;
  std::vector<double> f;
  std::vector<double> p;
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
GroupStatistics group_statistics(const BalanceLoss& args, int64_t begin, int64_t end) {
  const int64_t experts = args.affinity.dim(1);
  const int64_t top_k = args.index.dim(1);
  GroupStatistics group{.num_tokens = end - begin,
                        .f = std::vector<double>(experts, 0.0),
                        .p = std::vector<double>(experts, 0.0)};
  for (int64_t t = begin; t < end; ++t) {
    const S* s = args.affinity.as<S>() + t * experts;
    const double sum = score_sum(args.score, s, experts);
    for (int64_t e = 0; e < experts; ++e) group.p[e] += s[e] / sum;
    for (int64_t slot = t * top_k; slot < (t + 1) * top_k; ++slot) {
      const int32_t e = args.index.as<int32_t>()[slot];
      if (e >= 0) group.f[e] += 1.0;
    }
  }
  if (group.num_tokens == 0) return group;
  const auto tokens = static_cast<double>(group.num_tokens);
  for (double& f : group.f)
    f *= static_cast<double>(experts) / (static_cast<double>(top_k) * tokens);
  for (double& p : group.p) p /= tokens;
  return group;
}

// The loss of one group goes to `losses`; returns d loss / d P_i.
std::vector<double> group_loss(const BalanceLoss& args, const GroupStatistics& group,
                               double* losses) {
  const auto experts = static_cast<int64_t>(group.f.size());
  std::vector<double> d_p(experts, 0.0);
  for (int64_t e = 0; e < experts; ++e) {
    const double weight = args.group_weight * args.alpha * group.f[e];
    losses[0] += weight * group.p[e];
    d_p[e] += weight;
  }
  if (args.device_alpha == 0) return d_p;
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
  return d_p;
}

}  // namespace

void balance_loss(const Context&, const BalanceLoss& args) {
  with_operand(args.affinity.dtype, [&]<class S>() {
    if constexpr (!std::is_same_v<S, Bf16>) {
      const int64_t experts = args.affinity.dim(1);
      const int64_t sequences = args.sequence_starts.dim(0) - 1;
      const int32_t* starts = args.sequence_starts.as<int32_t>();
      for (int64_t first = 0; first < sequences; first += args.sequences_per_group) {
        const int64_t begin = starts[first];
        const int64_t end = starts[std::min(sequences, first + args.sequences_per_group)];
        const GroupStatistics group = group_statistics<S>(args, begin, end);
        const std::vector<double> d_p = group_loss(args, group, args.losses.as<double>());
        for (int64_t t = begin; t < end; ++t) {
          const S* s = args.affinity.as<S>() + t * experts;
          S* d_s = args.d_affinity.as<S>() + t * experts;
          const double tokens =
              static_cast<double>(group.num_tokens) * score_sum(args.score, s, experts);
          double mean = 0;  // the part of a normalised score's gradient that all scores share
          if (args.score == ScoreFunction::sigmoid) {
            const double sum = score_sum(args.score, s, experts);
            for (int64_t e = 0; e < experts; ++e) mean += d_p[e] * (s[e] / sum);
          }
          for (int64_t e = 0; e < experts; ++e) d_s[e] = static_cast<S>((d_p[e] - mean) / tokens);
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

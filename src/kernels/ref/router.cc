// Affinity, selection and gates of one token after the other.
#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/ref/ref.h"
#include "kernels/ref/scalar.h"

namespace dsmoe::kernels::ref {
namespace {

// Indices [begin, end) by descending score, ties by lower index.
template <class S>
std::vector<int32_t> descending(const S* score, int32_t begin, int32_t end) {
  std::vector<int32_t> order(end - begin);
  std::iota(order.begin(), order.end(), begin);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return score[a] > score[b]; });
  return order;
}

// Turns logits into affinities s, in place.
template <class S>
void score_row(ScoreFunction function, S* s, int64_t experts) {
  if (function == ScoreFunction::sigmoid) {
    for (int64_t e = 0; e < experts; ++e) s[e] = sigmoid(s[e]);
    return;
  }
  const S max = row_max<S>(experts, [&](int64_t e) { return s[e]; });
  for (int64_t e = 0; e < experts; ++e) s[e] = exp(s[e] - max);
  const S sum = row_sum<S>(experts, [&](int64_t e) { return s[e]; });
  for (int64_t e = 0; e < experts; ++e) s[e] = s[e] / sum;
}

// Only experts of the best groups keep their selection score; the others drop to -inf.
template <class S>
void mask_groups(const RouterRule& rule, std::vector<S>& selection) {
  const auto group_size = static_cast<int32_t>(selection.size()) / rule.num_groups;
  std::vector<S> group_score(rule.num_groups);
  for (int32_t g = 0; g < rule.num_groups; ++g) {
    const auto best = descending(selection.data(), g * group_size, (g + 1) * group_size);
    group_score[g] = selection[best[0]];
    if (rule.group_score == GroupScore::sum_of_best_two && group_size > 1) {
      group_score[g] = group_score[g] + selection[best[1]];
    }
  }
  const auto order = descending(group_score.data(), 0, rule.num_groups);
  for (int32_t rank = rule.top_groups; rank < rule.num_groups; ++rank) {
    const int32_t g = order[rank];
    std::fill_n(selection.begin() + g * group_size, group_size,
                -std::numeric_limits<S>::infinity());
  }
}

// Gates of the chosen experts, from the unbiased affinities.
template <class S>
void gate_row(const RouterRule& rule, const S* s, const int32_t* index, int count, S* gate) {
  S divisor = 1;
  const bool normalised = rule.normalise && count > 1;
  if (normalised) {
    std::vector<int32_t> ascending(index, index + count);
    std::sort(ascending.begin(), ascending.end());
    S sum = 0;
    for (int32_t e : ascending) sum = sum + s[e];
    divisor = sum + S(1e-20);
  }
  const bool scaled = rule.scale != 1.0f && (!normalised || rule.scale_gates == ScaleGates::always);
  for (int slot = 0; slot < count; ++slot) {
    S g = s[index[slot]];
    if (normalised) g = g / divisor;
    if (scaled) g = g * S(rule.scale);
    gate[slot] = g;
  }
}

// Calls f with the chosen experts, ascending. Without memory of its own: tiers use the backward
// pass as it is, and their ops do not allocate.
template <class F>
void for_each_ascending(const int32_t* index, int count, F&& f) {
  constexpr int32_t kNone = std::numeric_limits<int32_t>::max();
  for (int32_t last = -1;;) {
    int32_t next = kNone;
    for (int slot = 0; slot < count; ++slot) {
      if (index[slot] > last) next = std::min(next, index[slot]);
    }
    if (next == kNone) return;
    f(last = next);
  }
}

// The gradient of the chosen affinities: with g_i = scale * s_i / sum, d_s_i = scale * (d_g_i -
// sum_j d_g_j s_j / sum) / sum. Sums run by ascending expert index, like the forward pass's.
template <class S>
void gate_row_backward(const RouterRule& rule, const S* s, const int32_t* index,
                       const int32_t* rows, const S* d_gate_of_row, S* d_s) {
  int count = 0;
  while (count < rule.top_k && index[count] >= 0) ++count;
  const bool normalised = rule.normalise && count > 1;
  const bool scaled = rule.scale != 1.0f && (!normalised || rule.scale_gates == ScaleGates::always);
  for (int slot = 0; slot < count; ++slot) {
    const S d_gate = d_gate_of_row[rows[slot]];
    d_s[index[slot]] = scaled ? d_gate * S(rule.scale) : d_gate;
  }
  if (!normalised) return;
  S sum = 0, weighted = 0;
  for_each_ascending(index, count, [&](int32_t e) { sum = sum + s[e]; });
  const S divisor = sum + S(1e-20);
  for_each_ascending(index, count,
                     [&](int32_t e) { weighted = weighted + d_s[e] * (s[e] / divisor); });
  for_each_ascending(index, count, [&](int32_t e) { d_s[e] = (d_s[e] - weighted) / divisor; });
}

}  // namespace

void router_forward(const Context&, const RouterForward& args) {
  with_operand(args.x.dtype, [&]<class Operand>() {
    using S = Scalar<Operand>;
    const RouterRule& rule = args.rule;
    const int64_t experts = args.centroids.n;
    const int64_t hidden = args.centroids.k;
    std::vector<S> widened(hidden);
    std::vector<S> selection(experts);
    int32_t& bad_token = args.bad_token.as<int32_t>()[0];
    bad_token = -1;
    for (int64_t t = 0; t < args.x.dim(0); ++t) {
      const Operand* x = args.x.as<Operand>() + t * hidden;
      for (int64_t k = 0; k < hidden; ++k) widened[k] = widen(x[k]);
      S* s = args.affinity.as<S>() + t * experts;
      bool finite = true;
      for (int64_t e = 0; e < experts; ++e) {
        s[e] = dot<S>(widened.data(), args.centroids, 0, e);
        finite = finite && std::isfinite(s[e]);
      }
      if (args.logits) std::copy_n(s, experts, args.logits.as<S>() + t * experts);
      score_row(rule.score, s, experts);
      for (int64_t e = 0; e < experts; ++e) {
        selection[e] = args.selection_bias ? s[e] + args.selection_bias.as<S>()[e] : s[e];
        finite = finite && std::isfinite(selection[e]);
      }
      if (!finite && bad_token < 0) bad_token = static_cast<int32_t>(t);

      int32_t* index = args.index.as<int32_t>() + t * rule.top_k;
      S* gate = args.gate.as<S>() + t * rule.top_k;
      int count = args.experts_of_token ? args.experts_of_token.as<int32_t>()[t] : rule.top_k;
      std::fill_n(index, rule.top_k, -1);
      std::fill_n(gate, rule.top_k, S(0));
      if (!finite) continue;
      const int32_t* replayed =
          args.replayed_index ? args.replayed_index.as<int32_t>() + t * rule.top_k : nullptr;
      if (replayed != nullptr && replayed[0] != kChooseFreely) {
        count = static_cast<int>(std::find(replayed, replayed + rule.top_k, -1) - replayed);
        std::copy_n(replayed, count, index);
      } else {
        if (rule.top_groups < rule.num_groups) mask_groups(rule, selection);
        const auto order = descending(selection.data(), 0, static_cast<int32_t>(experts));
        std::copy_n(order.begin() + rule.skip_best, count, index);
      }
      gate_row(rule, s, index, count, gate);
    }
  });
}

void router_backward(const Context&, const RouterBackward& args) {
  with_operand(args.affinity.dtype, [&]<class S>() {
    if constexpr (!std::is_same_v<S, Bf16>) {
      const RouterRule& rule = args.rule;
      const int64_t experts = args.affinity.dim(1);
      for (int64_t t = 0; t < args.affinity.dim(0); ++t) {
        const S* s = args.affinity.as<S>() + t * experts;
        const int32_t* index = args.index.as<int32_t>() + t * rule.top_k;
        const int32_t* rows = args.row_of_slot.as<int32_t>() + t * rule.top_k;
        S* d_logits = args.d_logits.as<S>() + t * experts;
        S* d_s = d_logits;  // the affinities' gradient first
        std::fill_n(d_s, experts, S(0));
        gate_row_backward(rule, s, index, rows, args.d_gate_of_row.as<S>(), d_s);
        if (args.d_affinity) {
          for (int64_t e = 0; e < experts; ++e)
            d_s[e] = d_s[e] + args.d_affinity.as<S>()[t * experts + e];
        }
        if (rule.score == ScoreFunction::sigmoid) {
          for (int64_t e = 0; e < experts; ++e) d_logits[e] = d_s[e] * (s[e] * (S(1) - s[e]));
        } else {
          const S mean = row_sum<S>(experts, [&](int64_t e) { return s[e] * d_s[e]; });
          for (int64_t e = 0; e < experts; ++e) d_logits[e] = s[e] * (d_s[e] - mean);
        }
      }
    }
  });
}

}  // namespace dsmoe::kernels::ref

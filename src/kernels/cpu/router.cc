// The router: one product, then scores, selection and gates of each token by itself.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/ops.h"
#include "kernels/cpu/products.h"

namespace dsmoe::kernels::cpu {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

// The scores that selection compares, with what is already taken marked by -inf.
class Selection {
 public:
  Selection(float* score, int32_t size) : score_(score), size_(size) {}

  // Highest score, ties by lower index; it is taken out. Nothing left that compares: the first not
  // yet taken, as a stable descending sort would order them.
  int32_t take_best(uint8_t* taken) {
    int32_t best = -1;
    for (int32_t i = 0; i < size_; ++i) {
      if (taken[i] == 0 && (best < 0 || score_[i] > score_[best])) best = i;
    }
    taken[best] = 1;
    return best;
  }

 private:
  float* score_;
  int32_t size_;
};

void mask_groups(const RouterRule& rule, float* selection, int32_t experts, float* group_score,
                 uint8_t* taken) {
  const int32_t size = experts / rule.num_groups;
  for (int32_t g = 0; g < rule.num_groups; ++g) {
    const float* member = selection + g * size;
    int32_t best = 0;
    for (int32_t i = 1; i < size; ++i) best = member[i] > member[best] ? i : best;
    group_score[g] = member[best];
    if (rule.group_score == GroupScore::sum_of_best_two && size > 1) {
      int32_t second = best == 0 ? 1 : 0;
      for (int32_t i = 0; i < size; ++i)
        second = i != best && member[i] > member[second] ? i : second;
      group_score[g] = group_score[g] + member[second];
    }
  }
  std::fill_n(taken, rule.num_groups, uint8_t{0});
  Selection groups(group_score, rule.num_groups);
  for (int rank = 0; rank < rule.top_groups; ++rank) groups.take_best(taken);
  for (int32_t g = 0; g < rule.num_groups; ++g) {
    if (taken[g] == 0) std::fill_n(selection + g * size, size, kLowest);
  }
}

// Gates of the chosen experts, from the unbiased affinities; the sum runs by ascending expert.
void gate_row(const RouterRule& rule, const float* s, const int32_t* index, int count,
              float* gate) {
  const bool normalised = rule.normalise && count > 1;
  float divisor = 1;
  if (normalised) {
    float sum = 0;
    int32_t last = -1;
    for (int step = 0; step < count; ++step) {
      int32_t next = std::numeric_limits<int32_t>::max();
      for (int slot = 0; slot < count; ++slot) {
        if (index[slot] > last) next = std::min(next, index[slot]);
      }
      sum = sum + s[next];
      last = next;
    }
    divisor = sum + 1e-20f;
  }
  const bool scaled = rule.scale != 1.0f && (!normalised || rule.scale_gates == ScaleGates::always);
  for (int slot = 0; slot < count; ++slot) {
    float g = s[index[slot]];
    if (normalised) g = g / divisor;
    if (scaled) g = g * rule.scale;
    gate[slot] = g;
  }
}

bool all_finite(const float* values, int32_t count) {
  return std::all_of(values, values + count, [](float value) { return std::isfinite(value); });
}

// One token whose logits lie in its row of affinity. False when it can choose nothing.
bool choose(const Tier& tier, const RouterForward& args, int64_t t) {
  const RouterRule& rule = args.rule;
  const auto experts = static_cast<int32_t>(args.centroids.n);
  float* s = args.affinity.as<float>() + t * experts;
  bool finite = all_finite(s, experts);
  (rule.score == ScoreFunction::softmax ? tier.softmax : tier.sigmoid)(s, experts);

  int32_t* index = args.index.as<int32_t>() + t * rule.top_k;
  float* gate = args.gate.as<float>() + t * rule.top_k;
  std::fill_n(index, rule.top_k, -1);
  std::fill_n(gate, rule.top_k, 0.0f);
  float* selection = thread_scratch(int64_t{3} * experts);
  for (int32_t e = 0; e < experts; ++e) {
    selection[e] = args.selection_bias ? s[e] + args.selection_bias.as<float>()[e] : s[e];
  }
  if (args.selection_bias) finite = finite && all_finite(selection, experts);
  if (!finite) return false;
  int count = args.experts_of_token ? args.experts_of_token.as<int32_t>()[t] : rule.top_k;
  const int32_t* replayed =
      args.replayed_index ? args.replayed_index.as<int32_t>() + t * rule.top_k : nullptr;
  if (replayed != nullptr && replayed[0] != kChooseFreely) {
    count = static_cast<int>(std::find(replayed, replayed + rule.top_k, -1) - replayed);
    std::copy_n(replayed, count, index);
  } else {
    float* group_score = selection + experts;
    auto* taken = reinterpret_cast<uint8_t*>(group_score + experts);
    if (rule.top_groups < rule.num_groups)
      mask_groups(rule, selection, experts, group_score, taken);
    std::fill_n(taken, experts, uint8_t{0});
    Selection best(selection, experts);
    for (int skipped = 0; skipped < rule.skip_best; ++skipped) best.take_best(taken);
    for (int slot = 0; slot < count; ++slot) index[slot] = best.take_best(taken);
  }
  gate_row(rule, s, index, count, gate);
  return true;
}

}  // namespace

void router_forward(const Tier& tier, const Context& context, const RouterForward& args) {
  ProductBlock block = block_of(args.centroids, 0);
  block.x = args.x.data;
  block.x_type = element_of(args.x.dtype);
  block.x_stride = args.centroids.k;
  block.row_end = args.x.dim(0);
  block.out = args.affinity.data;
  block.out_stride = args.centroids.n;
  run_product(tier, context, block);
  if (args.logits) std::memcpy(args.logits.data, args.affinity.data, args.affinity.num_bytes());

  int32_t& bad_token = args.bad_token.as<int32_t>()[0];
  bad_token = -1;
  std::atomic<int64_t> first_bad{std::numeric_limits<int64_t>::max()};
  parallel_for(*context.pool, args.x.dim(0), 16, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      if (choose(tier, args, t)) continue;
      int64_t lowest = first_bad.load();
      while (t < lowest && !first_bad.compare_exchange_weak(lowest, t)) {
      }
    }
  });
  if (first_bad.load() < args.x.dim(0)) bad_token = static_cast<int32_t>(first_bad.load());
}

}  // namespace dsmoe::kernels::cpu

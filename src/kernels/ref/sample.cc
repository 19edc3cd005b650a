// Sampling on the host. Selecting looks at each weight twice: once to count them in bins, once to
// gather the bin in which the border lies.
#include "kernels/sample.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/thread_scratch.h"
#include "kernels/ref/ref.h"

namespace dsmoe::kernels {
namespace {

// The fewest of the heaviest weights whose amounts add up to `need`: all, if they never do.
template <class Amount>
SampleKept select_heaviest(std::span<const float> weights, uint64_t need, Amount&& amount) {
  constexpr int kShift = 18;
  std::array<uint64_t, std::size_t{1} << (kSampleKeyBits - kShift)> bins{};
  for (const float weight : weights) {
    if (const uint32_t key = sample_key(weight); key > 0) bins[key >> kShift] += amount(weight);
  }
  std::size_t bin = bins.size();
  uint64_t sum = 0;
  while (bin > 0 && sum + bins[bin - 1] < need) sum += bins[--bin];
  if (bin-- == 0) return {};
  std::vector<float> border;
  for (const float weight : weights) {
    const uint32_t key = sample_key(weight);
    if (key > 0 && key >> kShift == bin) border.push_back(weight);
  }
  std::sort(border.begin(), border.end(), std::greater<>());
  SampleKept kept;
  for (const float weight : border) {
    const uint32_t key = sample_key(weight);
    kept = {.above = key, .ties = key == kept.above ? kept.ties + 1 : 1};
    sum += amount(weight);
    if (sum >= need) break;
  }
  return kept;
}

// Calls f(id, mass) for what stays, ids ascending, until it returns true.
template <class F>
void visit_kept(std::span<const float> weights, SampleKept kept, F&& f) {
  uint32_t ties = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const uint32_t key = sample_key(weights[i]);
    if (key < kept.above || (key == kept.above && ties++ >= kept.ties)) continue;
    if (f(i, sample_mass(weights[i]))) return;
  }
}

uint64_t mass_of(std::span<const float> weights, SampleKept kept) {
  uint64_t sum = 0;
  visit_kept(weights, kept, [&](std::size_t, uint64_t mass) {
    sum += mass;
    return false;
  });
  return sum;
}

}  // namespace

int32_t sample_row(std::span<const float> logits, int32_t best, const SampleRule& rule) {
  if (best < 0 || rule.takes_best()) return best;
  const auto count = static_cast<int64_t>(logits.size());
  const std::span<float> weights(thread_scratch(count), logits.size());
  const float best_logit = logits[static_cast<std::size_t>(best)];
  for (std::size_t i = 0; i < logits.size(); ++i) {
    weights[i] = sample_exponent(logits[i], best_logit, rule.scale);
  }
  exp_f32(weights);
  SampleKept kept;
  if (rule.top_k > 0) {
    kept = select_heaviest(weights, static_cast<uint64_t>(rule.top_k),
                           [](float) { return uint64_t{1}; });
  }
  if (rule.top_p < 1) {
    kept = select_heaviest(weights, sample_share(rule.top_p, mass_of(weights, kept)), sample_mass);
  }
  kept = keep_least(kept, rule.least);
  __extension__ using Wide = unsigned __int128;
  const auto draw = static_cast<uint64_t>(Wide{rule.draw} * mass_of(weights, kept) >> 64);
  int32_t chosen = best;
  uint64_t sum = 0;
  visit_kept(weights, kept, [&](std::size_t id, uint64_t mass) {
    sum += mass;
    chosen = static_cast<int32_t>(id);
    return sum > draw;
  });
  return chosen;
}

void ref::sample_forward(const Context&, const SampleForward& args) {
  const auto vocabulary = static_cast<std::size_t>(args.logits.dim(1));
  for (std::size_t r = 0; r < args.rule.size(); ++r) {
    args.index.as<int32_t>()[r] = sample_row({args.logits.as<float>() + r * vocabulary, vocabulary},
                                             args.best.as<int32_t>()[r], args.rule[r]);
  }
}

}  // namespace dsmoe::kernels

// Draws one id from each row of logits.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>

#include "base/functions.h"
#include "kernels/context.h"
#include "kernels/layout.h"

namespace dsmoe::kernels {

// How the id of a row is chosen. Every logit has a weight relative to the best and a mass, that
// weight in whole units of 2^-40; a logit of mass 0 is never chosen. Sums of masses are exact, so
// there is no order of sums: every kernel chooses the same id.
//   By weight, heaviest first, of equals the lower id first, the first top_k stay; of these the
//   fewest that hold top_p of their mass; of these those of weight `least` or more.
//   Of all that stay, in the order of their ids, the first is chosen at which the sum of the masses
//   exceeds draw / 2^64 of the whole.
struct SampleRule {
  uint64_t draw = 0;  // uniform over all numbers of 64 bits
  double top_p = 1;
  float scale = 1;  // 1 / temperature
  float least = 0;
  int32_t top_k = 0;  // 0: all

  bool takes_best() const { return top_k == 1; }
};

// A weight is exp_f32 of it.
DSMOE_HD float sample_exponent(float logit, float best, float scale) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(__fsub_rn(logit, best), scale);
#else
  return (logit - best) * scale;
#endif
}

constexpr int64_t kMostSampled = int64_t{1} << 23;  // ids: the sum of their masses has 64 bits
constexpr float kLeastSampled = 0x1p-40f;           // the smallest weight with a mass

DSMOE_HD uint64_t sample_mass(float weight) { return static_cast<uint64_t>(weight * 0x1p40f); }

// Ordered as the weights are, 0 for those without a mass, below 2^kSampleKeyBits.
constexpr int kSampleKeyBits = 29;
constexpr uint32_t kBeforeLeastSampled = 0x2b7fffff;  // the bits below those of kLeastSampled
DSMOE_HD uint32_t sample_key(float weight) {
  return weight < kLeastSampled ? 0 : ScalarLanes::as_int(weight) - kBeforeLeastSampled;
}
DSMOE_HD uint64_t mass_of_sample_key(uint32_t key) {
  return key == 0 ? 0 : sample_mass(ScalarLanes::as_float(key + kBeforeLeastSampled));
}

// The masses that must add up to `top_p` of `total`: at least 1, at most all.
DSMOE_HD uint64_t sample_share(double top_p, uint64_t total) {
  const auto share = static_cast<uint64_t>(ceil(top_p * static_cast<double>(total)));
  return share < 1 ? 1 : share < total ? share : total;
}

// What stays: keys above `above`, and the first `ties` ids of those at it.
struct SampleKept {
  uint32_t above = 0;
  uint32_t ties = 0;
};
DSMOE_HD SampleKept keep_least(SampleKept kept, float least) {
  const uint32_t key = sample_key(least);
  return key > kept.above ? SampleKept{.above = key - 1, .ties = 0} : kept;
}

struct SampleForward {
  TensorView logits;                 // [rows, vocabulary] F32
  TensorView best;                   // [rows] I32: what argmax_forward finds
  std::span<const SampleRule> rule;  // [rows]
  TensorView index;                  // [rows] I32, written; -1 where best is
};
void sample_forward(const Context& context, const SampleForward& args);

// One row on the host, in any thread.
int32_t sample_row(std::span<const float> logits, int32_t best, const SampleRule& rule);

}  // namespace dsmoe::kernels

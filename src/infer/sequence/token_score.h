// Log-probabilities of one row of logits, in a fixed order of sums.
#pragma once

#include <span>

#include "infer/engine/engine_request.h"

namespace dsmoe::infer {

// Low enough that no temperature or penalty brings it back, finite as the sampler wants it.
inline constexpr float kNeverChosen = -1e30f;

class LogProbs {
 public:
  // Sums in double, ids ascending. Throws Error(input) when a logit is not finite.
  explicit LogProbs(std::span<const float> logits);

  float at(int32_t token) const;
  // `num_top` of the likeliest besides.
  TokenScore score(int32_t token, int num_top) const;

 private:
  std::span<const float> logits_;
  float max_ = 0;
  double log_sum_ = 0;
};

}  // namespace dsmoe::infer

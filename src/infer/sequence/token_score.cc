// log p = (logit - max) - log sum exp(logit - max).
#include "infer/sequence/token_score.h"

#include <algorithm>
#include <numeric>

#include "base/functions.h"
#include "infer/sequence/trace.h"

namespace dsmoe::infer {

LogProbs::LogProbs(std::span<const float> logits) : logits_(logits) {
  if (const int64_t bad = first_non_finite(logits); bad >= 0) {
    fail(ErrorKind::input,
         "the logit of token {} is not finite; the weights or the activations are broken (NaN or "
         "infinity)",
         bad);
  }
  max_ = *std::max_element(logits.begin(), logits.end());
  log_sum_ = log_f64(sum_of_exp(logits, max_));
}

float LogProbs::at(int32_t token) const {
  return static_cast<float>(static_cast<double>(logits_[static_cast<std::size_t>(token)]) - max_ -
                            log_sum_);
}

TokenScore LogProbs::score(int32_t token, int num_top) const {
  TokenScore score{.log_prob = at(token), .rank = 1};
  const float own = logits_[static_cast<std::size_t>(token)];
  for (std::size_t id = 0; id < logits_.size(); ++id) {
    const bool is_before =
        logits_[id] > own || (logits_[id] == own && id < static_cast<std::size_t>(token));
    score.rank += is_before ? 1 : 0;
  }
  std::vector<int32_t> ids(logits_.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto count =
      std::min(static_cast<std::ptrdiff_t>(num_top), static_cast<std::ptrdiff_t>(ids.size()));
  std::partial_sort(ids.begin(), ids.begin() + count, ids.end(), [&](int32_t a, int32_t b) {
    const float left = logits_[static_cast<std::size_t>(a)];
    const float right = logits_[static_cast<std::size_t>(b)];
    return left > right || (left == right && a < b);
  });
  for (auto id = ids.begin(); id != ids.begin() + count; ++id) score.top.emplace_back(*id, at(*id));
  return score;
}

}  // namespace dsmoe::infer

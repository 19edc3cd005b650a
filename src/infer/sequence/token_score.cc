// log p = (logit - max) - log sum exp(logit - max).
#include "infer/sequence/token_score.h"

#include <algorithm>

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
  const auto at_token = logits_.begin() + token;
  score.rank += std::count_if(logits_.begin(), at_token, [&](float other) { return other >= own; });
  score.rank += std::count_if(at_token, logits_.end(), [&](float other) { return other > own; });
  // One pass with a short list in order: ids ascend, so that of equals the lower one stays in
  // front.
  const std::size_t count = std::min(static_cast<std::size_t>(num_top), logits_.size());
  std::vector<int32_t> best;
  for (std::size_t id = 0; count > 0 && id < logits_.size(); ++id) {
    const auto logit = [&](int32_t one) { return logits_[static_cast<std::size_t>(one)]; };
    if (best.size() == count && !(logits_[id] > logit(best.back()))) continue;
    if (best.size() == count) best.pop_back();
    const auto place = std::find_if(best.begin(), best.end(),
                                    [&](int32_t one) { return logits_[id] > logit(one); });
    best.insert(place, static_cast<int32_t>(id));
  }
  for (const int32_t id : best) score.top.emplace_back(id, at(id));
  return score;
}

}  // namespace dsmoe::infer

// The likeliest tokens beside a chosen one, against a sort of all.
#include "infer/sequence/token_score.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/rng.h"

namespace dsmoe::infer {
namespace {

// Few distinct values, so that there are many ties.
std::vector<float> logits_of(std::size_t count) {
  const Rng rng{.seed = 3, .purpose = RngPurpose::sampling, .stream = static_cast<uint32_t>(count)};
  std::vector<float> logits;
  for (std::size_t i = 0; i < count; ++i) {
    logits.push_back(std::floor(40 * static_cast<float>(rng.uniform_f64(i))) / 4);
  }
  return logits;
}

TEST(LogProbs, TheLikeliestInOrderTiesByLowerId) {
  for (const std::size_t count : {1u, 2u, 5u, 20u, 21u, 1000u}) {
    const std::vector<float> logits = logits_of(count);
    std::vector<int32_t> ids(count);
    std::iota(ids.begin(), ids.end(), 0);
    std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
      return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
    });
    const LogProbs log_probs(logits);
    for (const int num_top : {0, 1, 2, 5, 20}) {
      const auto token = static_cast<int32_t>(count / 2);
      const TokenScore score = log_probs.score(token, num_top);
      ASSERT_EQ(score.top.size(), std::min(static_cast<std::size_t>(num_top), count));
      for (std::size_t i = 0; i < score.top.size(); ++i) {
        EXPECT_EQ(score.top[i].first, ids[i]) << count << " " << num_top << " " << i;
        EXPECT_EQ(score.top[i].second, log_probs.at(ids[i]));
      }
      const auto place = std::find(ids.begin(), ids.end(), token) - ids.begin();
      EXPECT_EQ(score.rank, place + 1);
    }
  }
}

}  // namespace
}  // namespace dsmoe::infer

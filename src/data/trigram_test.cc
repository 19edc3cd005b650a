// The trigram baseline: a distribution, known frequencies, and better with context.
#include "data/trigram.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/rng.h"
#include "data/test_support.h"

namespace dsmoe::data {
namespace {

using Documents = std::vector<std::vector<int32_t>>;

// Each document: 0, then tokens from `next(u, v, draw)`.
template <class F>
Documents generate(int count, int length, uint32_t stream, F next) {
  const Rng rng{.seed = 1, .purpose = RngPurpose::test, .stream = stream};
  Documents documents;
  uint64_t draw = 0;
  for (int d = 0; d < count; ++d) {
    std::vector<int32_t> document = {0};
    for (int i = 1; i < length; ++i) {
      const int32_t u = i >= 2 ? document[document.size() - 2] : -1;
      document.push_back(next(u, document.back(), rng.below(draw++, 8)));
    }
    documents.push_back(document);
  }
  return documents;
}

TrigramModel fit(int64_t vocab, const Documents& training, const Documents& held_out) {
  TrigramModel model(vocab);
  for (const auto& document : training) model.add(document);
  model.tune(held_out);
  return model;
}

TEST(TrigramModel, IsADistributionAfterEveryContext) {
  const auto next = [](int32_t, int32_t, uint64_t draw) { return static_cast<int32_t>(draw % 5); };
  const TrigramModel model = fit(9, generate(50, 20, 0, next), generate(10, 20, 1, next));
  for (int32_t u = 0; u <= 9; ++u) {
    for (int32_t v = 0; v < 9; ++v) {
      double sum = 0;
      for (int32_t w = 0; w < 9; ++w) {
        const double p = model.probability(u, v, w);
        EXPECT_GT(p, 0);
        sum += p;
      }
      EXPECT_NEAR(sum, 1, 1e-12) << u << " " << v;
    }
  }
}

TEST(TrigramModel, UntrainedIsUniform) {
  TrigramModel model(16);
  EXPECT_NEAR(model.score(std::vector<int32_t>{1, 2, 3}).nats_per_token(), std::log(16.0), 1e-12);
  EXPECT_EQ(model.score(std::vector<int32_t>{1}).num_tokens, 0);
}

TEST(TrigramModel, FindsTheEntropyOfASecondOrderSource) {
  // Three times of four the token is (u + v + 1) % 5, else uniform over 5 by chance of 1/4: a
  // second order source whose entropy follows from these numbers.
  const auto next = [](int32_t u, int32_t v, uint64_t draw) {
    return draw < 6 ? (std::max(u, 0) + v + 1) % 5 : (std::max(u, 0) + v + 2) % 5;
  };
  const double entropy = -(0.75 * std::log(0.75) + 0.25 * std::log(0.25));
  const Documents training = generate(2000, 30, 0, next), valid = generate(200, 30, 2, next);
  const TrigramModel model = fit(5, training, generate(100, 30, 1, next));
  const auto score = model.score(valid);
  EXPECT_EQ(score.num_tokens, 200 * 29);
  EXPECT_NEAR(score.nats_per_token(), entropy, 0.03);
}

TEST(TrigramModel, TuningHelpsOnUnseenDocuments) {
  // Sparse: 200 tokens, so most trigrams are new; the fixed weights trust them too much.
  const Rng rng{.seed = 9, .purpose = RngPurpose::test, .stream = 7};
  uint64_t at = 0;
  const auto next = [&](int32_t, int32_t, uint64_t) {
    return static_cast<int32_t>(rng.below(at++, 200));
  };
  const Documents training = generate(100, 30, 0, next), held_out = generate(50, 30, 1, next),
                  valid = generate(50, 30, 2, next);
  TrigramModel plain(200);
  for (const auto& document : training) plain.add(document);
  const double before = plain.score(valid).nats_per_token();
  plain.tune(held_out);
  const double after = plain.score(valid).nats_per_token();
  EXPECT_LT(after, before - 0.1);
  EXPECT_NEAR(after, std::log(200.0), 0.1);
}

TEST(TrigramModel, RefusesForeignIds) {
  TrigramModel model(4);
  EXPECT_NE(testing::error_of([&] { model.add(std::vector<int32_t>{0, 4}); }), "");
  EXPECT_NE(testing::error_of([&] { model.score(std::vector<int32_t>{-1, 0}); }), "");
}

}  // namespace
}  // namespace dsmoe::data

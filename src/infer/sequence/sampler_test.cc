// Each sampler against the distribution computed from its definition, by chi-square; each penalty
// and bias by a choice that differs without it.
#include "infer/sequence/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "base/error.h"
#include "base/functions.h"
#include "base/rng.h"

namespace dsmoe::infer {
namespace {

using Distribution = std::vector<double>;

const std::vector<float> kLogits{1.5f, 0.2f, -0.7f, 2.1f, 0.2f, -1.3f, 1.1f, 0.9f, -0.1f, 1.8f};

Distribution softmax(const std::vector<double>& logits, double temperature) {
  const double top = *std::max_element(logits.begin(), logits.end());
  Distribution p;
  for (const double logit : logits) p.push_back(std::exp((logit - top) / temperature));
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& value : p) value /= sum;
  return p;
}

std::vector<double> as_double(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

// Keeps the tokens `keep` says, given their rank by probability and the probability before them.
Distribution filtered(Distribution p,
                      const std::function<bool(int rank, double before, double own)>& keep) {
  std::vector<int> order(p.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return p[a] > p[b]; });
  double before = 0, sum = 0;
  Distribution left(p.size(), 0.0);
  for (int rank = 0; rank < static_cast<int>(order.size()); ++rank) {
    const double own = p[order[rank]];
    if (keep(rank, before, own)) {
      left[order[rank]] = own;
      sum += own;
    }
    before += own;
  }
  for (double& value : left) value /= sum;
  return left;
}

constexpr int kDraws = 20000;

std::vector<int> draw(const SamplerOptions& options, uint64_t seed = 7) {
  Sampler sampler(options, static_cast<int64_t>(kLogits.size()));
  std::vector<int> counts(kLogits.size());
  for (int position = 0; position < kDraws; ++position) {
    ++counts[sampler.sample({.logits = kLogits, .key = {.seed = seed, .position = position}})];
  }
  return counts;
}

// Pearson's statistic over the tokens of positive probability; a draw outside them is infinite.
double chi_square(const std::vector<int>& counts, const Distribution& p) {
  double sum = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    const double expected = p[i] * kDraws;
    if (expected == 0) {
      if (counts[i] > 0) return INFINITY;
      continue;
    }
    EXPECT_GT(expected, 5) << "too rare for the test";
    sum += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  return sum;
}

// What chi-square exceeds with probability 1e-6 (Wilson and Hilferty's approximation).
double critical(const Distribution& p) {
  const auto support = std::count_if(p.begin(), p.end(), [](double value) { return value > 0; });
  const double df = static_cast<double>(support - 1);
  return df * std::pow(1 - 2 / (9 * df) + 4.753 * std::sqrt(2 / (9 * df)), 3);
}

void expect_distribution(const SamplerOptions& options, const Distribution& p) {
  EXPECT_LT(chi_square(draw(options), p), critical(p));
}

TEST(Sampler, PlainSamplingFollowsTheSoftmax) {
  expect_distribution({}, softmax(as_double(kLogits), 1));
  // Negative controls: the test tells a slightly wrong distribution apart.
  const Distribution off = softmax(as_double(kLogits), 1.1);
  EXPECT_GT(chi_square(draw({}), off), critical(off));
}

TEST(Sampler, Temperature) {
  for (const double temperature : {0.5, 1.7}) {
    expect_distribution({.temperature = temperature}, softmax(as_double(kLogits), temperature));
  }
}

TEST(Sampler, TopK) {
  const Distribution p =
      filtered(softmax(as_double(kLogits), 1), [](int rank, double, double) { return rank < 4; });
  expect_distribution({.top_k = 4}, p);
  EXPECT_EQ(chi_square(draw({}), p), INFINITY);
  // Tokens 1 and 4 tie for place 6: the lower id stays.
  const std::vector<int> counts = draw({.top_k = 6});
  EXPECT_GT(counts[1], 0);
  EXPECT_EQ(counts[4], 0);
}

TEST(Sampler, TopP) {
  const Distribution p = filtered(softmax(as_double(kLogits), 1),
                                  [](int, double before, double) { return before < 0.7; });
  EXPECT_EQ(std::count(p.begin(), p.end(), 0.0), 6);  // four tokens hold 0.7
  expect_distribution({.top_p = 0.7}, p);
  EXPECT_EQ(chi_square(draw({}), p), INFINITY);
  const Distribution best =
      filtered(softmax(as_double(kLogits), 1), [](int rank, double, double) { return rank == 0; });
  EXPECT_EQ(draw({.top_p = 0})[3], kDraws);
  EXPECT_EQ(best[3], 1);
}

TEST(Sampler, MinP) {
  const Distribution all = softmax(as_double(kLogits), 1);
  const double floor = 0.2 * *std::max_element(all.begin(), all.end());
  const Distribution p = filtered(all, [&](int, double, double own) { return own >= floor; });
  expect_distribution({.min_p = 0.2}, p);
  EXPECT_EQ(chi_square(draw({}), p), INFINITY);
  EXPECT_EQ(draw({.min_p = 1})[3], kDraws);
}

TEST(Sampler, TruncationsFollowOneAnother) {
  Distribution p = softmax(as_double(kLogits), 0.8);
  p = filtered(p, [](int rank, double, double) { return rank < 7; });
  p = filtered(p, [](int, double before, double) { return before < 0.95; });
  const double floor = 0.12 * *std::max_element(p.begin(), p.end());
  p = filtered(p, [&](int, double, double own) { return own >= floor; });
  expect_distribution({.temperature = 0.8, .top_k = 7, .top_p = 0.95, .min_p = 0.12}, p);
}

TEST(Sampler, GreedyTakesTheBestAndTheLowerIdOfEquals) {
  const std::vector<float> logits{1, 3, 3, 2};
  EXPECT_EQ(Sampler({.temperature = 0}, 4).sample({.logits = logits, .key = {.seed = 9}}), 1);
  EXPECT_EQ(Sampler({.top_k = 1}, 4).sample({.logits = logits, .key = {.seed = 9}}), 1);
}

int32_t greedy(SamplerOptions options, const std::vector<float>& logits,
               const std::vector<int32_t>& prompt, const std::vector<int32_t>& answer) {
  options.temperature = 0;
  return Sampler(options, static_cast<int64_t>(logits.size()))
      .sample({.logits = logits, .prompt = prompt, .answer = answer});
}

TEST(Sampler, RepetitionPenaltyActsOnPromptAndAnswer) {
  const std::vector<float> logits{2.0f, 1.5f, 1.2f};
  EXPECT_EQ(greedy({}, logits, {0}, {1}), 0);
  EXPECT_EQ(greedy({.repetition_penalty = 2}, logits, {0}, {1}), 2);
  EXPECT_EQ(greedy({.repetition_penalty = 2}, logits, {0, 0}, {}), 1);
  // Once per token, however often it occurred: 2 / 1.2 stays above 1.5.
  EXPECT_EQ(greedy({.repetition_penalty = 1.2}, logits, {0, 0, 0}, {0}), 0);
  // A negative logit is pushed down, not up.
  EXPECT_EQ(greedy({.repetition_penalty = 2}, {-1.0f, -1.5f}, {0}, {}), 1);
}

TEST(Sampler, PresencePenaltyActsOnTheAnswerOnce) {
  const std::vector<float> logits{2.0f, 1.5f};
  EXPECT_EQ(greedy({}, logits, {}, {0}), 0);
  EXPECT_EQ(greedy({.presence_penalty = 0.6}, logits, {}, {0}), 1);
  EXPECT_EQ(greedy({.presence_penalty = 0.4}, logits, {}, {0, 0, 0}), 0);
  EXPECT_EQ(greedy({.presence_penalty = 0.6}, logits, {0}, {}), 0);
}

TEST(Sampler, FrequencyPenaltyCounts) {
  const std::vector<float> logits{2.0f, 1.5f};
  EXPECT_EQ(greedy({.frequency_penalty = 0.2}, logits, {}, {0, 0}), 0);
  EXPECT_EQ(greedy({.frequency_penalty = 0.2}, logits, {}, {0, 0, 0}), 1);
  EXPECT_EQ(greedy({.frequency_penalty = 0.2}, logits, {0, 0, 0}, {}), 0);
}

TEST(Sampler, PenaltiesFollowTheirDistribution) {
  std::vector<double> logits = as_double(kLogits);
  logits[3] = logits[3] / 1.5 - 0.3 - 2 * 0.2;
  logits[5] = logits[5] * 1.5;
  logits[0] += 1;
  const SamplerOptions options{.repetition_penalty = 1.5,
                               .presence_penalty = 0.3,
                               .frequency_penalty = 0.2,
                               .bias = {{0, 1.0}}};
  const Distribution p = softmax(logits, 1);
  Sampler sampler(options, 10);
  std::vector<int> counts(10);
  const std::vector<int32_t> prompt{5, 5}, answer{3, 3};
  for (int position = 0; position < kDraws; ++position) {
    ++counts[sampler.sample({.logits = kLogits,
                             .prompt = prompt,
                             .answer = answer,
                             .key = {.seed = 3, .position = position}})];
  }
  EXPECT_LT(chi_square(counts, p), critical(p));
  EXPECT_GT(chi_square(draw({}), p), critical(p));
}

TEST(Sampler, BiasMovesAndBans) {
  EXPECT_EQ(greedy({.bias = {{1, 0.6}}}, {2.0f, 1.5f}, {}, {}), 1);
  EXPECT_EQ(greedy({.bias = {{1, 0.4}}}, {2.0f, 1.5f}, {}, {}), 0);
  const std::vector<int> counts = draw({.bias = {{3, -100}}});
  EXPECT_EQ(counts[3], 0);
  EXPECT_GT(draw({})[3], 0);
}

TEST(Sampler, IsAFunctionOfSeedChoiceAndPosition) {
  Sampler sampler({}, 10), other({}, 10);
  const auto sequence = [](Sampler& s, uint64_t seed, uint32_t choice) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < 50; ++i) {
      tokens.push_back(
          s.sample({.logits = kLogits, .key = {.seed = seed, .choice = choice, .position = i}}));
    }
    return tokens;
  };
  const auto first = sequence(sampler, 1, 0);
  EXPECT_EQ(sequence(other, 1, 0), first);
  EXPECT_NE(sequence(sampler, 2, 0), first);
  EXPECT_NE(sequence(sampler, 1, 1), first);
  EXPECT_EQ(sequence(sampler, 1, 0), first);  // nothing is left of earlier calls
}

// The rule of kernels/sample.h word for word, over the whole vocabulary sorted.
int32_t by_definition(const std::vector<float>& logits, const kernels::SampleRule& rule) {
  struct Token {
    float weight;
    int32_t id;
    __extension__ unsigned __int128 mass;
  };
  std::vector<Token> tokens;
  const float best = *std::max_element(logits.begin(), logits.end());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const float weight = exp_f32((logits[i] - best) * rule.scale);
    const auto mass = static_cast<uint64_t>(std::floor(std::ldexp(double{weight}, 40)));
    if (mass > 0) tokens.push_back({weight, static_cast<int32_t>(i), mass});
  }
  std::sort(tokens.begin(), tokens.end(), [](const Token& a, const Token& b) {
    return a.weight > b.weight || (a.weight == b.weight && a.id < b.id);
  });
  const auto mass_of_first = [&](std::size_t count) {
    return std::accumulate(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count),
                           decltype(Token::mass){0},
                           [](auto sum, const Token& token) { return sum + token.mass; });
  };
  if (rule.top_k > 0 && rule.top_k < std::ssize(tokens)) tokens.resize(rule.top_k);
  if (rule.top_p < 1) {
    const double share = rule.top_p * static_cast<double>(mass_of_first(tokens.size()));
    std::size_t kept = 1;
    while (static_cast<double>(mass_of_first(kept)) < share) ++kept;
    tokens.resize(kept);
  }
  std::erase_if(tokens, [&](const Token& token) { return token.weight < rule.least; });
  std::sort(tokens.begin(), tokens.end(),
            [](const Token& a, const Token& b) { return a.id < b.id; });
  const auto draw = mass_of_first(tokens.size()) * rule.draw >> 64;
  std::size_t chosen = 0;
  while (mass_of_first(chosen + 1) <= draw) ++chosen;
  return tokens[chosen].id;
}

class SamplerOfManyTokens : public ::testing::TestWithParam<SamplerOptions> {};

TEST_P(SamplerOfManyTokens, ChoosesAsDefined) {
  const SamplerOptions options = GetParam();
  constexpr int64_t kVocabulary = 3000;
  const Rng rng{.seed = 5, .stream = 1};
  for (const float steps : {8.0f, 4096.0f}) {  // many ties, and hardly any
    std::vector<float> logits(kVocabulary);
    for (int64_t i = 0; i < kVocabulary; ++i) {
      logits[i] = std::round(rng.normal_f32(i) * 4 * steps) / steps;
    }
    Sampler sampler(options, kVocabulary);
    int differing = 0;
    for (int position = 0; position < 60; ++position) {
      const DrawKey key{.seed = 11, .position = position};
      const kernels::SampleRule rule = sample_rule(options, key);
      const int32_t token = sampler.sample({.logits = logits, .key = key});
      ASSERT_EQ(token, by_definition(logits, rule)) << "position " << position;
      // Negative control: another draw would have been noticed.
      kernels::SampleRule other = rule;
      other.draw += uint64_t{1} << 63;
      differing += token != by_definition(logits, other);
    }
    EXPECT_GT(differing, 20);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Options, SamplerOfManyTokens,
    ::testing::Values(SamplerOptions{}, SamplerOptions{.temperature = 3},
                      SamplerOptions{.temperature = 0.7}, SamplerOptions{.top_k = 40},
                      SamplerOptions{.top_p = 0.97}, SamplerOptions{.min_p = 0.01},
                      SamplerOptions{.top_k = 500, .top_p = 0.9},
                      SamplerOptions{.temperature = 2, .top_k = 700, .top_p = 0.95, .min_p = 0.003},
                      SamplerOptions{.temperature = 100, .top_k = 2999}));

TEST(Sampler, RefusesBadOptionsAndLogits) {
  for (const SamplerOptions& options :
       {SamplerOptions{.repetition_penalty = 0}, SamplerOptions{.presence_penalty = NAN},
        SamplerOptions{.frequency_penalty = 1000}, SamplerOptions{.bias = {{10, 1}}},
        SamplerOptions{.bias = {{-1, 1}}}, SamplerOptions{.bias = {{1, 1}, {1, 2}}},
        SamplerOptions{.bias = {{1, INFINITY}}}, SamplerOptions{.temperature = -1},
        SamplerOptions{.top_k = -1}, SamplerOptions{.top_p = 1.1}, SamplerOptions{.min_p = -0.1}}) {
    EXPECT_THROW(Sampler(options, 10), Error);
  }
  // However cold: the best, not a division by zero.
  EXPECT_EQ(Sampler({.temperature = 1e-300}, 10).sample({.logits = kLogits}), 3);
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    std::vector<float> logits = kLogits;
    logits[4] = bad;
    EXPECT_THROW(Sampler({}, 10).sample({.logits = logits}), Error);
  }
}

// A token that is not allowed has no weight, however likely penalties and bias make it.
TEST(Sampler, TokensThatAreNotAllowedNeverCome) {
  const std::vector<uint64_t> allowed{0b0000100110};
  SamplerOptions options{.bias = {{.token = 3, .bias = 1000}}};
  Sampler sampler(options, static_cast<int64_t>(kLogits.size()));
  std::vector<int32_t> counts(kLogits.size());
  for (int64_t position = 0; position < 2000; ++position) {
    const int32_t token = sampler.sample({.logits = kLogits,
                                          .prompt = {},
                                          .answer = {},
                                          .key = {.seed = 3, .position = position},
                                          .allowed = allowed});
    ++counts[static_cast<std::size_t>(token)];
  }
  for (std::size_t t = 0; t < kLogits.size(); ++t) {
    EXPECT_EQ(counts[t] > 0, t == 1 || t == 2 || t == 5) << t;
  }
  options.temperature = 0;
  Sampler greedy(options, static_cast<int64_t>(kLogits.size()));
  EXPECT_EQ(greedy.sample({.logits = kLogits, .prompt = {}, .answer = {}, .allowed = allowed}), 1);
}

}  // namespace
}  // namespace dsmoe::infer

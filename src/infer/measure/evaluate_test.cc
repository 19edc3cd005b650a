// Scores against the oracle's eval golden, and the independence of bits from batches and chunks.
#include "infer/measure/evaluate.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/json.h"
#include "base/thread_pool.h"
#include "infer/load_model.h"
#include "kernels/table.h"

namespace dsmoe::infer {
namespace {

const std::filesystem::path kFolder =
    std::filesystem::path(DSMOE_SOURCE_DIR) / "tests/goldens/eval";

class Evaluate : public ::testing::Test {
 protected:
  Evaluate() {
    std::ifstream file(kFolder / "eval.json");
    golden_ = Json::parse(file);
    model_ = load_model(context_, kFolder, {.operand = tensor::DType::F32});
  }

  struct Scores {
    std::vector<std::vector<float>> log_prob;
    std::vector<bool> greedy;
  };
  Scores score(std::span<const ScoredDocument> documents, const ScorerOptions& options = {}) {
    Scores result;
    score_documents(context_, *model_, documents, options,
                    [&](int64_t idx, const TokenScores& scores) {
                      EXPECT_EQ(idx, static_cast<int64_t>(result.log_prob.size()));
                      result.log_prob.emplace_back(scores.log_prob.begin(), scores.log_prob.end());
                      result.greedy.push_back(sum_scores(scores).greedy);
                    });
    return result;
  }

  std::vector<JoinedPair> joined_pairs() const {
    std::vector<JoinedPair> pairs;
    for (const Json& pair : golden_["pairs"]) {
      pairs.push_back(join_pair({.context = pair["context"], .continuation = pair["continuation"]},
                                model_->context, model_->config.bos_token_id, "pair"));
    }
    return pairs;
  }

  ThreadPool pool_{2};
  kernels::Context context_{.table = &kernels::select_cpu_table(), .pool = &pool_};
  Json golden_;
  std::unique_ptr<model::Model> model_;
};

// fp32 logits are within 1e-5 of the oracle's, relative; a log-probability of magnitude 10 moves by
// at most about 1e-4.
constexpr double kTolerance = 1e-4;

TEST_F(Evaluate, StreamsEqualTheOracle) {
  ASSERT_GE(golden_["streams"].size(), 4u);
  for (const Json& stream : golden_["streams"]) {
    const std::vector<int32_t> tokens = stream["tokens"];
    const auto windows = cut_windows(tokens, model_->context,
                                     {.window = stream["window"], .stride = stream["stride"]});
    std::vector<float> all;
    for (const auto& window : score(windows).log_prob)
      all.insert(all.end(), window.begin(), window.end());
    const std::vector<double> expected = stream["logprobs"];
    ASSERT_EQ(all.size(), expected.size());
    double nats = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      EXPECT_NEAR(all[i], expected[i], kTolerance) << "target " << i + 1;
      nats -= all[i];
    }
    EXPECT_NEAR(nats / static_cast<double>(all.size()), stream["nats_per_token"].get<double>(),
                1e-5);
  }
}

TEST_F(Evaluate, PairsEqualTheOracle) {
  const std::vector<JoinedPair> pairs = joined_pairs();
  std::vector<ScoredDocument> documents;
  for (const JoinedPair& pair : pairs) documents.push_back({pair.tokens, pair.first_target});
  const Scores scores = score(documents);
  ASSERT_EQ(scores.log_prob.size(), golden_["pairs"].size());
  int num_greedy = 0;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const Json& pair = golden_["pairs"][i];
    double sum = 0;
    for (const float log_prob : scores.log_prob[i]) sum += log_prob;
    EXPECT_NEAR(sum, pair["loglikelihood"].get<double>(), kTolerance) << i;
    EXPECT_EQ(scores.greedy[i], pair["greedy"].get<bool>()) << i;
    num_greedy += scores.greedy[i] ? 1 : 0;
  }
  EXPECT_GT(num_greedy, 0);
  EXPECT_LT(num_greedy, static_cast<int>(pairs.size()));
}

TEST_F(Evaluate, BitsDoNotDependOnBatchesAndChunks) {
  const std::vector<JoinedPair> pairs = joined_pairs();
  std::vector<ScoredDocument> documents;
  for (const JoinedPair& pair : pairs) documents.push_back({pair.tokens, pair.first_target});
  const Scores together = score(documents);
  for (const ScorerOptions& options :
       {ScorerOptions{.max_documents = 1}, ScorerOptions{.chunk_tokens = 1},
        ScorerOptions{.chunk_tokens = 7, .max_documents = 2}}) {
    EXPECT_EQ(score(documents, options).log_prob, together.log_prob);
  }
  // Negative control: another number of experts is told apart.
  EXPECT_NE(score(documents, {.top_k = 1}).log_prob, together.log_prob);
}

TEST_F(Evaluate, WindowsScoreEachTokenOnce) {
  const std::vector<int32_t> tokens(40, 3);
  for (const WindowOptions& options :
       {WindowOptions{}, WindowOptions{.window = 7}, WindowOptions{.window = 9, .stride = 2},
        WindowOptions{.window = 1, .stride = 1}}) {
    int64_t targets = 0;
    for (const ScoredDocument& window : cut_windows(tokens, 24, options)) {
      EXPECT_GE(window.first_target, 1);
      targets += static_cast<int64_t>(window.tokens.size()) - window.first_target;
    }
    EXPECT_EQ(targets, 39);
  }
}

TEST_F(Evaluate, RefusesWhatCannotBeScored) {
  const std::vector<int32_t> tokens(40, 3);
  const std::vector<int32_t> one{3};
  EXPECT_THROW(cut_windows(tokens, 24, {.window = 25}), Error);
  EXPECT_THROW(cut_windows(tokens, 24, {.window = 8, .stride = 9}), Error);
  EXPECT_THROW(cut_windows(one, 24, {}), Error);
  EXPECT_THROW(join_pair({{1}, {}}, 24, 0, "x"), Error);
  EXPECT_THROW(join_pair({{1}, std::vector<int32_t>(25, 1)}, 24, 0, "x"), Error);
  EXPECT_THROW(join_pair({{}, {1}}, 24, std::nullopt, "x"), Error);
  const std::vector<int32_t> outside{1, 61};
  const ScoredDocument document{outside, 1};
  EXPECT_THROW(score({&document, 1}), Error);
}

TEST_F(Evaluate, CancelsBetweenForwardPasses) {
  const std::vector<int32_t> tokens(40, 3);
  std::atomic<bool> cancelled{false};
  int64_t taken = 0;
  const auto windows = cut_windows(tokens, 24, {.window = 5});
  const Outcome outcome = score_documents(
      context_, *model_, windows, {.chunk_tokens = 5, .max_documents = 1, .cancelled = &cancelled},
      [&](int64_t, const TokenScores&) {
        ++taken;
        cancelled = true;
      });
  EXPECT_EQ(outcome, Outcome::cancelled);
  EXPECT_EQ(taken, 1);
}

}  // namespace
}  // namespace dsmoe::infer

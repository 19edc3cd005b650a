// Balance losses where their value is known: even and collapsed routing, groups, padding, alpha 0;
// the z loss; the update of the selection bias.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/balance.h"
#include "tiny_run.h"
#include "train/sources.h"

namespace dsmoe::testing {
namespace {

using kernels::ScoreFunction;
using tensor::DType;
using tensor::TensorView;

constexpr int64_t kExperts = 6;

// One call of balance_loss in double.
struct Balance {
  std::vector<double> affinity;  // [tokens, kExperts]
  std::vector<int32_t> index;    // [tokens, top_k]
  std::vector<int32_t> starts;   // of sequences
  ScoreFunction score = ScoreFunction::softmax;
  double alpha = 0.3, device_alpha = 0.2;
  int64_t num_devices = 3, sequences_per_group = 1;
  double group_weight = 1;

  double losses[2] = {0, 0};  // expert level, device level
  std::vector<double> d_affinity;

  void run() {
    const int64_t tokens = static_cast<int64_t>(affinity.size()) / kExperts;
    const int64_t top_k = static_cast<int64_t>(index.size()) / tokens;
    d_affinity.assign(affinity.size(), 0.25);
    const auto view = [](auto& values, tensor::Shape shape) {
      using Element = std::remove_cvref_t<decltype(values[0])>;
      return TensorView{.data = &values[0], .dtype = tensor::dtype_of<Element>, .shape = shape};
    };
    ThreadPool pool(1);
    kernels::balance_loss({.table = &kernels::ref_table(), .pool = &pool},
                          {.score = score,
                           .sequences_per_group = sequences_per_group,
                           .alpha = alpha,
                           .device_alpha = device_alpha,
                           .num_devices = num_devices,
                           .group_weight = group_weight,
                           .affinity = view(affinity, {tokens, kExperts}),
                           .index = view(index, {tokens, top_k}),
                           .sequence_starts = view(starts, {static_cast<int64_t>(starts.size())}),
                           .d_affinity = view(d_affinity, {tokens, kExperts}),
                           .losses = view(losses, {2})});
  }
};

// Scores of tokens; softmax scores sum to one, sigmoid scores to whatever they like.
std::vector<double> scores(int64_t tokens, ScoreFunction score) {
  std::vector<double> all;
  for (int64_t t = 0; t < tokens; ++t) {
    double sum = 0;
    for (int64_t e = 0; e < kExperts; ++e)
      sum += all.emplace_back(0.1 + static_cast<double>((t * 5 + e * e) % 7));
    const double size = score == ScoreFunction::softmax ? sum : 9.0;
    for (int64_t e = 0; e < kExperts; ++e) all[static_cast<std::size_t>(t * kExperts + e)] /= size;
  }
  return all;
}

class BalanceLoss : public ::testing::TestWithParam<ScoreFunction> {};

// f = 1 for every expert, and the scores of a token sum to one.
TEST_P(BalanceLoss, EvenRoutingGivesAlpha) {
  Balance even{.affinity = scores(3, GetParam()),
               .index = {0, 1, 2, 3, 4, 5},
               .starts = {0, 3},
               .score = GetParam()};
  even.run();
  EXPECT_NEAR(even.losses[0], 0.3, 1e-15);
  EXPECT_NEAR(even.losses[1], 0.2, 1e-15);
  // Even over devices alone (experts 0 and 1 are a device): only the device level is alpha.
  Balance devices{.affinity = scores(3, GetParam()),
                  .index = {0, 2, 4, 0, 2, 4},
                  .starts = {0, 3},
                  .score = GetParam()};
  devices.run();
  EXPECT_GT(std::abs(devices.losses[0] - 0.3), 1e-3) << "control: routing is not even";
  EXPECT_NEAR(devices.losses[1], 0.2, 1e-15);
}

// All tokens on the same two of six experts, which hold all of the score: f = 3, P = 1/2 each.
TEST_P(BalanceLoss, CollapseGivesExpertsOverTopK) {
  Balance collapsed{.index = {1, 4, 4, 1}, .starts = {0, 2}, .score = GetParam()};
  for (int t = 0; t < 2; ++t)
    for (const double s : {0.0, 0.5, 0.0, 0.0, 0.5, 0.0}) collapsed.affinity.push_back(s);
  collapsed.run();
  EXPECT_NEAR(collapsed.losses[0], 0.3 * 6 / 2, 1e-15);
  // Of three devices two have f' = 3/2, P' = 1/2.
  EXPECT_NEAR(collapsed.losses[1], 0.2 * 2 * 1.5 * 0.5, 1e-15);
}

// Groups are averaged over the groups of the step, not over tokens.
TEST_P(BalanceLoss, GroupsAreAveraged) {
  const std::vector<double> all = scores(5, GetParam());
  const std::vector<int32_t> index{0, 1, 1, 2, 5, 0, 5, 4, 5, 1};
  const auto tokens = [&](int64_t begin, int64_t end) {
    Balance part{.affinity = {all.begin() + begin * kExperts, all.begin() + end * kExperts},
                 .index = {index.begin() + begin * 2, index.begin() + end * 2},
                 .starts = {0, static_cast<int32_t>(end - begin)},
                 .score = GetParam()};
    part.run();
    return part;
  };
  const Balance first = tokens(0, 2), second = tokens(2, 5);
  Balance both{.affinity = all,
               .index = index,
               .starts = {0, 1, 2, 4, 5},
               .score = GetParam(),
               .sequences_per_group = 2,
               .group_weight = 0.5};
  both.run();
  for (int level = 0; level < 2; ++level) {
    EXPECT_NEAR(both.losses[level], (first.losses[level] + second.losses[level]) / 2, 1e-15);
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    const double expected = i < first.d_affinity.size()
                                ? first.d_affinity[i]
                                : second.d_affinity[i - first.d_affinity.size()];
    EXPECT_NEAR(both.d_affinity[i], expected / 2, 1e-15) << i;
  }
}

TEST_P(BalanceLoss, AlphaZeroIsNothing) {
  Balance off{.affinity = scores(3, GetParam()),
              .index = {0, 1, 0, 1, 0, 1},
              .starts = {0, 3},
              .score = GetParam(),
              .alpha = 0,
              .device_alpha = 0};
  off.run();
  EXPECT_EQ(off.losses[0], 0);
  EXPECT_EQ(off.losses[1], 0);
  EXPECT_EQ(off.d_affinity, std::vector<double>(off.affinity.size(), 0.0));
}

INSTANTIATE_TEST_SUITE_P(All, BalanceLoss,
                         ::testing::Values(ScoreFunction::softmax, ScoreFunction::sigmoid),
                         [](const auto& test) {
                           return test.param == ScoreFunction::softmax ? "softmax" : "sigmoid";
                         });

// Equal logits c over E experts: logsumexp = c + ln E, its gradient 1/E each.
TEST(ZLoss, EqualLogits) {
  constexpr double kLogit = 0.7, kWeight = 0.05;
  std::vector<double> logits(3 * kExperts, kLogit), d_logits(logits.size(), 1.0);
  std::vector<int32_t> counted{1, 0, 1};
  double loss = 2;
  ThreadPool pool(1);
  const tensor::Shape shape{3, kExperts};
  kernels::router_z_loss(
      {.table = &kernels::ref_table(), .pool = &pool},
      {.weight = kWeight,
       .logits = {.data = logits.data(), .dtype = DType::F64, .shape = shape},
       .is_counted = {.data = counted.data(), .dtype = DType::I32, .shape = {3}},
       .d_logits = {.data = d_logits.data(), .dtype = DType::F64, .shape = shape},
       .loss = {.data = &loss, .dtype = DType::F64, .shape = {1}}});
  const double lse = kLogit + std::log(6.0);
  EXPECT_NEAR(loss, 2 + 2 * kWeight * lse * lse, 1e-14) << "two of three tokens count";
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double expected = i / kExperts == 1 ? 1.0 : 1 + 2 * kWeight * lse / 6;
    EXPECT_NEAR(d_logits[i], expected, 1e-14) << i;
  }
}

// A trainer of the tiny V3 model with chosen losses.
struct Trained {
  explicit Trained(const model::LossRule& losses, double bias_rate = 0.001)
      : config(tiny_v3_config(DType::F32)),
        model(model::make_model(
            context, config, weights,
            {.operand = DType::F32, .passes = moe::Passes::forward_and_backward})),
        trainer(context, *model, [](const std::string&) { return true; }, weights,
                {.optimizer = {.bias_rate = bias_rate},
                 .losses = losses,
                 .rows_per_micro_batch = 4,
                 .max_row_tokens = 22}) {}

  ThreadPool pool{1};
  kernels::Context context{.table = &kernels::select_cpu_table(), .pool = &pool};
  model::ModelConfig config;
  RandomWeights weights;
  std::unique_ptr<model::Model> model;
  train::Trainer trainer;
};

train::StepRows tiny_rows() {
  const data::MemoryCorpus corpus = tiny_corpus(tiny_v3_config(DType::F32).vocab_size);
  const data::DocumentSplit split(corpus, {.fraction = 0.1});
  data::PackedBatches batches(split, {.batch = 4, .seq = 22, .seed = 1});
  train::StepRows rows;
  train::pack_rows(batches.batch(0), rows);
  return rows;
}

TEST(Losses, AreReportedApart) {
  const train::StepRows rows = tiny_rows();
  Trained plain({}),
      balanced({.balance_alpha = 0.5, .device_alpha = 0.1, .num_devices = 2, .z_alpha = 0.2});
  const train::StepResult& without = plain.trainer.accumulate(rows);
  const train::StepResult& with = balanced.trainer.accumulate(rows);
  EXPECT_EQ(with.language, without.language);
  EXPECT_EQ(without.balance, 0);
  EXPECT_EQ(without.device_balance, 0);
  EXPECT_EQ(without.z, 0);
  // Near alpha times the number of MoE layers: routing here is not far from even.
  EXPECT_NEAR(with.balance / 0.5, 2, 0.5);
  EXPECT_NEAR(with.device_balance / 0.1, 2, 0.2);
  EXPECT_GT(with.z, 0);
}

// Rows leave their padding behind before any loss sees them.
TEST(Losses, PaddingIsNoToken) {
  data::Batch batch;
  for (const std::size_t padding : {0, 5, 40}) {
    data::PackedRow row{.tokens = {3, 4, 5, 6}, .targets = {4, 5, -1, 7}};
    row.pieces = {{.begin = 0, .length = 3}, {.begin = 3, .length = 1}};
    row.tokens.resize(4 + padding, data::kNoToken);
    row.targets.resize(4 + padding, data::kNoToken);
    batch.rows = {row};
    train::StepRows rows;
    train::pack_rows(batch, rows);
    EXPECT_EQ(rows.tokens, (std::vector<int32_t>{3, 4, 5, 6}));
    EXPECT_EQ(rows.targets, (std::vector<int32_t>{4, 5, -1, 7}));
    EXPECT_EQ(rows.row_lengths, std::vector<int32_t>{4});
    EXPECT_EQ(rows.document_lengths, (std::vector<int32_t>{3, 1}));
    EXPECT_EQ(rows.num_counted(), 3);
  }
}

// bias += rate * sign(mean - load), from integer counts, and the router sees it.
TEST(SelectionBias, MovesByTheSignOfTheLoad) {
  Trained trained({}, 0.125);
  std::vector<const train::TrainedTensor*> biases;
  for (const train::TrainedTensor& tensor : trained.trainer.optimizer().tensors()) {
    if (tensor.name.ends_with("e_score_correction_bias")) biases.push_back(&tensor);
  }
  ASSERT_EQ(biases.size(), 2u);
  const auto values = [&](const TensorView& view) {
    return std::vector<float>(view.as<float>(), view.as<float>() + kExperts);
  };
  const std::vector<float> before[] = {values(biases[0]->master), values(biases[1]->master)};
  // Mean 2, met by two experts; mean 7/6, met by none.
  const std::vector<std::vector<int64_t>> load{{4, 0, 2, 2, 1, 3}, {2, 1, 1, 1, 1, 1}};
  const float sign[2][kExperts] = {{-1, 1, 0, 0, 1, -1}, {-1, 1, 1, 1, 1, 1}};
  trained.trainer.optimizer().update_selection_bias(load);
  for (std::size_t layer = 0; layer < 2; ++layer) {
    std::vector<float> expected = before[layer];
    for (std::size_t e = 0; e < expected.size(); ++e) expected[e] += 0.125f * sign[layer][e];
    EXPECT_EQ(values(biases[layer]->master), expected);
    const TensorView& in_use = trained.model->parameters.forward.blocks[layer].ffn.selection_bias;
    EXPECT_EQ(values(in_use), expected);
  }
  // Even loads move nothing.
  const std::vector<float> moved = values(biases[0]->master);
  trained.trainer.optimizer().update_selection_bias(
      std::vector<std::vector<int64_t>>(2, std::vector<int64_t>(kExperts, 5)));
  EXPECT_EQ(values(biases[0]->master), moved);
}

}  // namespace
}  // namespace dsmoe::testing

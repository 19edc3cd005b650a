// The rule of the sums beside a plain reference: each shard's gradient as one rank makes it of the
// shard's rows alone, with the scale of the whole step, then shard after shard.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/flush_denormals.h"
#include "base/thread_pool.h"
#include "comm/part.h"
#include "comm/threads.h"
#include "data/batches.h"
#include "tiny_run.h"
#include "train/sources.h"
#include "train/step.h"
#include "train/validation.h"

namespace dsmoe::testing {
namespace {

using kernels::Context;
using tensor::DType;
using Gradients = std::map<std::string, std::vector<float>>;

constexpr int64_t kRows = 12, kSeq = 22;

train::StepRows step_rows(const model::ModelConfig& config) {
  const data::MemoryCorpus corpus = tiny_corpus(config.vocab_size);
  const data::DocumentSplit split(corpus, {.fraction = 0.1});
  data::PackedBatches batches(split, {.batch = kRows, .seq = kSeq, .seed = 1});
  data::Batch batch;
  batches.fill(0, batch);
  train::StepRows rows;
  train::pack_rows(batch, rows);
  return rows;
}

std::unique_ptr<model::Model> model_of(const Context& context, const model::ModelConfig& config,
                                       const train::RankLayout& layout) {
  RandomWeights weights;
  train::RoundedParameters stored(weights, config);
  return model::make_model(context, config, stored,
                           {.operand = config.torch_dtype,
                            .context = kSeq,
                            .passes = moe::Passes::forward_and_backward,
                            .rank = layout.expert_rank(),
                            .ranks = layout.expert_ranks});
}

constexpr model::LossRule kLosses{
    .balance_alpha = 0.3, .device_alpha = 0.1, .num_devices = 2, .z_alpha = 0.1};

// Gradients of the rows u with u mod `shards` = `shard`.
Gradients shard_gradients(const model::ModelConfig& config, const train::StepRows& all_rows,
                          int64_t shard, int64_t shards) {
  ThreadPool pool(1);
  const Context context{.table = &kernels::select_cpu_table(), .pool = &pool};
  const auto model = model_of(context, config, {});
  tensor::Arena arena("gradients");
  const model::GradientBuffers buffers = model::allocate_gradients(
      context, model->parameters.inventory, model->operand,
      [](const model::Parameter&) { return true; }, arena);
  train::OwnRows rows;
  rows.take(all_rows, {.rank = shard, .ranks = shards}, {.units = kRows, .documents = 1 << 20});
  model::TrainingPass pass(
      context, *model, buffers.views, kLosses,
      {.max_tokens = kRows * kSeq, .max_rows = kRows, .max_documents = kRows * kSeq},
      model::Recompute::nothing);
  for (train::OwnRows::Part part; rows.next(part);) {
    if (part.tokens.empty()) continue;
    pass.run({.tokens = part.tokens,
              .targets = part.targets,
              .row_lengths = part.row_lengths,
              .document_lengths = part.document_lengths},
             {.counted_targets = all_rows.num_counted(), .num_balance_groups = kRows});
  }
  Gradients result;
  for (const model::NamedGradient& named : buffers.named) {
    model::join_tied(pool, named);
    const float* data = named.gradient.as<float>();
    result[named.name].assign(data, data + named.gradient.num_elements());
  }
  return result;
}

Gradients reference(const model::ModelConfig& config, const train::StepRows& rows, int64_t shards,
                    int64_t expert_shards) {
  Gradients sum;
  const auto add_all = [&](int64_t count, bool of_experts) {
    for (int64_t shard = 0; shard < count; ++shard) {
      for (const auto& [name, values] : shard_gradients(config, rows, shard, count)) {
        if ((name.find(".experts.") != std::string::npos) != of_experts) continue;
        std::vector<float>& to = sum[name];
        if (shard == 0) to = values;
        for (std::size_t i = 0; shard > 0 && i < to.size(); ++i) to[i] = to[i] + values[i];
      }
    }
  };
  add_all(shards, false);
  add_all(expert_shards, true);
  return sum;
}

// After one step from zero and without a clip, the first moment is (1 - beta1) g.
Gradients first_moments(const Gradients& gradients) {
  const FlushDenormals flush;
  const auto beta1 = static_cast<float>(train::OptimizerRule().beta1);
  Gradients moments = gradients;
  for (auto& [name, values] : moments)
    for (float& value : values) value = std::fma(beta1, 0.0f, (1.0f - beta1) * value);
  return moments;
}

// The slices of all ranks put together.
Gradients moments_of_ranks(const model::ModelConfig& config, const train::StepRows& rows,
                           const train::RankLayout& of_all) {
  Gradients moments;
  for (const model::Parameter& parameter : model::inventory(config).parameters) {
    if (parameter.update != model::Update::by_load)
      moments[parameter.name].resize(static_cast<std::size_t>(parameter.shape.num_elements()));
  }
  comm::run_ranks({.size = static_cast<int>(of_all.ranks)}, [&](comm::Group& group) {
    train::RankLayout layout = of_all;
    layout.rank = group.rank();
    ThreadPool pool(1);
    Context context{.table = &kernels::select_cpu_table(), .pool = &pool};
    std::vector<int> members;
    for (int64_t e = 0; e < layout.expert_ranks; ++e)
      members.push_back(static_cast<int>(layout.replica() + e * layout.replicas()));
    comm::Part experts(group, members);
    if (layout.expert_ranks > 1) context.group = &experts;
    const auto model = model_of(context, config, layout);
    RandomWeights weights;
    const auto all_train = [](const std::string&) { return true; };
    train::Trainer trainer(context, *model, all_train, weights,
                           {.optimizer = {.clip = 0},
                            .losses = kLosses,
                            .rows_per_micro_batch = 2,
                            .max_row_tokens = kSeq,
                            .sharing = {.group = &group, .layout = layout}});
    trainer.step(rows, 0);
    for (const train::TrainedTensor& tensor : trainer.optimizer().tensors()) {
      if (!tensor.first_moment) continue;  // slices of a tensor are apart: no two ranks write one
      const float* data = tensor.first_moment.as<float>();
      std::copy(data, data + tensor.first_moment.num_elements(),
                moments.at(tensor.name).begin() + tensor.begin);
    }
  });
  return moments;
}

struct Case {
  std::string name;
  model::ModelConfig config;
  train::RankLayout layout;
};
void PrintTo(const Case& kind, std::ostream* out) { *out << kind.name; }

class RankSums : public ::testing::TestWithParam<Case> {};

TEST_P(RankSums, AreThoseOfTheShardsInOrder) {
  const auto& [name, config, layout] = GetParam();
  const train::StepRows rows = step_rows(config);
  const Gradients moments = moments_of_ranks(config, rows, layout);
  const Gradients expected =
      first_moments(reference(config, rows, layout.shards, layout.expert_shards));
  ASSERT_EQ(moments.size(), expected.size());
  for (const auto& [tensor, values] : expected) {
    EXPECT_EQ(std::memcmp(values.data(), moments.at(tensor).data(), values.size() * sizeof(float)),
              0)
        << tensor;
  }
  // Another number of shards is another sum: the comparison is not blind.
  const Gradients other = first_moments(reference(config, rows, 1, 1));
  EXPECT_NE(moments, other);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, RankSums,
    ::testing::Values(Case{"one_rank_of_four_shards",
                           tiny_config(DType::F32),
                           {.ranks = 1, .shards = 4, .expert_shards = 2}},
                      Case{"data_parallel",
                           tiny_v3_config(DType::BF16),
                           {.ranks = 2, .shards = 2, .expert_shards = 2}},
                      Case{"experts_of_two",
                           tiny_v3_config(DType::F32),
                           {.ranks = 2, .expert_ranks = 2, .shards = 2, .expert_shards = 1}},
                      Case{"both_and_more_shards",
                           tiny_config(DType::BF16),
                           {.ranks = 4, .expert_ranks = 2, .shards = 8, .expert_shards = 4}}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace dsmoe::testing

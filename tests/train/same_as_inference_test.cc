// L5: the forward pass of a training step equals inference on each document alone, bit for bit; and
// controls that the comparisons of this folder can fail.
#include <gtest/gtest.h>

#include <cstring>

#include "base/scratch_folder.h"
#include "data/batches.h"
#include "infer/load_model.h"
#include "kernels/cuda/cuda_table.h"
#include "kernels/log_prob.h"
#include "kernels/memory.h"
#include "tiny_run.h"
#include "train/sources.h"

namespace dsmoe::testing {
namespace {

using tensor::DType;
using tensor::TensorView;

struct Step {
  Step(const model::Model& model, const kernels::Context& context)
      : trainer(context, model, [](const std::string&) { return true; }, initial,
                {.losses = {.balance_alpha = 0.01, .z_alpha = 1e-3},
                 .rows_per_micro_batch = 2,
                 .max_row_tokens = 22}) {}
  RandomWeights initial;
  train::Trainer trainer;
};

train::StepRows tiny_rows(int64_t vocab_size, uint64_t step) {
  const data::MemoryCorpus corpus = tiny_corpus(vocab_size);
  const data::DocumentSplit split(corpus, {.fraction = 0.1});
  data::PackedBatches batches(split, {.batch = 4, .seq = 22, .seed = 1});
  train::StepRows rows;
  train::pack_rows(batches.batch(step), rows);
  return rows;
}

// -log p of the targets of one document, each as the engine rounds it.
std::vector<float> inference_log_prob(const kernels::Context& context, const model::Model& model,
                                      std::span<const int32_t> tokens,
                                      std::span<const int32_t> targets) {
  const auto count = static_cast<int64_t>(tokens.size());
  attention::KvCache cache(context, model.kv_layers(), attention::KvCache::pages_for(count));
  model::ForwardPass pass(context, model, cache, {.max_tokens = count, .max_sequences = 1});
  attention::KvSequence sequence;
  const model::Segment segment{.sequence = &sequence, .num_tokens = count};
  const TensorView hidden = pass.run({.tokens = tokens, .segments = {&segment, 1}});
  tensor::Arena arena("test", context.table->allocator);
  const TensorView logits = arena.tensor("logits", DType::F32, {count, model.config.vocab_size});
  const TensorView target = arena.tensor("target", DType::I32, {count});
  const TensorView log_prob = arena.tensor("log prob", DType::F32, {count});
  kernels::upload(context, targets.data(), target);
  pass.logits(hidden, logits);
  kernels::log_prob_forward(context, {.logits = logits, .target = target, .log_prob = log_prob});
  std::vector<float> values(static_cast<std::size_t>(count));
  pass.read(log_prob, values.data());
  return values;
}

class SameAsInference : public ::testing::TestWithParam<model::ModelConfig> {
 protected:
  static void expect_same(const kernels::Context& context, const model::ModelConfig& config);
};

TEST_P(SameAsInference, EveryTokenOfEveryDocument) {
  ThreadPool pool(2);
  expect_same({.table = &kernels::select_cpu_table(), .pool = &pool}, GetParam());
}

TEST_P(SameAsInference, OnCuda) {
  if (!kernels::cuda_declined().empty()) GTEST_SKIP() << kernels::cuda_declined();
  ThreadPool pool(2);
  const kernels::Context context{
      .table = &kernels::cuda_table(),
      .pool = &pool,
      .stream = kernels::make_cuda_stream(kernels::KernelsThatWait::allowed)};
  expect_same(context, GetParam());
  kernels::release_cuda_stream(context.stream);
}

void SameAsInference::expect_same(const kernels::Context& context,
                                  const model::ModelConfig& config) {
  ScratchFolder out;
  const auto folder =
      run_tiny({.config = config, .steps = 3, .device = context}, out / "run").checkpoint;
  const auto for_inference = infer::load_model(context, folder, {});
  const auto for_training =
      infer::load_model(context, folder, {.passes = moe::Passes::forward_and_backward});
  ASSERT_EQ(for_inference->operand, config.torch_dtype);
  Step step(*for_training, context);
  const train::StepRows rows = tiny_rows(config.vocab_size, 3);
  ASSERT_GT(rows.document_lengths.size(), rows.row_lengths.size()) << "no row is packed";

  std::size_t begin = 0, compared = 0;
  double nats = 0;
  for (const int32_t length : rows.document_lengths) {
    const auto tokens = std::span(rows.tokens).subspan(begin, static_cast<std::size_t>(length));
    const auto targets = std::span(rows.targets).subspan(begin, static_cast<std::size_t>(length));
    const std::vector<float> alone = inference_log_prob(context, *for_inference, tokens, targets);
    for (std::size_t i = 0; i < alone.size(); ++i) {
      if (targets[i] < 0) continue;
      nats -= alone[i];
      if ((begin + i) % 5 != 0) continue;  // each costs a pass
      train::StepRows only = rows;
      std::fill(only.targets.begin(), only.targets.end(), -1);
      only.targets[begin + i] = targets[i];
      EXPECT_EQ(step.trainer.evaluate(only).nats, -static_cast<double>(alone[i]))
          << "token " << begin + i;
      ++compared;
    }
    begin += static_cast<std::size_t>(length);
  }
  EXPECT_GT(compared, 15u);
  // The pass with gradients sees the same: the sum over all targets, in the same order.
  const train::StepResult result = step.trainer.accumulate(rows);
  EXPECT_NEAR(result.language * static_cast<double>(result.counted), nats, 1e-9 * nats);
}

INSTANTIATE_TEST_SUITE_P(All, SameAsInference,
                         ::testing::Values(tiny_config(DType::F32), tiny_config(DType::BF16),
                                           tiny_v3_config(DType::F32), tiny_v3_config(DType::BF16)),
                         [](const auto& test) {
                           return std::string(test.param.n_group > 1 ? "v3_" : "") +
                                  (test.param.torch_dtype == DType::F32 ? "fp32" : "bf16");
                         });

std::vector<std::string> gradient_bytes(const train::StepRows& rows) {
  const model::ModelConfig config = tiny_config(DType::F32);
  ThreadPool pool(1);
  const kernels::Context context{.table = &kernels::select_cpu_table(), .pool = &pool};
  RandomWeights weights;
  const auto model =
      model::make_model(context, config, weights,
                        {.operand = DType::F32, .passes = moe::Passes::forward_and_backward});
  Step step(*model, context);
  step.trainer.accumulate(rows);
  std::vector<std::string> bytes;
  for (const model::NamedGradient& named : step.trainer.gradients().named) {
    bytes.emplace_back(static_cast<const char*>(named.gradient.data), named.gradient.num_bytes());
  }
  return bytes;
}

// The rows of a step in reverse: the same mathematics, another order of the sums.
train::StepRows reversed(const train::StepRows& rows) {
  train::StepRows result;
  std::size_t token = rows.tokens.size(), document = rows.document_lengths.size();
  for (std::size_t row = rows.row_lengths.size(); row-- > 0;) {
    const auto length = static_cast<std::size_t>(rows.row_lengths[row]);
    const auto count = static_cast<std::size_t>(rows.documents_per_row[row]);
    token -= length;
    document -= count;
    const auto append = [](std::vector<int32_t>& to, const std::vector<int32_t>& from,
                           std::size_t begin, std::size_t size) {
      const auto first = from.begin() + static_cast<std::ptrdiff_t>(begin);
      to.insert(to.end(), first, first + static_cast<std::ptrdiff_t>(size));
    };
    append(result.tokens, rows.tokens, token, length);
    append(result.targets, rows.targets, token, length);
    append(result.document_lengths, rows.document_lengths, document, count);
    result.row_lengths.push_back(rows.row_lengths[row]);
    result.documents_per_row.push_back(rows.documents_per_row[row]);
  }
  return result;
}

TEST(NegativeControl, AnotherOrderOfRowsGivesOtherBits) {
  const train::StepRows rows = tiny_rows(tiny_config(DType::F32).vocab_size, 0);
  const auto expected = gradient_bytes(rows);
  EXPECT_EQ(gradient_bytes(rows), expected);
  const auto other = gradient_bytes(reversed(rows));
  int different = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) different += other[i] != expected[i] ? 1 : 0;
  EXPECT_GT(different, 10) << "of " << expected.size() << " tensors";
}

}  // namespace
}  // namespace dsmoe::testing

// Ten steps of AdamW on whole models against the PyTorch oracle: losses, norms, final weights.
#include <gtest/gtest.h>

#include "kernels/cuda/cuda_table.h"
#include "model/training_pass.h"
#include "support/golden.h"
#include "support/train_golden.h"
#include "train/sources.h"
#include "train/step.h"

namespace dsmoe::testing {
namespace {

using tensor::DType;

train::StepRows golden_rows(const TrainingGolden& golden, int64_t step) {
  train::StepRows rows;
  for (int64_t row = 0; row < golden.num_rows(); ++row) {
    const TrainingGolden::Rows one = golden.rows(step, row, row + 1);
    rows.tokens.insert(rows.tokens.end(), one.tokens.begin(), one.tokens.end());
    rows.targets.insert(rows.targets.end(), one.targets.begin(), one.targets.end());
    rows.row_lengths.push_back(one.row_lengths[0]);
    rows.documents_per_row.push_back(static_cast<int32_t>(one.document_lengths.size()));
    rows.document_lengths.insert(rows.document_lengths.end(), one.document_lengths.begin(),
                                 one.document_lengths.end());
  }
  return rows;
}

train::TrainerOptions golden_options(const TrainingGolden& golden,
                                     const model::ModelConfig& config) {
  return {
      .optimizer = {.beta1 = golden.metadata("beta1"),
                    .beta2 = golden.metadata("beta2"),
                    .eps = golden.metadata("eps"),
                    .weight_decay = golden.metadata("weight_decay"),
                    .clip = golden.metadata("clip"),
                    .bias_rate = golden.metadata("bias_rate")},
      .losses = {.balance_alpha = config.aux_loss_alpha,
                 .z_alpha = golden.metadata("z_loss"),
                 .rows_per_balance_group = static_cast<int64_t>(golden.metadata("balance_group"))},
      .rows_per_micro_batch = 2,
      .max_row_tokens = 32};
}

struct Tolerance {
  double loss, weight;
};

class TenSteps : public ::testing::TestWithParam<std::string> {
 protected:
  void expect_equal_to_oracle(DType operand, const Tolerance& tolerance) {
    ThreadPool pool(1);
    expect_equal_to_oracle({.table = &kernels::select_cpu_table(), .pool = &pool}, operand,
                           tolerance);
  }

  void expect_equal_to_oracle(const kernels::Context& context, DType operand,
                              const Tolerance& tolerance) {
    const TrainingGolden golden(GetParam());
    const auto model =
        infer::load_model(context, golden.folder(),
                          {.operand = operand, .passes = moe::Passes::forward_and_backward});
    const auto initial =
        train::folder_parameters(store::HfFolder::open(golden.folder()), model->config.file_names,
                                 model->config, *context.pool);
    train::Trainer trainer(
        context, *model, [](const std::string&) { return true; }, *initial,
        golden_options(golden, model->config));
    for (int64_t step = 0; step < 10; ++step) {
      const train::StepResult result =
          trainer.step(golden_rows(golden, step), golden.value("lr", step));
      EXPECT_NEAR(result.language / golden.value("losses.language", step), 1, tolerance.loss)
          << "step " << step;
      EXPECT_NEAR(result.balance, golden.value("losses.balance", step), tolerance.loss);
      EXPECT_NEAR(result.z, golden.value("losses.z", step), tolerance.loss);
      EXPECT_NEAR(result.gradient_norm / golden.value("grad_norm", step), 1, tolerance.weight);
      expect_loads(golden, model->config, result, step);
    }
    for (const train::TrainedTensor& tensor : trainer.optimizer().tensors()) {
      EXPECT_LE(
          relative_error(to_double(context, tensor.master), golden.values("after." + tensor.name)),
          tolerance.weight)
          << tensor.name;
    }
    EXPECT_EQ(trainer.optimizer().tensors().size(), model::expected_tensors(model->config).size());
  }

  static void expect_loads(const TrainingGolden& golden, const model::ModelConfig& config,
                           const train::StepResult& result, int64_t step) {
    const auto file = store::SafetensorsFile::open(golden.folder() / "train.safetensors");
    std::size_t moe_layer = 0;
    for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
      if (!config.is_moe_layer(layer)) continue;
      const std::string name = "layers." + std::to_string(layer) + ".load";
      const std::vector<int64_t>& load = result.load[moe_layer++];
      std::vector<int32_t> expected(load.size());
      file.read(file.at(name), std::as_writable_bytes(std::span(expected)),
                static_cast<uint64_t>(step) * load.size() * sizeof(int32_t));
      EXPECT_TRUE(std::equal(load.begin(), load.end(), expected.begin()))
          << name << ", step " << step;
    }
  }
};

TEST_P(TenSteps, DoubleIsTheMathematics) {
  expect_equal_to_oracle(DType::F64, {.loss = 2e-7, .weight = 1e-6});
}
TEST_P(TenSteps, Fp32) { expect_equal_to_oracle(DType::F32, {.loss = 1e-6, .weight = 1e-5}); }
TEST_P(TenSteps, Fp32OnCuda) {
  if (!kernels::cuda_declined().empty()) GTEST_SKIP() << kernels::cuda_declined();
  ThreadPool pool(1);
  const kernels::Context context{
      .table = &kernels::cuda_table(),
      .pool = &pool,
      .stream = kernels::make_cuda_stream(kernels::KernelsThatWait::allowed)};
  expect_equal_to_oracle(context, DType::F32, {.loss = 2e-6, .weight = 1e-5});
  kernels::release_cuda_stream(context.stream);
}

INSTANTIATE_TEST_SUITE_P(All, TenSteps, ::testing::Values("train_softmax", "train_odd", "train_v3"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace dsmoe::testing

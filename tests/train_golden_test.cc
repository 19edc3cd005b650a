// One training step of whole models against the PyTorch oracle: losses and every gradient.
#include <gtest/gtest.h>

#include "model/training_pass.h"
#include "support/golden.h"
#include "support/train_golden.h"

namespace dsmoe::testing {
namespace {

using tensor::DType;

class TrainGolden : public ::testing::TestWithParam<std::string> {
 protected:
  void expect_first_step(DType operand, double loss_tolerance, double gradient_tolerance,
                         model::Recompute recompute = model::Recompute::nothing) {
    const TrainingGolden golden(GetParam());
    ThreadPool pool(1);
    const kernels::Context context{.table = &kernels::select_cpu_table(), .pool = &pool};
    TrainingSetup setup(context, golden, operand, recompute);
    const StepLosses losses = setup.run_step(golden, 0, /*rows_per_micro_batch=*/golden.num_rows());

    EXPECT_NEAR(losses.language / golden.value("losses.language", 0), 1.0, loss_tolerance);
    EXPECT_NEAR(losses.balance, golden.value("losses.balance", 0), loss_tolerance);
    EXPECT_NEAR(losses.z, golden.value("losses.z", 0), loss_tolerance);
    std::size_t compared = 0;
    for (const model::NamedGradient& named : setup.gradients().named) {
      const std::vector<double> expected = golden.values("grad." + named.name);
      double norm = 0;
      for (double value : expected) norm += value * value;
      if (norm == 0) continue;  // an expert nobody chose
      EXPECT_LE(relative_error(total_gradient(named), expected), gradient_tolerance) << named.name;
      ++compared;
    }
    EXPECT_GT(compared, 20u);
  }
};

TEST_P(TrainGolden, DoubleIsTheMathematics) { expect_first_step(DType::F64, 1e-7, 1e-6); }
TEST_P(TrainGolden, Fp32) { expect_first_step(DType::F32, 1e-6, 1e-5); }
TEST_P(TrainGolden, Fp32Recomputed) {
  expect_first_step(DType::F32, 1e-6, 1e-5, model::Recompute::blocks);
}

INSTANTIATE_TEST_SUITE_P(All, TrainGolden, ::testing::ValuesIn(training_golden_names()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace dsmoe::testing

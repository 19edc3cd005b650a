// Training on the GPU: the same weights, bit for bit, whatever the micro-batches, recomputation or
// interruptions; and close to the CPU's.
#include <gtest/gtest.h>

#include <cmath>

#include "base/scratch_folder.h"
#include "kernels/cuda/cuda_table.h"
#include "kernels/elements.h"
#include "store/hf_folder.h"
#include "tiny_run.h"

namespace dsmoe::testing {
namespace {

using tensor::DType;
using Files = std::map<std::string, std::string>;

// Sizes that the copy engine's kernels take; the tiny ones run on the portable kernels.
model::ModelConfig aligned(model::ModelConfig config) {
  config.vocab_size = 64;
  config.hidden_size = 64;
  config.head_dim = 16;
  config.intermediate_size = 48;
  config.moe_intermediate_size = 24;
  config.check("aligned");
  return config;
}

struct Kind {
  std::string name;
  model::ModelConfig config;
};

class CudaTraining : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (!kernels::cuda_declined().empty()) GTEST_SKIP() << kernels::cuda_declined();
    device_ = {.table = &kernels::cuda_table(),
               .stream = kernels::make_cuda_stream(kernels::KernelsThatWait::allowed)};
  }
  void TearDown() override {
    if (device_.stream != nullptr) kernels::release_cuda_stream(device_.stream);
  }
  TinyRun base() const {
    return {.config = GetParam().config, .micro_batch = 2, .steps = 6, .device = device_};
  }
  static Files trained(const TinyRun& run) {
    ScratchFolder out;
    const train::RunOutcome outcome = run_tiny(run, out / "run");
    EXPECT_TRUE(outcome.finished);
    return files_of(outcome.checkpoint);
  }

  kernels::Context device_;
};

TEST_P(CudaTraining, SameBits) {
  const Files expected = trained(base());
  EXPECT_EQ(trained(base()), expected) << "run to run";
  for (const int64_t rows : {1, 8}) {
    TinyRun run = base();
    run.micro_batch = rows;
    EXPECT_EQ(trained(run), expected) << rows << " rows at a time";
  }
  TinyRun run = base();
  run.recompute = model::Recompute::blocks;
  EXPECT_EQ(trained(run), expected) << "recomputed";
  // What must make a difference, makes one.
  run.seed = 2;
  EXPECT_NE(trained(run).at("model.safetensors"), expected.at("model.safetensors"));
}

TEST_P(CudaTraining, StopAndResume) {
  const Files expected = trained(base());
  ScratchFolder out;
  TinyRun run = base();
  run.stop_after = 2;
  EXPECT_FALSE(run_tiny(run, out / "run").finished);
  run.stop_after = 0;
  run.resume = true;
  EXPECT_EQ(files_of(run_tiny(run, out / "run").checkpoint), expected);
}

// AdamW's first steps are near lr * sign(gradient), so small gradients of either sign keep weights
// apart; most agree.
TEST_P(CudaTraining, FollowsTheCpu) {
  ScratchFolder out;
  TinyRun run = base();
  const auto gpu = store::HfFolder::open(run_tiny(run, out / "gpu").checkpoint);
  run.device = {};
  const auto cpu = store::HfFolder::open(run_tiny(run, out / "cpu").checkpoint);
  double difference = 0, norm = 0;
  for (const std::string_view name : cpu.names()) {
    const auto a = gpu.bytes(name);
    const auto b = cpu.bytes(name);
    ASSERT_EQ(a.size(), b.size());
    const DType type = run.config.torch_dtype;
    if (name.ends_with("e_score_correction_bias")) continue;
    for (std::size_t i = 0; i < a.size() / tensor::size_of(type); ++i) {
      const double x = kernels::read_element(a.data(), type, static_cast<int64_t>(i));
      const double y = kernels::read_element(b.data(), type, static_cast<int64_t>(i));
      difference += (x - y) * (x - y);
      norm += y * y;
    }
  }
  EXPECT_LE(std::sqrt(difference / norm), run.config.torch_dtype == DType::F32 ? 1e-4 : 1e-2);
}

INSTANTIATE_TEST_SUITE_P(All, CudaTraining,
                         ::testing::Values(Kind{"fp32", tiny_config(DType::F32)},
                                           Kind{"bf16", aligned(tiny_config(DType::BF16))},
                                           Kind{"v3_odd_bf16", tiny_v3_config(DType::BF16)},
                                           Kind{"v3_bf16", aligned(tiny_v3_config(DType::BF16))}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace dsmoe::testing

// Whole models on the GPU: against the oracle, and against themselves in every manner of running.
#include <gtest/gtest.h>

#include <cstring>

#include "kernels/cuda/cuda_table.h"
#include "support/golden.h"
#include "support/manners.h"

namespace dsmoe::testing {
namespace {

using tensor::DType;

class CudaModel : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!kernels::cuda_declined().empty()) GTEST_SKIP() << kernels::cuda_declined();
    context_ = {.table = &kernels::cuda_table(),
                .stream = kernels::make_cuda_stream(kernels::KernelsThatWait::allowed)};
  }
  void TearDown() override {
    if (context_.stream != nullptr) kernels::release_cuda_stream(context_.stream);
  }

  std::unique_ptr<model::Model> load(DType operand) {
    return infer::load_model(context_, golden_.folder,
                             {.operand = operand, .context = golden_.context()});
  }

  void expect_golden(DType operand, const std::string& prefix, double tolerance,
                     double gate_tolerance) {
    const auto model = load(operand);
    const Trace got = trace(context_, *model, golden_.integers("tokens"));
    EXPECT_LE(relative_error(got.logits, golden_.values(prefix + "logits")), tolerance);
    for (const auto& [layer, index] : got.index) {
      const std::string name = prefix + "layers." + std::to_string(layer);
      EXPECT_EQ(index, golden_.integers(name + ".topk_index")) << name;
      EXPECT_LE(max_abs_error(got.gate.at(layer), golden_.values(name + ".topk_weight")),
                gate_tolerance)
          << name;
    }
  }

  void expect_same_bits(DType operand) {
    const auto model = load(operand);
    const std::vector<Tokens> prompts = random_prompts(model->config.vocab_size);
    const std::vector<float> alone = all_logits(context_, *model, prompts, {});
    for (const Manner& manner :
         {Manner{.batch = 7}, Manner{.batch = 50}, Manner{.chunk = 1},
          Manner{.batch = 7, .chunk = 5}, Manner{.batch = 50, .chunk = 16}, Manner{}}) {
      const std::vector<float> logits = all_logits(context_, *model, prompts, manner);
      ASSERT_EQ(logits.size(), alone.size());
      EXPECT_EQ(std::memcmp(logits.data(), alone.data(), alone.size() * sizeof(float)), 0)
          << "batch " << manner.batch << ", chunk " << manner.chunk;
    }
    // 300 documents at once: each of the 50 six times.
    std::vector<Tokens> many;
    for (int i = 0; i < 6; ++i) many.insert(many.end(), prompts.begin(), prompts.end());
    const std::vector<float> logits = all_logits(context_, *model, many, {.batch = 300});
    ASSERT_EQ(logits.size(), 6 * alone.size());
    for (std::size_t i = 0; i < 6; ++i) {
      EXPECT_EQ(
          std::memcmp(logits.data() + i * alone.size(), alone.data(), alone.size() * sizeof(float)),
          0)
          << "batch 300, copy " << i;
    }
    // The comparison can tell tokens apart.
    EXPECT_NE(std::memcmp(logits.data() + model->config.vocab_size, alone.data(),
                          static_cast<std::size_t>(model->config.vocab_size) * sizeof(float)),
              0);
  }

  Golden golden_{GetParam()};
  kernels::Context context_;
};

TEST_P(CudaModel, Fp32) { expect_golden(DType::F32, "", 1e-5, 1e-6); }

TEST_P(CudaModel, SameBits) {
  expect_same_bits(DType::BF16);
  expect_same_bits(DType::F32);
}

INSTANTIATE_TEST_SUITE_P(All, CudaModel, ::testing::ValuesIn(golden_names()),
                         [](const auto& test) { return test.param; });

using CudaBf16 = CudaModel;
TEST_P(CudaBf16, RoundsWhereTheOracleDoes) {
  expect_golden(DType::BF16, "bf16.", 1.0 / 256, 1.0 / 256);
}

INSTANTIATE_TEST_SUITE_P(Stored, CudaBf16,
                         ::testing::Values("gqa", "released_bf16", "tied_bf16", "v3_bf16"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace dsmoe::testing

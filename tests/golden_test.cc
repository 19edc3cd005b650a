// Whole models against the PyTorch oracle: logits, hidden states, routing indices and gates.
#include <gtest/gtest.h>

#include "support/golden.h"

namespace dsmoe::testing {
namespace {

using tensor::DType;

class GoldenModel : public ::testing::TestWithParam<std::string> {
 protected:
  Trace run(DType operand, const TraceOptions& options = {}) {
    const auto model = infer::load_model(context_, golden_.folder,
                                         {.operand = operand, .context = golden_.context()});
    return trace(context_, *model, golden_.integers("tokens"), options);
  }

  void expect_close(const Trace& got, const std::string& prefix, double tolerance,
                    double gate_tolerance) {
    const double error = relative_error(got.logits, golden_.values(prefix + "logits"));
    RecordProperty("logit_error", std::to_string(error * 1e9) + "e-9");
    EXPECT_LE(error, tolerance);
    for (const auto& [layer, hidden] : got.hidden) {
      const std::string name = prefix + "layers." + std::to_string(layer) + ".hidden";
      if (golden_.has(name)) {
        EXPECT_LE(relative_error(hidden, golden_.values(name)), tolerance) << name;
      }
    }
    for (const auto& [layer, index] : got.index) {
      const std::string name = prefix + "layers." + std::to_string(layer);
      EXPECT_EQ(index, golden_.integers(name + ".topk_index")) << name;
      EXPECT_LE(max_abs_error(got.gate.at(layer), golden_.values(name + ".topk_weight")),
                gate_tolerance)
          << name;
    }
  }

  Golden golden_{GetParam()};
  ThreadPool pool_{1};
  kernels::Context context_{.table = &kernels::select_cpu_table(), .pool = &pool_};
};

// The goldens are stored in F32, so even ref<double> sees their rounding.
TEST_P(GoldenModel, DoubleIsTheMathematics) { expect_close(run(DType::F64), "", 1e-6, 1e-6); }

TEST_P(GoldenModel, Fp32) { expect_close(run(DType::F32), "", 1e-5, 1e-6); }

INSTANTIATE_TEST_SUITE_P(All, GoldenModel, ::testing::ValuesIn(golden_names()),
                         [](const auto& test) { return test.param; });

// The oracle rounds at the same points with exact arithmetic between them: what is left is sums
// that fall on the other side of a rounding border. One flip moves a value by one bf16 ulp, 2^-8
// relative.
using GoldenBf16 = GoldenModel;
TEST_P(GoldenBf16, RoundsWhereTheOracleDoes) {
  expect_close(run(DType::BF16), "bf16.", 1.0 / 256, 1.0 / 256);
}

std::vector<std::string> names_with(const std::string& tensor) {
  std::vector<std::string> names;
  for (const std::string& name : golden_names()) {
    if (Golden(name).has(tensor)) names.push_back(name);
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(Stored, GoldenBf16, ::testing::ValuesIn(names_with("bf16.logits")),
                         [](const auto& test) { return test.param; });

using GoldenPerToken = GoldenModel;
TEST_P(GoldenPerToken, ExpertsPerTokenCanDiffer) {
  const std::vector<int32_t> counts = golden_.integers("per_token.top_k");
  const int64_t top_k = golden_.file.at("per_token.layers.1.topk_index").shape[1];
  expect_close(run(DType::F32, {.top_k = top_k, .experts_of_token = counts}), "per_token.", 1e-5,
               1e-6);
}

INSTANTIATE_TEST_SUITE_P(Released, GoldenPerToken,
                         ::testing::ValuesIn(names_with("per_token.logits")),
                         [](const auto& test) { return test.param; });

TEST(Goldens, CoverTheOptions) {
  EXPECT_GE(golden_names().size(), 14u);
  EXPECT_GE(names_with("bf16.logits").size(), 4u);
  EXPECT_EQ(names_with("per_token.logits"), std::vector<std::string>{"released"});
}

}  // namespace
}  // namespace dsmoe::testing

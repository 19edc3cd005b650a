// Whole models against the PyTorch oracle: logits, hidden states, routing indices and gates.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

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

// docs/numerics.md, bounds: the errors of P = 8 roundings per block add in squares.
double bf16_bound(int64_t num_layers) {
  constexpr double kRounding = 1.0 / 256;
  return kRounding * std::sqrt(8.0 * static_cast<double>(num_layers)) / std::sqrt(3.0);
}

TEST_P(GoldenBf16, StaysWithinTheBoundAgainstDouble) {
  const Trace rounded = run(DType::BF16);
  const Trace exact = run(DType::F64);
  const auto num_tokens = static_cast<int64_t>(golden_.integers("tokens").size());
  const auto vocabulary = static_cast<int64_t>(exact.logits.size()) / num_tokens;
  std::vector<double> a, b;
  for (int64_t t = 0; t < num_tokens; ++t) {
    // A rounding may flip a choice between two experts; from there on the token is another
    // function.
    const auto same_experts = [&](const auto& layer) {
      const auto& other = exact.index.at(layer.first);
      const auto top_k = static_cast<int64_t>(other.size()) / num_tokens;
      return std::is_permutation(other.begin() + t * top_k, other.begin() + (t + 1) * top_k,
                                 layer.second.begin() + t * top_k);
    };
    if (!std::all_of(rounded.index.begin(), rounded.index.end(), same_experts)) continue;
    a.insert(a.end(), rounded.logits.begin() + t * vocabulary,
             rounded.logits.begin() + (t + 1) * vocabulary);
    b.insert(b.end(), exact.logits.begin() + t * vocabulary,
             exact.logits.begin() + (t + 1) * vocabulary);
  }
  ASSERT_GE(static_cast<int64_t>(b.size()), num_tokens * vocabulary / 2)
      << "most tokens keep their experts";
  const double error = relative_error(a, b);
  RecordProperty("logit_error", std::to_string(error));
  EXPECT_LE(error, bf16_bound(static_cast<int64_t>(exact.hidden.size())));
  EXPECT_GT(error, 1e-4) << "bf16 was not used";
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

// Router and plan: choices, gates, counting sort; any batch, the same bits.
#include "kernels/cuda/test_support.h"

namespace dsmoe::kernels {
namespace {

class RouterCudaTest : public CudaTest {
 protected:
  struct Result {
    TensorView affinity, index, gate, bad_token;
  };
  Result results(int64_t tokens, int64_t experts, int top_k, Device device) {
    const auto make = [&](DType dtype, const Shape& shape) {
      if (device == Device::cpu)
        return host_tensor(dtype == DType::F32 ? DType::F64 : dtype, shape);
      const TensorView view = device_tensor(dtype, shape);
      poison(view);
      return view;
    };
    return {make(DType::F32, {tokens, experts}), make(DType::I32, {tokens, top_k}),
            make(DType::F32, {tokens, top_k}), make(DType::I32, {1})};
  }
  static RouterForward arguments(const RouterRule& rule, const TensorView& x,
                                 const WeightStack& centroids, const TensorView& bias,
                                 const Result& r) {
    RouterForward args;
    args.rule = rule;
    args.x = x;
    args.centroids = centroids;
    args.selection_bias = bias;
    args.affinity = r.affinity;
    args.index = r.index;
    args.gate = r.gate;
    args.bad_token = r.bad_token;
    return args;
  }
  // Choices agree except where two selection scores are closer than `tolerance`.
  void compare(const RouterRule& rule, const Result& device, const Result& host,
               const std::vector<double>& bias, double tolerance) {
    const int64_t tokens = host.index.dim(0);
    const int64_t experts = host.affinity.dim(1);
    const std::vector<int32_t> index = integers_of(device.index);
    const std::vector<double> gate = values_of(device.gate);
    int different = 0;
    for (int64_t t = 0; t < tokens; ++t) {
      const double* s = host.affinity.as<double>() + t * experts;
      const int32_t* expected = host.index.as<int32_t>() + t * rule.top_k;
      bool same = true;
      for (int k = 0; k < rule.top_k; ++k) {
        const int32_t e = index[t * rule.top_k + k];
        if (e == expected[k]) continue;
        same = false;
        ASSERT_TRUE(0 <= e && e < experts) << "token " << t << " slot " << k << " chose " << e;
        if (rule.top_groups == rule.num_groups) {
          const double gap = std::abs((s[e] + bias[e]) - (s[expected[k]] + bias[expected[k]]));
          ASSERT_LE(gap, 2 * tolerance)
              << "token " << t << " slot " << k << ": " << e << " instead of " << expected[k];
        }
      }
      different += !same;
      for (int k = 0; same && k < rule.top_k; ++k) {
        const double g = host.gate.as<double>()[t * rule.top_k + k];
        ASSERT_NEAR(gate[t * rule.top_k + k], g, std::abs(g) * 1e-4 + tolerance)
            << "token " << t << " slot " << k;
      }
    }
    EXPECT_LE(different, tokens / 50 + 1);
  }
};

TEST_F(RouterCudaTest, VariantsAgreeWithTheReference) {
  struct Case {
    int64_t tokens, experts, hidden;
    RouterRule rule;
  };
  const RouterRule v1{.top_k = 6};
  const RouterRule normalised{
      .top_k = 4, .normalise = true, .scale = 2.5f, .scale_gates = ScaleGates::always};
  const RouterRule skipping{.top_k = 6, .skip_best = 4};
  const RouterRule v2{.top_k = 6, .num_groups = 8, .top_groups = 3, .scale = 16.0f};
  const RouterRule v3{.score = ScoreFunction::sigmoid,
                      .top_k = 8,
                      .num_groups = 8,
                      .top_groups = 4,
                      .group_score = GroupScore::sum_of_best_two,
                      .normalise = true,
                      .scale = 2.5f,
                      .scale_gates = ScaleGates::always};
  const Case cases[] = {{1, 64, 2048, v1},          {9, 64, 2048, v1},      {300, 64, 2048, v1},
                        {70, 63, 100, normalised},  {5, 4, 31, normalised}, {70, 160, 512, v2},
                        {70, 256, 640, v3},         {3, 320, 2304, v1},     {600, 64, 2048, v1},
                        {530, 63, 100, normalised}, {530, 160, 520, v2},    {513, 256, 328, v3},
                        {70, 64, 512, skipping}};
  for (const DType dtype : {DType::BF16, DType::F32}) {
    for (const Case& c : cases) {
      const Twin x = random(dtype, {c.tokens, c.hidden});
      TwinWeights centroids =
          weights(DType::F32, 1, c.experts, c.hidden, 1 / std::sqrt(static_cast<double>(c.hidden)));
      if (c.tokens % 2 == 0) {  // as most checkpoints store them: bf16 numbers
        const Twin rounded = random(DType::BF16, {c.experts, c.hidden},
                                    1 / std::sqrt(static_cast<double>(c.hidden)));
        const double* values = rounded.host.as<double>();
        const Twin widened =
            from(DType::F32, rounded.host.shape, {values, values + rounded.host.num_elements()});
        centroids.device.data = widened.device.data;
        centroids.host.data = widened.host.data;
      }
      std::vector<double> bias =
          normal(c.experts, c.rule.score == ScoreFunction::sigmoid ? 0.05 : 0.0);
      const Twin b = from(DType::F32, {c.experts}, bias);
      for (int64_t e = 0; e < c.experts; ++e) bias[e] = b.host.as<double>()[e];
      const Result device = results(c.tokens, c.experts, c.rule.top_k, Device::cuda);
      const Result host = results(c.tokens, c.experts, c.rule.top_k, Device::cpu);
      router_forward(cuda_, arguments(c.rule, x.device, centroids.device, b.device, device));
      router_forward(ref_, arguments(c.rule, x.host, centroids.host, b.host, host));
      // Logits: three chains of at most 16 steps and a sum of segments, on sum |x c| near 0.8
      // sqrt(hidden).
      const double logit_error = (16 + 4 + c.hidden / 256.0 + (dtype == DType::F32 ? 256 : 0)) *
                                 kStepUnit * 1.3 * std::sqrt(static_cast<double>(c.hidden));
      expect_elements({device.affinity, host.affinity}, 2 * logit_error + 20 * kUnit, 1e-12,
                      "affinity");
      EXPECT_EQ(integers_of(device.bad_token)[0], -1);
      compare(c.rule, device, host, bias, 2 * logit_error);
    }
  }
}

TEST_F(RouterCudaTest, BatchesAgreeBitForBit) {
  const int64_t tokens = 1100, experts = 64, hidden = 2048;
  const RouterRule rule{.top_k = 6};
  const Twin x = random(DType::BF16, {tokens, hidden});
  const TwinWeights centroids = weights(DType::F32, 1, experts, hidden, 0.02);
  const Result whole = results(tokens, experts, rule.top_k, Device::cuda);
  router_forward(cuda_, arguments(rule, x.device, centroids.device, {}, whole));
  const auto affinity = bytes_of(whole.affinity);
  const auto gate = bytes_of(whole.gate);
  const auto index = bytes_of(whole.index);
  for (const int64_t count : {1, 7, 64, 300, 700, 1099}) {
    const Result part = results(count, experts, rule.top_k, Device::cuda);
    router_forward(cuda_, arguments(rule, x.device.rows(1, 1 + count), centroids.device, {}, part));
    const auto same = [&](const TensorView& view, const std::vector<unsigned char>& all) {
      const auto bytes = bytes_of(view);
      return std::memcmp(bytes.data(), all.data() + bytes.size() / count, bytes.size()) == 0;
    };
    EXPECT_TRUE(same(part.affinity, affinity) && same(part.gate, gate) && same(part.index, index))
        << count << " tokens";
  }
}

TEST_F(RouterCudaTest, TiesReplayFewerExpertsAndBadTokens) {
  const int64_t tokens = 130, experts = 8, hidden = 16;
  RouterRule rule{.top_k = 3};
  std::vector<double> values(tokens * hidden, 1.0);
  values[77 * hidden] = std::numeric_limits<double>::quiet_NaN();
  values[100 * hidden] = std::numeric_limits<double>::infinity();
  const Twin x = from(DType::BF16, {tokens, hidden}, values);
  const TwinWeights centroids =
      weights(DType::F32, 1, experts, hidden, 0.0);  // all equal: ties everywhere
  std::vector<int32_t> wanted(tokens, 3);
  wanted[5] = 1;
  wanted[6] = 0;
  const Twin counts = integers(wanted, {tokens});
  Result r = results(tokens, experts, rule.top_k, Device::cuda);
  RouterForward args = arguments(rule, x.device, centroids.device, {}, r);
  args.experts_of_token = counts.device;
  for (int repeat = 0; repeat < 2;
       ++repeat) {  // the second run finds its scratch memory as the first did
    router_forward(cuda_, args);
    EXPECT_EQ(integers_of(r.bad_token)[0], 77);
  }
  const std::vector<int32_t> index = integers_of(r.index);
  EXPECT_EQ(std::vector<int32_t>(index.begin(), index.begin() + 3),
            (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(std::vector<int32_t>(index.begin() + 15, index.begin() + 21),
            (std::vector<int32_t>{0, -1, -1, -1, -1, -1}));
  EXPECT_EQ(std::vector<int32_t>(index.begin() + 77 * 3, index.begin() + 78 * 3),
            (std::vector<int32_t>{-1, -1, -1}));
  EXPECT_EQ(values_of(r.gate)[6 * 3], 0.0);

  std::vector<int32_t> replay(tokens * 3, -1);
  replay[0] = 7;
  replay[1] = 2;
  const Twin replayed = integers(replay, {tokens, 3});
  args.experts_of_token = {};
  args.replayed_index = replayed.device;
  router_forward(cuda_, args);
  const std::vector<int32_t> taken = integers_of(r.index);
  EXPECT_EQ(std::vector<int32_t>(taken.begin(), taken.begin() + 4),
            (std::vector<int32_t>{7, 2, -1, -1}));
  EXPECT_NEAR(values_of(r.gate)[1], 0.125, 1e-6);
}

// Of every size of batch that has a kernel of its own.
TEST_F(RouterCudaTest, BadTokensChooseNothingAndDisturbNobody) {
  const int64_t experts = 64, hidden = 520;
  const RouterRule rule{
      .score = ScoreFunction::sigmoid, .top_k = 6, .num_groups = 8, .top_groups = 3};
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const TwinWeights centroids = weights(DType::F32, 1, experts, hidden, 0.05);
  std::vector<double> biases(experts, 0.01);
  const Twin bias = from(DType::F32, {experts}, biases);
  biases[63] = nan;
  const Twin broken_bias = from(DType::F32, {experts}, biases);
  for (const DType dtype : {DType::BF16, DType::F32}) {
    for (const int64_t tokens : {3, 40, 600, 5000}) {
      std::vector<double> values = normal(tokens * hidden, 1);
      const Twin good = from(dtype, {tokens, hidden}, values);
      values[2 * hidden + 519] = nan;
      values[(tokens - 1) * hidden] = std::numeric_limits<double>::infinity();
      const Twin bad = from(dtype, {tokens, hidden}, values);
      const Result expected = results(tokens, experts, rule.top_k, Device::cuda);
      const Result found = results(tokens, experts, rule.top_k, Device::cuda);
      router_forward(cuda_, arguments(rule, good.device, centroids.device, bias.device, expected));
      router_forward(cuda_, arguments(rule, bad.device, centroids.device, bias.device, found));
      EXPECT_EQ(integers_of(expected.bad_token)[0], -1) << tokens;
      EXPECT_EQ(integers_of(found.bad_token)[0], 2) << tokens;
      std::vector<int32_t> index = integers_of(expected.index);
      std::vector<double> gate = values_of(expected.gate);
      for (const int64_t t : {int64_t{2}, tokens - 1}) {
        std::fill_n(index.begin() + t * rule.top_k, rule.top_k, -1);
        std::fill_n(gate.begin() + t * rule.top_k, rule.top_k, 0.0);
      }
      EXPECT_EQ(integers_of(found.index), index) << tokens;
      EXPECT_EQ(values_of(found.gate), gate) << tokens;

      router_forward(cuda_,
                     arguments(rule, good.device, centroids.device, broken_bias.device, found));
      EXPECT_EQ(integers_of(found.bad_token)[0], 0) << tokens;
      EXPECT_EQ(integers_of(found.index), std::vector<int32_t>(tokens * rule.top_k, -1)) << tokens;
    }
  }
}

TEST_F(RouterCudaTest, PlanEqualsTheReference) {
  struct Case {
    int64_t tokens, experts;
    int top_k;
    std::vector<int32_t> starts;
  };
  const Case cases[] = {{1, 64, 6, {0, 1}},
                        {7, 5, 2, {0, 3, 3, 7}},
                        {1023, 64, 6, {0, 500, 1000, 1023}},
                        {1024, 64, 6, {0, 1024}},
                        {5000, 63, 7, {0, 512, 512, 1024, 4999, 5000}},
                        {1, 3, 1, {0, 1}},
                        {4096, 256, 8, {0, 4096}},
                        {700, 256, 1, {0, 300, 700}},
                        {300, 8, 2, {0, 300}}};
  for (const Case& c : cases) {
    std::vector<int32_t> index(c.tokens * c.top_k);
    for (int64_t t = 0; t < c.tokens; ++t) {
      std::vector<int32_t> all(c.experts);
      for (int64_t e = 0; e < c.experts; ++e) all[e] = static_cast<int32_t>(e);
      std::shuffle(all.begin(), all.end(), random_);
      const int count = t % 5 == 4 ? static_cast<int>(random_() % (c.top_k + 1)) : c.top_k;
      for (int k = 0; k < c.top_k; ++k) index[t * c.top_k + k] = k < count ? all[k] : -1;
    }
    const auto sequences = static_cast<int64_t>(c.starts.size());
    const Twin choice = integers(index, {c.tokens, c.top_k});
    const Twin starts = integers(c.starts, {sequences});
    const Twin offsets = output(DType::I32, {c.experts + 1});
    const Twin sequence_offsets = output(DType::I32, {c.experts, sequences});
    const Twin token_of_row = output(DType::I32, {c.tokens * c.top_k});
    const Twin row_of_slot = output(DType::I32, {c.tokens, c.top_k});
    plan_build(cuda_, {.index = choice.device,
                       .sequence_starts = starts.device,
                       .plan = {offsets.device, sequence_offsets.device, token_of_row.device,
                                row_of_slot.device}});
    plan_build(
        ref_, {.index = choice.host,
               .sequence_starts = starts.host,
               .plan = {offsets.host, sequence_offsets.host, token_of_row.host, row_of_slot.host}});
    const auto same = [&](const Twin& twin, int64_t count) {
      return std::memcmp(integers_of(twin.device).data(), twin.host.data, count * 4) == 0;
    };
    EXPECT_TRUE(same(offsets, c.experts + 1)) << c.tokens;
    EXPECT_TRUE(same(sequence_offsets, c.experts * sequences)) << c.tokens;
    EXPECT_TRUE(same(row_of_slot, c.tokens * c.top_k)) << c.tokens;
    EXPECT_TRUE(same(token_of_row, offsets.host.as<int32_t>()[c.experts])) << c.tokens;
  }
}

}  // namespace
}  // namespace dsmoe::kernels

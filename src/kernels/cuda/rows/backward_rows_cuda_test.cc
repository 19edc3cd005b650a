// Row-wise ops of the backward pass, the router's and the optimiser's against the reference.
#include "kernels/cuda/test_support.h"

namespace dsmoe::kernels {
namespace {

using BackwardRowsCudaTest = CudaTest;

TEST_F(BackwardRowsCudaTest, RoundingIsExact) {
  for (const int64_t size : {1, 7, 8, 4099}) {
    const Twin x = random(DType::F32, {size});
    for (const DType dtype : {DType::BF16, DType::F32}) {
      const Twin out = output(dtype, {size});
      round_values(cuda_, {.x = x.device, .out = out.device});
      const Twin expected = from(dtype, {size}, values_of(x.device));
      EXPECT_EQ(bytes_of(out.device), bytes_of(expected.device));
    }
  }
}

TEST_F(BackwardRowsCudaTest, RmsNormAgrees) {
  for (const int64_t hidden : {1, 24, 31, 1024, 2048, 5120}) {
    const int64_t tokens = 300;
    const Twin x = random(DType::F32, {tokens, hidden});
    const Twin weight = random(DType::F32, {hidden});
    const Twin d_out = random(DType::F32, {tokens, hidden});
    const Twin starts = integers({0, 5, 5, 190, 300}, {5});
    const Twin d_x = random(DType::F32, {tokens, hidden});
    const Twin d_weight = random(DType::F32, {hidden});
    const auto args = [&](TensorView Twin::*side) {
      return RmsNormBackward{.x = x.*side,
                             .weight = weight.*side,
                             .eps = 1e-6,
                             .d_out = d_out.*side,
                             .sequence_starts = starts.*side,
                             .d_x = d_x.*side,
                             .d_weight = d_weight.*side};
    };
    rms_norm_backward(cuda_, args(&Twin::device));
    rms_norm_backward(ref_, args(&Twin::host));
    const double row = (static_cast<double>(hidden) / 256 + 40) * kUnit;
    expect_elements(d_x, 1e-5, 60 * row, "input gradient of RMSNorm");
    expect_elements(d_weight, 0, 300 * 40 * kUnit, "weight gradient of RMSNorm");
  }
}

// What 256 threads of a block add up, as docs/numerics.md says: thread j values 8 j .. 8 j + 7.
float block_total(const std::vector<float>& of_thread) {
  float total = 0;
  for (std::size_t warp = 0; warp < 8; ++warp) {
    std::vector<float> lane(of_thread.begin() + 32 * warp, of_thread.begin() + 32 * warp + 32);
    for (std::size_t step = 16; step > 0; step /= 2) {
      const std::vector<float> before = lane;
      for (std::size_t i = 0; i < 32; ++i) lane[i] = before[i] + before[i ^ step];
    }
    total = warp == 0 ? lane[0] : total + lane[0];
  }
  return total;
}

// Rows by blocks and rows by warps: the same bits of d_x, and those of the rule for d_weight.
TEST_F(BackwardRowsCudaTest, NormInOnePassHasTheBitsOfTheRule) {
  for (const int64_t hidden : {8, 72, 1000, 1024}) {
    const std::vector<int32_t> bounds{0, 3, 3, 290, 600};
    const int64_t tokens = bounds.back();
    const Twin x = random(DType::F32, {tokens, hidden});
    const Twin weight = random(DType::F32, {hidden});
    const Twin d_out = random(DType::F32, {tokens, hidden});
    const Twin before = random(DType::F32, {tokens, hidden});
    const Twin d_weight = random(DType::F32, {hidden});
    const std::vector<double> start = values_of(d_weight.device);
    const auto run = [&](const TensorView& of_weight) {
      const TensorView d_x = device_tensor(DType::F32, {tokens, hidden});
      const TensorView rounded = device_tensor(DType::BF16, {tokens, hidden});
      poison(rounded);
      round_values(cuda_, {.x = before.device, .out = d_x});
      rms_norm_backward(cuda_, {.x = x.device,
                                .weight = weight.device,
                                .eps = 1e-6,
                                .d_out = d_out.device,
                                .sequence_starts = integers(bounds, {5}).device,
                                .d_x = d_x,
                                .d_weight = of_weight,
                                .rounded = rounded});
      return std::pair{bytes_of(d_x), bytes_of(rounded)};
    };
    EXPECT_EQ(run(d_weight.device), run({})) << hidden;
    const double* values = x.host.as<double>();
    const double* gradients = d_out.host.as<double>();
    std::vector<float> inverse;
    for (int64_t t = 0; t < tokens; ++t) {
      std::vector<float> squares(256, 0.0f);
      for (int64_t i = 0; i < hidden; ++i) {
        const auto v = static_cast<float>(values[t * hidden + i]);
        squares[i / 8] = std::fma(v, v, squares[i / 8]);
      }
      inverse.push_back(1.0f /
                        std::sqrt(block_total(squares) / static_cast<float>(hidden) + 1e-6f));
    }
    const std::vector<double> got = values_of(d_weight.device);
    for (int64_t i = 0; i < hidden; ++i) {
      auto total = static_cast<float>(start[i]);
      for (std::size_t s = 0; s + 1 < bounds.size(); ++s) {
        float sum = 0;
        for (int32_t first = bounds[s]; first < bounds[s + 1]; first += 128) {
          float chain = 0;
          for (int32_t t = first; t < std::min(first + 128, bounds[s + 1]); ++t) {
            const auto y = static_cast<float>(values[t * hidden + i]) * inverse[t];
            chain = std::fma(static_cast<float>(gradients[t * hidden + i]), y, chain);
          }
          sum = sum + chain;
        }
        total = total + sum;
      }
      ASSERT_EQ(static_cast<float>(got[i]), total) << "column " << i << " of " << hidden;
    }
  }
}

// Sequences one at a time give the same bits as all at once; another cut does not.
TEST_F(BackwardRowsCudaTest, NormWeightBitsDoNotDependOnMicroBatches) {
  const int64_t tokens = 500, hidden = 72;
  const Twin x = random(DType::F32, {tokens, hidden});
  const Twin weight = random(DType::F32, {hidden});
  const Twin d_out = random(DType::F32, {tokens, hidden});
  const auto run = [&](const std::vector<std::vector<int32_t>>& calls) {
    const TensorView d_x = device_tensor(DType::F32, {tokens, hidden});
    const TensorView d_weight = device_tensor(DType::F32, {hidden});
    for (const std::vector<int32_t>& starts : calls) {
      std::vector<int32_t> relative;
      for (const int32_t start : starts) relative.push_back(start - starts.front());
      const auto size = static_cast<int64_t>(starts.size());
      const auto part = [&](const TensorView& view) {
        return view.rows(starts.front(), starts.back());
      };
      rms_norm_backward(cuda_, {.x = part(x.device),
                                .weight = weight.device,
                                .eps = 1e-6,
                                .d_out = part(d_out.device),
                                .sequence_starts = integers(relative, {size}).device,
                                .d_x = part(d_x),
                                .d_weight = d_weight});
    }
    return bytes_of(d_weight);
  };
  const auto whole = run({{0, 150, 350, 500}});
  EXPECT_EQ(whole, run({{0, 150}, {150, 350, 500}}));
  EXPECT_NE(whole, run({{0, 100, 350, 500}}));
}

TEST_F(BackwardRowsCudaTest, BiasAgrees) {
  for (const DType dtype : {DType::BF16, DType::F32}) {
    const Twin dy = random(dtype, {300, 37});
    const Twin starts = integers({0, 200, 300}, {3});
    const Twin d_bias = random(DType::F32, {37});
    bias_gradient(cuda_, {dy.device, starts.device, d_bias.device});
    bias_gradient(ref_, {dy.host, starts.host, d_bias.host});
    expect_elements(d_bias, 0, 300 * 20 * kUnit, "bias");
  }
}

TEST_F(BackwardRowsCudaTest, RopeAgrees) {
  for (const DType dtype : {DType::BF16, DType::F32}) {
    const int64_t tokens = 5, heads = 4, kv_heads = 2, head_dim = 30;
    const Twin d_qkv = random(DType::F32, {tokens, (heads + 2 * kv_heads) * head_dim});
    const TensorView table_host = host_tensor(DType::F32, {90, head_dim / 2});
    for (int64_t i = 0; i < table_host.num_elements(); ++i)
      table_host.as<float>()[i] = static_cast<float>(std::cos(0.01 * static_cast<double>(i)));
    const TensorView table = device_tensor(DType::F32, table_host.shape);
    upload(cuda_, table_host.data, table);
    const Twin position = integers({0, 1, 64, 89, 3}, {tokens});
    const Twin out = output(dtype, d_qkv.device.shape);
    const auto args = [&](TensorView Twin::*side, const TensorView& angles) {
      return RopeBackward{.d_qkv = d_qkv.*side,
                          .cos = angles,
                          .sin = angles,
                          .position = position.*side,
                          .num_heads = heads,
                          .num_kv_heads = kv_heads,
                          .key_width = head_dim,
                          .out = out.*side};
    };
    rope_backward(cuda_, args(&Twin::device, table));
    rope_backward(ref_, args(&Twin::host, table_host));
    expect_elements(out, dtype == DType::BF16 ? kRound : 4 * kUnit, 10 * kUnit, "rope backward");
  }
}

TEST_F(BackwardRowsCudaTest, EmbeddingAddsPositionsAscending) {
  for (const int64_t hidden : {3, 72, 2050}) {
    const int64_t tokens = 3000;
    std::vector<int32_t> ids(tokens);
    for (std::size_t t = 0; t < ids.size(); ++t)
      ids[t] = t % 3 == 0 ? 7 : static_cast<int32_t>(random_() % 50);
    const Twin d_out = random(DType::F32, {tokens, hidden});
    const std::vector<double> start = normal(50 * hidden, 1);
    const Twin d_table = from(DType::F32, {50, hidden}, start);
    embedding_backward(cuda_, {integers(ids, {tokens}).device, d_out.device, d_table.device});
    // In fp32, in the order of the rule: exactly equal.
    std::vector<float> expected(start.begin(), start.end());
    const double* d = d_out.host.as<double>();
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t i = 0; i < hidden; ++i)
        expected[ids[t] * hidden + i] += static_cast<float>(d[t * hidden + i]);
    }
    const std::vector<double> got = values_of(d_table.device);
    for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(static_cast<float>(got[i]), expected[i]);
  }
}

TEST_F(BackwardRowsCudaTest, CrossEntropyAgrees) {
  for (const DType dtype : {DType::BF16, DType::F32}) {
    for (const int64_t vocabulary : {5, 257, 4000}) {
      const Twin logits = random(DType::F32, {4, vocabulary}, 3);
      const Twin target = integers({0, -1, 4, 3}, {4});
      const Twin log_prob = output(DType::F32, {4});
      const Twin d_logits = output(dtype, {4, vocabulary});
      cross_entropy_backward(
          cuda_, {logits.device, target.device, 0.25, log_prob.device, d_logits.device});
      cross_entropy_backward(ref_, {logits.host, target.host, 0.25, log_prob.host, d_logits.host});
      expect_elements(log_prob, 50 * kUnit, 50 * kUnit, "log-probability");
      expect_elements(d_logits, (dtype == DType::BF16 ? kRound : 0) + 100 * kUnit, 1e-7,
                      "gradient of the logits");
    }
  }
}

TEST_F(BackwardRowsCudaTest, RouterAgrees) {
  for (const ScoreFunction score : {ScoreFunction::softmax, ScoreFunction::sigmoid}) {
    for (const bool normalise : {false, true}) {
      for (const bool balanced : {false, true}) {
        const int64_t tokens = 37, experts = 20;
        const int top_k = 5;
        RouterRule rule{.score = score, .top_k = top_k, .normalise = normalise, .scale = 1.5f};
        if (balanced) rule.scale_gates = ScaleGates::always;
        std::vector<double> s = normal(tokens * experts, 1);
        for (int64_t t = 0; t < tokens; ++t) {
          double sum = 0;
          for (int64_t e = 0; e < experts; ++e) sum += std::exp(s[t * experts + e]);
          for (int64_t e = 0; e < experts; ++e) {
            double& v = s[t * experts + e];
            v = score == ScoreFunction::softmax ? std::exp(v) / sum : 1 / (1 + std::exp(-v));
          }
        }
        std::vector<int32_t> index, rows;
        for (int32_t t = 0; t < tokens; ++t) {
          for (int k = 0; k < top_k; ++k) {
            const bool absent = t % 4 == 3 && k > t % 3;
            index.push_back(absent ? -1 : static_cast<int32_t>((t * 3 + k * 7) % experts));
            rows.push_back(absent ? -1
                                  : (t * top_k + k) * 31 % static_cast<int32_t>(tokens * top_k));
          }
        }
        const Twin affinity = from(DType::F32, {tokens, experts}, s);
        const Twin choice = integers(index, {tokens, top_k});
        const Twin row_of_slot = integers(rows, {tokens, top_k});
        const Twin d_gate = random(DType::F32, {tokens * top_k});
        const Twin d_affinity = random(DType::F32, {tokens, experts});
        const Twin d_logits = output(DType::F32, {tokens, experts});
        const auto args = [&](TensorView Twin::*side) {
          RouterBackward backward{.rule = rule,
                                  .affinity = affinity.*side,
                                  .index = choice.*side,
                                  .row_of_slot = row_of_slot.*side,
                                  .d_gate_of_row = d_gate.*side,
                                  .d_logits = d_logits.*side};
          if (balanced) backward.d_affinity = d_affinity.*side;
          return backward;
        };
        router_backward(cuda_, args(&Twin::device));
        router_backward(ref_, args(&Twin::host));
        expect_elements(d_logits, 200 * kUnit, 400 * kUnit, "gradient of the router's logits");
      }
    }
  }
}

TEST_F(BackwardRowsCudaTest, BalanceAndZLossesAgree) {
  for (const ScoreFunction score : {ScoreFunction::softmax, ScoreFunction::sigmoid}) {
    const int64_t tokens = 211, experts = 24, top_k = 3;
    std::vector<double> s = normal(tokens * experts, 1);
    for (double& v : s) v = 1 / (1 + std::exp(-v));
    std::vector<int32_t> index;
    for (int32_t i = 0; i < tokens * top_k; ++i)
      index.push_back(i % 11 == 10 ? -1 : (i * 7 + i / 5) % static_cast<int32_t>(experts));
    const Twin affinity = from(DType::F32, {tokens, experts}, s);
    const Twin choice = integers(index, {tokens, top_k});
    const Twin starts = integers({0, 50, 51, 150, 150, 211}, {6});
    const Twin d_affinity = output(DType::F32, {tokens, experts});
    const Twin losses = from(DType::F64, {2}, {0.5, 0.25});
    const auto args = [&](TensorView Twin::*side) {
      return BalanceLoss{.score = score,
                         .sequences_per_group = 2,
                         .alpha = 0.01,
                         .device_alpha = 0.03,
                         .num_devices = 4,
                         .group_weight = 1.0 / 3,
                         .affinity = affinity.*side,
                         .index = choice.*side,
                         .sequence_starts = starts.*side,
                         .d_affinity = d_affinity.*side,
                         .losses = losses.*side};
    };
    balance_loss(cuda_, args(&Twin::device));
    balance_loss(ref_, args(&Twin::host));
    expect_elements(d_affinity, 4 * kUnit, 1e-12, "gradient of the balance loss");
    expect_elements(losses, 1e-12, 0, "balance losses");

    const Twin logits = random(DType::F32, {tokens, experts}, 2);
    std::vector<int32_t> counted(tokens);
    for (std::size_t t = 0; t < counted.size(); ++t) counted[t] = t % 3 != 0;
    const Twin is_counted = integers(counted, {tokens});
    const Twin d_logits = random(DType::F32, {tokens, experts});
    const Twin loss = from(DType::F64, {1}, {0.5});
    router_z_loss(cuda_, {1e-3, logits.device, is_counted.device, d_logits.device, loss.device});
    router_z_loss(ref_, {1e-3, logits.host, is_counted.host, d_logits.host, loss.host});
    expect_elements(d_logits, 10 * kUnit, 1e-8, "gradient of the z loss");
    expect_elements(loss, 1e-6, 0, "z loss");
  }
}

TEST_F(BackwardRowsCudaTest, OptimiserAgrees) {
  for (const int64_t size : {1, 1000, 70001}) {
    const Twin gradient = random(DType::F32, {size});
    const Twin weight = random(DType::F32, {size});
    const Twin first = random(DType::F32, {size}, 0.1);
    std::vector<double> squares = normal(size, 0.1);
    for (double& v : squares) v *= v;
    const Twin second = from(DType::F32, {size}, squares);
    const Twin norm = output(DType::F64, {1});
    sum_of_squares(cuda_, {gradient.device, norm.device});
    sum_of_squares(ref_, {gradient.host, norm.host});
    expect_elements(norm, 1e-13, 0, "sum of squares");
    const auto args = [&](TensorView Twin::*side) {
      return AdamwStep{.weight = weight.*side,
                       .gradient = gradient.*side,
                       .first_moment = first.*side,
                       .second_moment = second.*side,
                       .gradient_scale = 0.5f,
                       .lr = 1e-2f,
                       .weight_decay = 0.1f,
                       .correction1 = 0.3f,
                       .correction2 = 0.2f};
    };
    adamw_step(cuda_, args(&Twin::device));
    adamw_step(ref_, args(&Twin::host));
    expect_elements(first, 4 * kUnit, 1e-8, "first moment");
    expect_elements(second, 8 * kUnit, 1e-8, "second moment");
    expect_elements(weight, 4 * kUnit, 1e-6, "weight");
  }
}

}  // namespace
}  // namespace dsmoe::kernels

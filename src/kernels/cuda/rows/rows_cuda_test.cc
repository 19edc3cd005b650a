// Embedding, RMSNorm, RoPE, log-probabilities and arg max against the reference.
#include "kernels/cuda/test_support.h"

namespace dsmoe::kernels {
namespace {

using RowsCudaTest = CudaTest;

TEST_F(RowsCudaTest, EmbeddingIsExact) {
  for (const DType dtype : {DType::BF16, DType::F32}) {
    for (const int64_t hidden : {1, 24, 31, 2048}) {
      const Twin table = random(dtype, {50, hidden});
      const Twin ids = integers({49, 0, 7, 7, 13}, {5});
      const Twin out = output(DType::F32, {5, hidden});
      embedding_forward(cuda_, {.ids = ids.device, .table = table.device, .out = out.device});
      embedding_forward(ref_, {.ids = ids.host, .table = table.host, .out = out.host});
      expect_elements(out, 0, 0, "embedding");
    }
  }
}

TEST_F(RowsCudaTest, RmsNormAgrees) {
  for (const DType dtype : {DType::BF16, DType::F32}) {
    for (const int64_t hidden : {1, 24, 31, 2048, 5120}) {
      const Twin x = random(DType::F32, {9, hidden});
      const Twin weight = random(DType::F32, {hidden});
      const Twin out = output(dtype, {9, hidden});
      rms_norm_forward(cuda_,
                       {.x = x.device, .weight = weight.device, .eps = 1e-6, .out = out.device});
      rms_norm_forward(ref_, {.x = x.host, .weight = weight.host, .eps = 1e-6, .out = out.host});
      expect_elements(out, (dtype == DType::BF16 ? kRound : 0) + (hidden / 256.0 + 20) * kUnit,
                      1e-30, "rms norm");
    }
  }
}

// Many rows take a warp each, few a block: the bits are the same.
TEST_F(RowsCudaTest, RmsNormBitsDoNotDependOnTheBatch) {
  for (const DType dtype : {DType::BF16, DType::F32}) {
    for (const int64_t hidden : {8, 264, 1024, 1032, 2048}) {
      const int64_t tokens = 1101;
      const Twin x = random(DType::F32, {tokens, hidden});
      const Twin weight = random(DType::F32, {hidden});
      const TensorView whole = output(dtype, {tokens, hidden}).device;
      const TensorView parts = output(dtype, {tokens, hidden}).device;
      rms_norm_forward(cuda_, {.x = x.device, .weight = weight.device, .eps = 1e-6, .out = whole});
      for (int64_t begin = 0; begin < tokens; begin += 367) {
        rms_norm_forward(cuda_, {.x = x.device.rows(begin, begin + 367),
                                 .weight = weight.device,
                                 .eps = 1e-6,
                                 .out = parts.rows(begin, begin + 367)});
      }
      EXPECT_EQ(bytes_of(whole), bytes_of(parts)) << hidden;
    }
  }
}

// The rotation in the projection's epilogue against a product and a pass of its own: heads of one
// and two pieces, an odd number of pieces, a tail of rows, shuffled slots, bias or none.
TEST_F(RowsCudaTest, QkvInOnePassHasTheBitsOfTwo) {
  struct Case {
    int64_t tokens, heads, kv_heads, head_dim, hidden;
  };
  for (const Case& c : {Case{300, 4, 2, 64, 264}, Case{1000, 2, 1, 128, 128},
                        Case{513, 3, 1, 64, 72}, Case{130, 16, 16, 64, 1024}}) {
    const int64_t width = (c.heads + 2 * c.kv_heads) * c.head_dim;
    const int64_t pages = c.tokens / 64 + 2;
    const Twin x = random(DType::BF16, {c.tokens, c.hidden});
    const TwinWeights weight = weights(DType::BF16, 1, width, c.hidden, 0.1);
    const Twin with_bias = random(DType::F32, {width});
    const Twin cos = random(DType::F32, {90, c.head_dim / 2});
    const Twin sin = random(DType::F32, {90, c.head_dim / 2});
    std::vector<int32_t> positions, slots;
    for (int64_t t = 0; t < c.tokens; ++t) {
      positions.push_back(static_cast<int32_t>(t * 7 % 90));
      slots.push_back(static_cast<int32_t>(c.tokens - t));
    }
    const Twin position = integers(positions, {c.tokens});
    const Twin slot = integers(slots, {c.tokens});
    for (const TensorView& bias : {TensorView{}, with_bias.device}) {
      const auto run = [&](bool one_pass) {
        const TensorView q = output(DType::BF16, {c.tokens, c.heads, c.head_dim}).device;
        const TensorView keys = output(DType::BF16, {pages, c.kv_heads, 64, c.head_dim}).device;
        const TensorView values = output(DType::BF16, {pages, c.kv_heads, 64, c.head_dim}).device;
        const KvPages kv{.keys = keys.data,
                         .values = values.data,
                         .device = keys.device,
                         .num_pages = pages,
                         .shape = {.dtype = DType::BF16,
                                   .layout = WeightLayout::row_major,
                                   .heads = c.kv_heads,
                                   .key_width = c.head_dim,
                                   .value_width = c.head_dim}};
        if (one_pass) {
          EXPECT_TRUE(qkv_forward(cuda_, {.x = x.device,
                                          .weight = weight.device,
                                          .bias = bias,
                                          .cos = cos.device,
                                          .sin = sin.device,
                                          .position = position.device,
                                          .kv_slot = slot.device,
                                          .q = q,
                                          .kv = kv})
                          .ran());
        } else {
          const TensorView qkv = output(DType::F32, {c.tokens, width}).device;
          matmul_forward(cuda_, {.operand = x.device.dtype,
                                 .x = x.device,
                                 .weight = weight.device,
                                 .bias = bias,
                                 .out = qkv});
          rope_forward(cuda_, {.qkv = qkv,
                               .cos = cos.device,
                               .sin = sin.device,
                               .position = position.device,
                               .kv_slot = slot.device,
                               .q = q,
                               .kv = kv});
        }
        std::vector<unsigned char> bits;
        for (const TensorView& view : {q, keys, values}) {
          const std::vector<unsigned char> part = bytes_of(view);
          bits.insert(bits.end(), part.begin(), part.end());
        }
        return bits;
      };
      EXPECT_EQ(run(true), run(false)) << c.tokens << " tokens, heads of " << c.head_dim;
    }
  }
}

TEST_F(RowsCudaTest, RopeAgrees) {
  for (const DType dtype : {DType::BF16, DType::F32}) {
    for (const int64_t head_dim : {2, 16, 30, 128}) {
      const int64_t tokens = 5, heads = 4, kv_heads = 2, pages = 3;
      const Twin qkv = random(DType::F32, {tokens, (heads + 2 * kv_heads) * head_dim});
      // The table is F32 on both sides.
      const TensorView cos_host = host_tensor(DType::F32, {90, head_dim / 2});
      const TensorView sin_host = host_tensor(DType::F32, {90, head_dim / 2});
      for (int64_t i = 0; i < cos_host.num_elements(); ++i) {
        cos_host.as<float>()[i] = static_cast<float>(std::cos(0.01 * static_cast<double>(i)));
        sin_host.as<float>()[i] = static_cast<float>(std::sin(0.01 * static_cast<double>(i)));
      }
      const TensorView cos = device_tensor(DType::F32, cos_host.shape);
      const TensorView sin = device_tensor(DType::F32, sin_host.shape);
      upload(cuda_, cos_host.data, cos);
      upload(cuda_, sin_host.data, sin);
      const Twin position = integers({0, 1, 64, 89, 3}, {tokens});
      const Twin slot = integers({0, 65, 127, 191, 64}, {tokens});
      const Twin q = output(dtype, {tokens, heads, head_dim});
      const Twin keys = from(dtype, {pages, kv_heads, 64, head_dim},
                             std::vector<double>(pages * kv_heads * 64 * head_dim));
      const Twin values = from(dtype, {pages, kv_heads, 64, head_dim},
                               std::vector<double>(pages * kv_heads * 64 * head_dim));
      const auto pages_of = [&](const TensorView& k, const TensorView& v) {
        return KvPages{.keys = k.data,
                       .values = v.data,
                       .device = k.device,
                       .num_pages = pages,
                       .shape = {.dtype = k.dtype,
                                 .layout = WeightLayout::row_major,
                                 .heads = kv_heads,
                                 .key_width = head_dim,
                                 .value_width = head_dim}};
      };
      rope_forward(cuda_, {.qkv = qkv.device,
                           .cos = cos,
                           .sin = sin,
                           .position = position.device,
                           .kv_slot = slot.device,
                           .q = q.device,
                           .kv = pages_of(keys.device, values.device)});
      rope_forward(ref_, {.qkv = qkv.host,
                          .cos = cos_host,
                          .sin = sin_host,
                          .position = position.host,
                          .kv_slot = slot.host,
                          .q = q.host,
                          .kv = pages_of(keys.host, values.host)});
      const double relative = dtype == DType::BF16 ? kRound : 0;
      expect_elements(q, relative, 8 * kUnit * 4, "q");
      expect_elements(keys, relative, 8 * kUnit * 4, "keys");
      expect_elements(values, relative, 0, "values");
    }
  }
}

TEST_F(RowsCudaTest, LogProbAgrees) {
  for (const int64_t vocabulary : {1, 5, 300, 102400}) {
    const int64_t rows = 4;
    std::vector<double> logits = normal(rows * vocabulary, 3);
    if (vocabulary >= 5)
      logits[2 * vocabulary + 1] = logits[2 * vocabulary + 3] = 40;  // a tie: the lower id wins
    const Twin x = from(DType::F32, {rows, vocabulary}, logits);
    const Twin target = integers({0, -1, static_cast<int32_t>(vocabulary - 1), 0}, {rows});
    const Twin log_prob = output(DType::F32, {rows});
    const Twin best = output(DType::I32, {rows});
    log_prob_forward(cuda_, {.logits = x.device,
                             .target = target.device,
                             .log_prob = log_prob.device,
                             .argmax = best.device});
    log_prob_forward(
        ref_,
        {.logits = x.host, .target = target.host, .log_prob = log_prob.host, .argmax = best.host});
    expect_elements(log_prob, 8 * kUnit, (static_cast<double>(vocabulary) / 256 + 20) * 2 * kUnit,
                    "log probability");
    const std::vector<int32_t> ids = integers_of(best.device);
    for (int64_t r = 0; r < rows; ++r) EXPECT_EQ(ids[r], best.host.as<int32_t>()[r]) << "row " << r;
  }
}

TEST_F(RowsCudaTest, ArgmaxIsExact) {
  for (const int64_t vocabulary : {1, 5, 203, 102400, 102401}) {
    for (const int64_t rows : {5, 150}) {
      if (rows * vocabulary > 1000000) continue;
      std::vector<double> logits = normal(rows * vocabulary, 3);
      if (vocabulary >= 5) {
        const auto place = static_cast<std::size_t>(2 * vocabulary);
        logits[place + 1] = logits[place + static_cast<std::size_t>(vocabulary) - 1] = 40;  // a tie
        logits[static_cast<std::size_t>(3 * vocabulary) + 4] = NAN;
      }
      const Twin x = from(DType::F32, {rows, vocabulary}, logits);
      const Twin best = output(DType::I32, {rows});
      argmax_forward(cuda_, {.logits = x.device, .index = best.device});
      argmax_forward(ref_, {.logits = x.host, .index = best.host});
      const std::vector<int32_t> ids = integers_of(best.device);
      for (int64_t r = 0; r < rows; ++r)
        EXPECT_EQ(ids[r], best.host.as<int32_t>()[r]) << "row " << r << " of " << vocabulary;
    }
  }
}

// The host's choice, for every kind of rule, with and without ties.
TEST_F(RowsCudaTest, SampleIsExact) {
  std::mt19937_64 random(7);
  for (const int64_t vocabulary : {1, 5, 203, 5000, 102400, 102401}) {
    const int64_t rows = vocabulary > 10000 ? 16 : 80;  // more than one launch takes
    std::vector<double> logits = normal(rows * vocabulary, 3);
    std::vector<SampleRule> rules;
    for (int64_t r = 0; r < rows; ++r) {
      if (r % 2 == 0) {
        for (int64_t v = 0; v < vocabulary; ++v) {
          double& logit = logits[static_cast<std::size_t>(r * vocabulary + v)];
          logit = std::round(logit * 2) / 2;
        }
      }
      const int64_t kind = r / 2 % 8;
      rules.push_back({.draw = random(),
                       .top_p = kind == 1 || kind >= 6 ? 0.9
                                : kind == 4            ? 0
                                                       : 1,
                       .scale = r % 3 == 0 ? 1.0f : 0.25f,
                       .least = kind == 2 || kind == 7 ? 0.02f : 0,
                       .top_k = kind == 3 || kind >= 6 ? 100
                                : kind == 5            ? 1
                                                       : 0});
    }
    if (vocabulary >= 5) logits[static_cast<std::size_t>(3 * vocabulary) + 4] = NAN;
    const Twin x = from(DType::F32, {rows, vocabulary}, logits);
    const Twin best = output(DType::I32, {rows});
    const Twin chosen = output(DType::I32, {rows});
    argmax_forward(cuda_, {.logits = x.device, .index = best.device});
    sample_forward(
        cuda_, {.logits = x.device, .best = best.device, .rule = rules, .index = chosen.device});
    const std::vector<int32_t> best_ids = integers_of(best.device);
    const std::vector<int32_t> ids = integers_of(chosen.device);
    const std::vector<float> host(logits.begin(), logits.end());
    int64_t not_best = 0;
    for (int64_t r = 0; r < rows; ++r) {
      const auto size = static_cast<std::size_t>(vocabulary);
      const std::span<const float> row =
          std::span(host).subspan(static_cast<std::size_t>(r) * size, size);
      const auto at = static_cast<std::size_t>(r);
      EXPECT_EQ(ids[at], sample_row(row, best_ids[at], rules[at]))
          << "row " << r << " of " << vocabulary;
      not_best += ids[at] != best_ids[at];
    }
    if (vocabulary > 100) {
      EXPECT_GT(not_best, rows / 4) << "too few draws beside the best for the test to fail";
    }
  }
}

}  // namespace
}  // namespace dsmoe::kernels

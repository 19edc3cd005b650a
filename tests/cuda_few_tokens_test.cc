// A layer of a few tokens in one launch against the same tokens through the ops one by one.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "kernels/few_tokens.h"
#include "kernels/log_prob.h"
#include "kernels/matmul.h"
#include "support/cuda_layer.h"

namespace dsmoe::testing {
namespace {

struct LayerCase {
  const char* name;
  int64_t hidden, experts, top_k, width, shared_width;
  bool norm = false;
};

class FewTokens : public OnCuda<::testing::TestWithParam<LayerCase>> {
 protected:
  static constexpr int64_t kTokens = 48;  // too many for one launch

  template <class T>
  std::vector<T> host(const TensorView& view) {
    std::vector<T> values(static_cast<std::size_t>(view.num_elements()));
    kernels::download(context_, view, values.data());
    return values;
  }

  moe::LayerWeights make_weights(const LayerCase& shape) {
    moe::LayerWeights weights;
    if (shape.experts > 0) {
      weights.centroids = stack(1, shape.experts, shape.hidden, DType::F32);
      weights.routed = experts(shape.experts, shape.width, shape.hidden);
    }
    if (shape.shared_width > 0) weights.shared = experts(1, shape.shared_width, shape.hidden);
    return weights;
  }

  struct Result {
    std::vector<float> residual, gate;
    std::vector<int32_t> index;
  };
  Result run(const moe::LayerWeights& weights, const LayerCase& shape, int64_t begin, int64_t end) {
    const int64_t tokens = end - begin;
    const moe::LayerMemory memory = moe::allocate_memory({.max_tokens = tokens,
                                                          .max_sequences = 1,
                                                          .hidden = shape.hidden,
                                                          .num_experts = shape.experts,
                                                          .top_k = shape.top_k,
                                                          .routed_width = shape.width,
                                                          .shared_width = shape.shared_width,
                                                          .operand = DType::BF16},
                                                         *arena_);
    const TensorView range = integers({0, static_cast<int32_t>(tokens)});
    const TensorView residual = arena_->tensor("test", DType::F32, {tokens, shape.hidden});
    const std::vector<float> start = host<float>(u_.rows(begin, end));
    kernels::upload(context_, start.data(), residual);
    moe::LayerForward args{.operand = DType::BF16,
                           .rule = {.top_k = static_cast<int>(shape.top_k)},
                           .weights = weights,
                           .tape = memory.tape,
                           .workspace = memory.workspace,
                           .x = x_.rows(begin, end),
                           .token_range = range,
                           .sequence_starts = range,
                           .residual = residual};
    if (shape.norm) {
      args.norm_weight = norm_;
      args.x = arena_->tensor("test", DType::BF16, {tokens, shape.hidden});
    }
    moe::layer_forward(context_, args);
    Result result{.residual = host<float>(residual), .gate = {}, .index = {}};
    if (shape.experts > 0) {
      result.gate = host<float>(memory.tape.gate);
      result.index = host<int32_t>(memory.tape.index);
    }
    return result;
  }

  TensorView u_, x_, norm_;
};

TEST_P(FewTokens, LayerGivesTheBitsOfItsOps) {
  const LayerCase& shape = GetParam();
  const moe::LayerWeights weights = make_weights(shape);
  u_ = random(DType::F32, {kTokens, shape.hidden}, 1);
  x_ = random(DType::BF16, {kTokens, shape.hidden}, 1);
  norm_ = random(DType::F32, {shape.hidden}, 1);

  const Result all = run(weights, shape, 0, kTokens);
  int64_t begin = 0;
  for (const int64_t count : {1, 2, 3, 4, 1, 1}) {
    const Result few = run(weights, shape, begin, begin + count);
    EXPECT_EQ(std::memcmp(few.residual.data(), all.residual.data() + begin * shape.hidden,
                          few.residual.size() * sizeof(float)),
              0)
        << "tokens " << begin << " to " << begin + count;
    const auto slot = static_cast<std::ptrdiff_t>(begin * shape.top_k);
    if (shape.experts > 0) {
      EXPECT_TRUE(std::equal(few.index.begin(), few.index.end(), all.index.begin() + slot));
      EXPECT_EQ(
          std::memcmp(few.gate.data(), all.gate.data() + slot, few.gate.size() * sizeof(float)), 0);
    }
    // The comparison can tell tokens apart.
    EXPECT_NE(
        std::memcmp(few.residual.data(), all.residual.data() + (begin + 1) % kTokens * shape.hidden,
                    few.residual.size() * sizeof(float)),
        0);
    begin = (begin + count) % (kTokens - 4);
  }
}

// Routers, plans and products for many tokens take other ways than those for twelve.
TEST_P(FewTokens, TokensOfALargeBatchGetTheSameBits) {
  const LayerCase& shape = GetParam();
  if (shape.width > 200 || shape.hidden > 2048) GTEST_SKIP() << "too large to make on the host";
  constexpr int64_t kMany = 5000;
  const moe::LayerWeights weights = make_weights(shape);
  u_ = random(DType::F32, {kMany, shape.hidden}, 1);
  x_ = random(DType::BF16, {kMany, shape.hidden}, 1);
  norm_ = random(DType::F32, {shape.hidden}, 1);
  const Result all = run(weights, shape, 0, kMany);
  for (const int64_t begin : {int64_t{0}, int64_t{2047}, kMany - kTokens}) {
    const Result few = run(weights, shape, begin, begin + kTokens);
    EXPECT_EQ(std::memcmp(few.residual.data(), all.residual.data() + begin * shape.hidden,
                          few.residual.size() * sizeof(float)),
              0)
        << begin;
  }
}

TEST_P(FewTokens, ProductGivesTheSameBits) {
  const LayerCase& shape = GetParam();
  const int64_t n = 16 * 21;
  const WeightStack weight = stack(1, n, shape.hidden);
  const TensorView bias = random(DType::F32, {n}, 1);
  const TensorView x = random(DType::BF16, {kTokens, shape.hidden}, 1);
  const TensorView start = random(DType::F32, {kTokens, n}, 1);
  for (const kernels::Store store : {kernels::Store::assign, kernels::Store::accumulate}) {
    const auto product = [&](int64_t begin, int64_t end) {
      const TensorView out = arena_->tensor("test", DType::F32, {end - begin, n});
      const std::vector<float> old = host<float>(start.rows(begin, end));
      kernels::upload(context_, old.data(), out);
      kernels::matmul_forward(context_, {.operand = x.dtype,
                                         .x = x.rows(begin, end),
                                         .weight = weight,
                                         .bias = bias,
                                         .out = out,
                                         .store = store});
      return host<float>(out);
    };
    const std::vector<float> all = product(0, kTokens);
    for (const int64_t count : {1, 2, 3, 4, 5, 8, 9, 16, 17, 24, 31, 32}) {
      const std::vector<float> few = product(2, 2 + count);
      EXPECT_EQ(std::memcmp(few.data(), all.data() + 2 * n, few.size() * sizeof(float)), 0)
          << count;
      EXPECT_NE(std::memcmp(few.data(), all.data() + 3 * n, few.size() * sizeof(float)), 0)
          << count;
    }
  }
}

// Rows of the matrix twice as many as there are different ones, so that every largest logit has an
// equal with a higher id.
TEST_P(FewTokens, HeadGivesTheBitsOfProductAndArgmax) {
  const LayerCase& shape = GetParam();
  const int64_t n = 16 * 300;
  const WeightStack weight = stack(1, n, shape.hidden);
  const TensorView x = random(DType::BF16, {kTokens, shape.hidden}, 1);
  TensorView matrix = x;
  matrix.data = weight.data;
  matrix.shape = {n, shape.hidden};
  kernels::upload(context_, host<uint16_t>(matrix.rows(0, n / 2)).data(), matrix.rows(n / 2, n));
  const TensorView logits = arena_->tensor("test", DType::F32, {kTokens, n});
  const TensorView index = arena_->tensor("test", DType::I32, {kTokens});
  kernels::matmul_forward(context_, {.operand = x.dtype, .x = x, .weight = weight, .out = logits});
  kernels::argmax_forward(context_, {.logits = logits, .index = index});
  const std::vector<float> all = host<float>(logits);
  const std::vector<int32_t> best = host<int32_t>(index);
  for (const int32_t id : best) EXPECT_LT(id, n / 2);
  for (const int64_t count : {1, 2, 4, 5, 8, 9, 16, 17, 31, 32}) {
    const TensorView few = arena_->tensor("test", DType::F32, {count, n});
    const TensorView found = arena_->tensor("test", DType::I32, {count});
    if (!kernels::few_tokens_head(
             context_, {.x = x.rows(2, 2 + count), .weight = weight, .logits = few, .index = found})
             .ran()) {
      EXPECT_GT(count * shape.hidden, 16 * 4096) << "x would fit into shared memory";
      continue;
    }
    const std::vector<float> values = host<float>(few);
    EXPECT_EQ(std::memcmp(values.data(), all.data() + 2 * n, values.size() * sizeof(float)), 0);
    const std::vector<int32_t> ids = host<int32_t>(found);
    EXPECT_TRUE(std::equal(ids.begin(), ids.end(), best.begin() + 2)) << count;
  }
  // Of two rows the one that is not finite is told, by an infinity of either sign and by a NaN.
  for (const uint16_t bits : {0x7f80, 0xff80, 0x7fc0}) {
    const TensorView two = arena_->tensor("test", DType::BF16, {int64_t{2}, shape.hidden});
    std::vector<uint16_t> values = host<uint16_t>(x.rows(0, 2));
    values[0] = bits;
    kernels::upload(context_, values.data(), two);
    const TensorView few = arena_->tensor("test", DType::F32, {int64_t{2}, n});
    const TensorView found = arena_->tensor("test", DType::I32, {int64_t{2}});
    ASSERT_TRUE(kernels::few_tokens_head(
                    context_, {.x = two, .weight = weight, .logits = few, .index = found})
                    .ran());
    EXPECT_EQ(host<int32_t>(found), (std::vector<int32_t>{-1, best[1]}));
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, FewTokens,
                         ::testing::Values(LayerCase{"released", 2048, 8, 6, 1408, 2816},
                                           LayerCase{"normed", 2048, 64, 6, 136, 272, true},
                                           LayerCase{"dense", 512, 0, 0, 0, 1096, true},
                                           LayerCase{"no_shared", 256, 16, 4, 40, 0},
                                           LayerCase{"odd", 48, 5, 2, 24, 8, true},
                                           LayerCase{"many_experts", 320, 160, 6, 64, 128},
                                           LayerCase{"wide_rows", 4096, 8, 2, 64, 64, true}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace dsmoe::testing

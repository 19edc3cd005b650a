// A layer whose outputs, input gradients and laid-out rows come in parts of their columns, forward
// and backward, against the same layer whole, bit for bit.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "base/rng.h"
#include "kernels/cuda/cuda_table.h"
#include "kernels/memory.h"
#include "moe/layer.h"
#include "tensor/arena.h"

namespace dsmoe::testing {
namespace {

using kernels::DType;
using kernels::Shape;
using kernels::TensorView;
using kernels::WeightStack;

constexpr int64_t kHidden = 384, kExperts = 6, kTopK = 3, kWidth = 88, kShared = 136;

class LayerParts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!kernels::cuda_declined().empty()) GTEST_SKIP() << kernels::cuda_declined();
    context_ = {.table = &kernels::cuda_table(), .stream = kernels::make_cuda_stream()};
    arena_ = std::make_unique<tensor::Arena>("test", context_.table->allocator);
  }
  void TearDown() override {
    arena_.reset();
    if (context_.stream != nullptr) kernels::release_cuda_stream(context_.stream);
  }

  TensorView random(DType dtype, const Shape& shape, double scale) {
    const TensorView view = arena_->tensor("test", dtype, shape);
    std::vector<float> values(static_cast<std::size_t>(view.num_elements()));
    rng_.stream++;
    rng_.fill_normal(0, values);
    std::vector<tensor::Bf16> rounded;
    for (float& value : values) {
      value *= static_cast<float>(scale);
      rounded.push_back(tensor::to_bf16(value));
    }
    kernels::upload(
        context_, dtype == DType::BF16 ? static_cast<void*>(rounded.data()) : values.data(), view);
    return view;
  }
  WeightStack stack(DType dtype, int64_t count, int64_t n, int64_t k) {
    const TensorView view = random(dtype, {count * n, k}, 1 / std::sqrt(static_cast<double>(k)));
    return {.data = view.data,
            .dtype = dtype,
            .layout = kernels::WeightLayout::row_major,
            .device = tensor::Device::cuda,
            .count = count,
            .n = n,
            .k = k};
  }
  TensorView integers(const std::vector<int32_t>& values) {
    const TensorView view =
        arena_->tensor("test", DType::I32, {static_cast<int64_t>(values.size())});
    kernels::upload(context_, values.data(), view);
    return view;
  }
  void append(std::vector<unsigned char>& all, const TensorView& view) {
    const std::size_t before = all.size();
    all.resize(before + view.num_bytes());
    kernels::download(context_, view, all.data() + before);
  }

  // Everything the two passes leave, from the same values for every call: the layer's output, the
  // input gradient, all weight gradients.
  std::vector<unsigned char> run(int64_t tokens, const std::vector<int32_t>& starts, int64_t parts,
                                 kernels::GradientStart start) {
    rng_.stream = 0;
    const bool from_zero = start == kernels::GradientStart::from_zero;
    const auto experts = [&](int64_t count, int64_t width) {
      return moe::ExpertWeights{.gate = stack(DType::BF16, count, width, kHidden),
                                .up = stack(DType::BF16, count, width, kHidden),
                                .down = stack(DType::BF16, count, kHidden, width)};
    };
    const auto transposed = [&](int64_t count, int64_t width) {
      return moe::ExpertWeights{.gate = stack(DType::BF16, count, kHidden, width),
                                .up = stack(DType::BF16, count, kHidden, width),
                                .down = stack(DType::BF16, count, width, kHidden)};
    };
    const auto gradients = [&](int64_t count, int64_t width) {
      const double scale = from_zero ? 0 : 1;
      return moe::ExpertGradients{.gate = random(DType::F32, {count, width, kHidden}, scale),
                                  .up = random(DType::F32, {count, width, kHidden}, scale),
                                  .down = random(DType::F32, {count, kHidden, width}, scale)};
    };
    const auto sequences = static_cast<int64_t>(starts.size()) - 1;
    moe::LayerSize size{.max_tokens = tokens + 5,
                        .max_sequences = sequences,
                        .hidden = kHidden,
                        .num_experts = kExperts,
                        .top_k = kTopK,
                        .routed_width = kWidth,
                        .shared_width = kShared,
                        .operand = DType::BF16,
                        .passes = moe::Passes::forward_and_backward};
    size.parts = moe::parts_that_fit(context_, size, parts);
    const moe::LayerState state =
        moe::used_part(moe::allocate_state(size, *arena_), tokens, sequences, kTopK);
    const TensorView x = random(DType::BF16, {tokens, kHidden}, 1);
    const TensorView range = integers({0, static_cast<int32_t>(tokens)});
    const TensorView sequence_starts = integers(starts);
    const moe::LayerForward forward{
        .rule = {.top_k = kTopK},
        .weights = {.centroids = stack(DType::F32, 1, kExperts, kHidden),
                    .routed = experts(kExperts, kWidth),
                    .shared = experts(1, kShared)},
        .state = state,
        .x = x,
        .token_range = range,
        .sequence_starts = sequence_starts,
        .residual = random(DType::F32, {tokens, kHidden}, 1)};
    const moe::LayerBackward backward{
        .rule = {.top_k = kTopK},
        .balance = {.alpha = 0.01, .group_weight = 1.0 / static_cast<double>(sequences)},
        .weights = {.centroids = stack(DType::F32, 1, kHidden, kExperts),
                    .routed = transposed(kExperts, kWidth),
                    .shared = transposed(1, kShared)},
        .gradients = {.centroids = random(DType::F32, {1, kExperts, kHidden}, 1),
                      .routed = gradients(kExperts, kWidth),
                      .shared = gradients(1, kShared)},
        .start = start,
        .state = state,
        .scratch = moe::used_part(moe::allocate_backward_state(size, *arena_), tokens, kTopK),
        .losses = {.balance = arena_->tensor("test", DType::F64, {2}),
                   .z = arena_->tensor("test", DType::F64, {1})},
        .x = x,
        .d_out = random(DType::BF16, {tokens, kHidden}, 0.1),
        .token_range = range,
        .sequence_starts = sequence_starts,
        .d_x = arena_->tensor("test", DType::F32, {tokens, kHidden})};
    moe::layer_forward(context_, forward);
    moe::layer_backward(context_, backward);
    std::vector<unsigned char> all;
    append(all, forward.residual);
    append(all, backward.d_x);
    append(all, backward.gradients.centroids);
    for (const moe::ExpertGradients* family :
         {&backward.gradients.routed, &backward.gradients.shared}) {
      append(all, family->gate);
      append(all, family->up);
      append(all, family->down);
    }
    return all;
  }

  kernels::Context context_;
  std::unique_ptr<tensor::Arena> arena_;
  Rng rng_{.seed = 11, .purpose = RngPurpose::test};
};

TEST_F(LayerParts, EqualTheWholeBitForBit) {
  const std::vector<int32_t> starts = {0, 7, 300, 333, 1001};
  for (const auto start :
       {kernels::GradientStart::from_buffer, kernels::GradientStart::from_zero}) {
    const std::vector<unsigned char> whole = run(1001, starts, 1, start);
    for (const int64_t parts : {2, 3, 4, 8})
      EXPECT_EQ(run(1001, starts, parts, start), whole) << parts << " parts";
  }
}

TEST_F(LayerParts, OfFewTokens) {
  for (const int32_t tokens : {1, 7, 64}) {
    const auto bits = [&](int64_t parts) {
      return run(tokens, {0, tokens}, parts, kernels::GradientStart::from_buffer);
    };
    const std::vector<unsigned char> whole = bits(1);
    EXPECT_EQ(bits(4), whole) << tokens << " tokens";
  }
}

}  // namespace
}  // namespace dsmoe::testing

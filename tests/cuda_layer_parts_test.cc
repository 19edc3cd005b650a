// A layer whose outputs, input gradients and laid-out rows come in parts of their columns, forward
// and backward, against the same layer whole, bit for bit.
#include <gtest/gtest.h>

#include <vector>

#include "support/cuda_layer.h"

namespace dsmoe::testing {
namespace {

constexpr int64_t kHidden = 384, kExperts = 6, kTopK = 3, kWidth = 88, kShared = 136;

class LayerParts : public OnCuda<::testing::Test> {
 protected:
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
    const moe::LayerMemory memory =
        moe::used_part(moe::allocate_memory(size, *arena_), tokens, sequences, kTopK);
    const TensorView x = random(DType::BF16, {tokens, kHidden}, 1);
    const TensorView range = integers({0, static_cast<int32_t>(tokens)});
    const TensorView sequence_starts = integers(starts);
    const moe::LayerForward forward{
        .operand = DType::BF16,
        .rule = {.top_k = kTopK},
        .weights = {.centroids = stack(1, kExperts, kHidden, DType::F32),
                    .routed = experts(kExperts, kWidth, kHidden),
                    .shared = experts(1, kShared, kHidden)},
        .tape = memory.tape,
        .workspace = memory.workspace,
        .x = x,
        .token_range = range,
        .sequence_starts = sequence_starts,
        .residual = random(DType::F32, {tokens, kHidden}, 1)};
    const moe::LayerBackward backward{
        .operand = DType::BF16,
        .rule = {.top_k = kTopK},
        .balance = {.alpha = 0.01, .group_weight = 1.0 / static_cast<double>(sequences)},
        .weights = {.centroids = transpose_of(forward.weights.centroids),
                    .routed = transpose_of(forward.weights.routed),
                    .shared = transpose_of(forward.weights.shared)},
        .gradients = {.centroids = random(DType::F32, {1, kExperts, kHidden}, 1),
                      .routed = gradients(kExperts, kWidth),
                      .shared = gradients(1, kShared)},
        .start = start,
        .tape = memory.tape,
        .workspace = memory.workspace,
        .row_gradients = memory.gradients,
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
};

TEST_F(LayerParts, EqualTheWholeBitForBit) {
  const std::vector<int32_t> starts = {0, 7, 300, 333, 1001};
  for (const auto start :
       {kernels::GradientStart::from_buffer, kernels::GradientStart::from_zero}) {
    const std::vector<unsigned char> whole = run(1001, starts, 1, start);
    for (const int64_t parts : {2, 3, 4, 8})
      EXPECT_EQ(run(1001, starts, parts, start), whole) << parts << " parts";
  }
  // The comparison can tell gradients apart: other sequences, another balance loss.
  const auto start = kernels::GradientStart::from_zero;
  EXPECT_NE(run(1001, {0, 8, 300, 333, 1001}, 4, start), run(1001, starts, 1, start));
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

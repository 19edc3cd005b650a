// One DeepSeekMoE layer by itself: forward, backward, and a check of the gradient by finite
// differences.
#include <dsmoe/base/rng.h>
#include <dsmoe/base/thread_pool.h>
#include <dsmoe/kernels/pack.h>
#include <dsmoe/kernels/table.h>
#include <dsmoe/moe/layer.h>

#include <cmath>
#include <cstdio>
#include <vector>

namespace {

using dsmoe::kernels::DType;
using dsmoe::kernels::PackOrder;
using dsmoe::kernels::Shape;
using dsmoe::kernels::TensorView;
using dsmoe::kernels::WeightStack;

constexpr int64_t kTokens = 6, kHidden = 24, kWidth = 20, kExperts = 8, kTopK = 3;

// Random numbers in an arena, and matrices packed for the products of both passes.
class Numbers {
 public:
  Numbers(const dsmoe::kernels::Context& context, dsmoe::tensor::Arena& arena)
      : context_(context), arena_(arena) {}

  TensorView tensor(const Shape& shape, double scale) {
    const TensorView view = arena_.tensor("numbers", DType::F64, shape);
    for (int64_t i = 0; i < view.num_elements(); ++i)
      view.as<double>()[i] = scale * (2 * rng_.uniform_f64(next_++) - 1);
    return view;
  }

  // `count` random matrices [n, k] and their transposes.
  void matrices(int64_t count, int64_t n, int64_t k, WeightStack& stored, WeightStack& transposed) {
    stored = stack(count, n, k);
    transposed = stack(count, k, n);
    for (int64_t m = 0; m < count; ++m) {
      const TensorView values = tensor({n, k}, 1.5 / std::sqrt(static_cast<double>(k)));
      dsmoe::kernels::pack_weight(context_, {.source = values, .target = stored, .matrix_idx = m});
      dsmoe::kernels::pack_weight(context_, {.source = values,
                                             .target = transposed,
                                             .matrix_idx = m,
                                             .order = PackOrder::transposed});
    }
  }

  void experts(int64_t count, int64_t width, dsmoe::moe::ExpertWeights& stored,
               dsmoe::moe::ExpertWeights& transposed) {
    matrices(count, width, kHidden, stored.gate, transposed.gate);
    matrices(count, width, kHidden, stored.up, transposed.up);
    matrices(count, kHidden, width, stored.down, transposed.down);
  }

 private:
  WeightStack stack(int64_t count, int64_t n, int64_t k) {
    WeightStack stack{.dtype = DType::F64,
                      .layout = context_.table->weight_layout,
                      .count = count,
                      .n = n,
                      .k = k};
    stack.data = arena_.bytes("weights", stack.num_bytes());
    return stack;
  }

  const dsmoe::kernels::Context& context_;
  dsmoe::tensor::Arena& arena_;
  dsmoe::Rng rng_{1, dsmoe::RngPurpose::test};
  uint64_t next_ = 0;
};

}  // namespace

int main() {
  dsmoe::ThreadPool pool(0);
  const dsmoe::kernels::Context context{.table = &dsmoe::kernels::select_cpu_table(),
                                        .pool = &pool};
  dsmoe::tensor::Arena arena("example");
  Numbers numbers(context, arena);

  // One fused shared expert of two widths, eight routed experts, three of them per token.
  dsmoe::moe::LayerWeights weights;
  dsmoe::moe::LayerTransposed transposed;
  numbers.matrices(1, kExperts, kHidden, weights.centroids, transposed.centroids);
  numbers.experts(kExperts, kWidth, weights.routed, transposed.routed);
  numbers.experts(1, 2 * kWidth, weights.shared, transposed.shared);

  const dsmoe::moe::LayerSize size{.max_tokens = kTokens,
                                   .max_sequences = 1,
                                   .hidden = kHidden,
                                   .num_experts = kExperts,
                                   .top_k = kTopK,
                                   .routed_width = kWidth,
                                   .shared_width = 2 * kWidth,
                                   .operand = DType::F64,
                                   .passes = dsmoe::moe::Passes::forward_and_backward};
  const dsmoe::moe::LayerMemory memory = dsmoe::moe::allocate_memory(size, arena);

  const TensorView x = numbers.tensor({kTokens, kHidden}, 1.0);
  const TensorView out = arena.tensor("out", DType::F64, {kTokens, kHidden});
  const TensorView range = arena.tensor("range", DType::I32, {2});
  range.as<int32_t>()[1] = kTokens;
  const dsmoe::kernels::RouterRule rule{.top_k = kTopK};

  // The sum of the layer's outputs, weighted by `d_out`: its gradient is what layer_backward
  // computes.
  const TensorView d_out = numbers.tensor({kTokens, kHidden}, 1.0);
  const auto loss = [&] {
    std::fill_n(out.as<double>(), out.num_elements(), 0.0);
    dsmoe::moe::layer_forward(context, {.operand = DType::F64,
                                        .rule = rule,
                                        .weights = weights,
                                        .tape = memory.tape,
                                        .workspace = memory.workspace,
                                        .x = x,
                                        .token_range = range,
                                        .sequence_starts = range,
                                        .residual = out});
    double sum = 0;
    for (int64_t i = 0; i < out.num_elements(); ++i)
      sum += out.as<double>()[i] * d_out.as<double>()[i];
    return sum;
  };
  loss();
  std::printf("token  experts (gates)\n");
  for (int64_t t = 0; t < kTokens; ++t) {
    std::printf("%5d ", static_cast<int>(t));
    for (int64_t slot = t * kTopK; slot < (t + 1) * kTopK; ++slot) {
      std::printf("  %d (%.3f)", memory.tape.index.as<int32_t>()[slot],
                  memory.tape.gate.as<double>()[slot]);
    }
    std::printf("\n");
  }

  const TensorView d_x = arena.tensor("d_x", DType::F64, {kTokens, kHidden});
  const dsmoe::moe::LayerGradients gradients{
      .centroids = arena.tensor("gradients", DType::F64, {1, kExperts, kHidden})};
  dsmoe::moe::layer_backward(context, {.operand = DType::F64,
                                       .rule = rule,
                                       .weights = transposed,
                                       .gradients = gradients,
                                       .tape = memory.tape,
                                       .workspace = memory.workspace,
                                       .row_gradients = memory.gradients,
                                       .x = x,
                                       .d_out = d_out,
                                       .token_range = range,
                                       .sequence_starts = range,
                                       .d_x = d_x});
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < x.num_elements(); ++i) {
    constexpr double kStep = 1e-6;
    double& value = x.as<double>()[i];
    const double at = value;
    value = at + kStep;
    const double above = loss();
    value = at - kStep;
    const double below = loss();
    value = at;
    const double slope = (above - below) / (2 * kStep);
    difference += (slope - d_x.as<double>()[i]) * (slope - d_x.as<double>()[i]);
    norm += slope * slope;
  }
  const double error = std::sqrt(difference / norm);
  std::printf("gradient of the input against finite differences: relative error %.1e\n", error);
  return error < 1e-6 ? 0 : 1;
}

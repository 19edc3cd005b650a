#include "moe/plain_layer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "kernels/checks.h"
#include "kernels/table.h"

namespace dsmoe::moe {
namespace {

constexpr int64_t kTokens = 7, kHidden = 12, kExperts = 5, kWidth = 10, kShared = 6;
constexpr int kTopK = 2;

// Weights, tokens and a layer in one type.
class Fixture {
 public:
  explicit Fixture(DType operand, int64_t shared_width = kShared)
      : size{.hidden = kHidden,
             .num_experts = kExperts,
             .routed_width = kWidth,
             .shared_width = shared_width,
             .operand = operand,
             .rule = {.top_k = kTopK}},
        scalar(kernels::scalar_type(operand)),
        layer(context, size),
        memory(context, size) {
    weights.centroids = random({kExperts, kHidden});
    weights.gate_up = random({kExperts, 2 * kWidth, kHidden});
    weights.down = random({kExperts, kHidden, kWidth});
    if (shared_width > 0) {
      weights.shared_gate_up = random({2 * shared_width, kHidden});
      weights.shared_down = random({kHidden, shared_width});
    }
    tokens = {.x = random({kTokens, kHidden}),
              .index = arena.tensor("index", DType::I32, {kTokens, kTopK}),
              .gate = arena.tensor("gate", scalar, {kTokens, kTopK})};
    out = arena.tensor("out", scalar, {kTokens, kHidden});
    d_out = random({kTokens, kHidden});
  }

  TensorView random(const kernels::Shape& shape) {
    const TensorView view = arena.tensor("random", size.operand, shape);
    for (int64_t i = 0; i < view.num_elements(); ++i) {
      const double value = rng.uniform_f64(next++) - 0.5;
      if (size.operand == DType::F64) view.as<double>()[i] = value;
      if (size.operand == DType::F32) view.as<float>()[i] = static_cast<float>(value);
      if (size.operand == DType::BF16)
        view.as<tensor::Bf16>()[i] = tensor::to_bf16(static_cast<float>(value));
    }
    return view;
  }
  TensorView like(const TensorView& view) {
    return view ? arena.tensor("gradient", scalar, view.shape) : TensorView{};
  }

  std::vector<std::byte> forward() {
    layer.forward(memory, tokens, out);
    const auto* bytes = static_cast<const std::byte*>(out.data);
    return {bytes, bytes + out.num_bytes()};
  }

  PlainBackward gradients() {
    return {.tokens = tokens,
            .d_out = d_out,
            .d_x = arena.tensor("d_x", scalar, {kTokens, kHidden}),
            .weights = {.centroids = like(weights.centroids),
                        .gate_up = like(weights.gate_up),
                        .down = like(weights.down),
                        .shared_gate_up = like(weights.shared_gate_up),
                        .shared_down = like(weights.shared_down)}};
  }

  // The sum of the outputs, weighted by d_out.
  double loss() {
    layer.set_weights(weights);
    layer.forward(memory, tokens, out);
    double sum = 0;
    for (int64_t i = 0; i < out.num_elements(); ++i)
      sum += out.as<double>()[i] * d_out.as<double>()[i];
    return sum;
  }

  PlainSize size;
  DType scalar;
  ThreadPool pool{2};
  kernels::Context context{.table = &kernels::select_cpu_table(), .pool = &pool};
  PlainLayer layer;
  PlainMemory memory;
  tensor::Arena arena{"test"};
  Rng rng{3, RngPurpose::test};
  uint64_t next = 0;
  PlainWeights weights;
  PlainTokens tokens;
  TensorView out, d_out;
};

double largest_difference(const TensorView& slopes, const std::vector<double>& expected) {
  double most = 0;
  for (std::size_t i = 0; i < expected.size(); ++i)
    most = std::max(most, std::fabs(slopes.as<double>()[i] - expected[i]));
  return most;
}

std::vector<double> finite_differences(Fixture& f, const TensorView& values) {
  constexpr double kStep = 1e-6;
  std::vector<double> slopes;
  for (int64_t i = 0; i < values.num_elements(); ++i) {
    double& value = values.as<double>()[i];
    const double at = value;
    value = at + kStep;
    const double above = f.loss();
    value = at - kStep;
    const double below = f.loss();
    value = at;
    slopes.push_back((above - below) / (2 * kStep));
  }
  f.loss();
  return slopes;
}

TEST(PlainLayer, GradientsAreSlopes) {
  Fixture f(DType::F64);
  f.loss();
  const PlainBackward args = f.gradients();
  f.layer.backward(f.memory, f.weights, args);
  constexpr double kBound = 1e-8;
  EXPECT_LT(largest_difference(args.d_x, finite_differences(f, f.tokens.x)), kBound);
  const PlainWeights& d = args.weights;
  EXPECT_LT(largest_difference(d.centroids, finite_differences(f, f.weights.centroids)), kBound);
  EXPECT_LT(largest_difference(d.gate_up, finite_differences(f, f.weights.gate_up)), kBound);
  EXPECT_LT(largest_difference(d.down, finite_differences(f, f.weights.down)), kBound);
  EXPECT_LT(largest_difference(d.shared_gate_up, finite_differences(f, f.weights.shared_gate_up)),
            kBound);
  EXPECT_LT(largest_difference(d.shared_down, finite_differences(f, f.weights.shared_down)),
            kBound);
  // Gate and up in each other's place would be seen.
  std::vector<double> swapped = finite_differences(f, f.weights.gate_up);
  std::swap_ranges(swapped.begin(), swapped.begin() + kWidth * kHidden,
                   swapped.begin() + kWidth * kHidden);
  EXPECT_GT(largest_difference(d.gate_up, swapped), kBound);
}

TEST(PlainLayer, GatesFromOutsideHaveSlopesToo) {
  Fixture f(DType::F64, 0);
  f.loss();  // the router's choice is the one from outside
  f.weights.centroids = {};
  f.loss();
  PlainBackward args = f.gradients();
  args.d_gate = f.arena.tensor("d_gate", DType::F64, {kTokens, kTopK});
  f.layer.backward(f.memory, f.weights, args);
  EXPECT_LT(largest_difference(args.d_gate, finite_differences(f, f.tokens.gate)), 1e-8);
  EXPECT_LT(largest_difference(args.d_x, finite_differences(f, f.tokens.x)), 1e-8);
}

TEST(PlainLayer, AChoiceFromOutsideGivesTheBitsOfTheRouters) {
  for (const DType operand : {DType::F32, DType::BF16}) {
    Fixture f(operand);
    f.layer.set_weights(f.weights);
    const std::vector<std::byte> own = f.forward();
    f.weights.centroids = {};
    f.layer.set_weights(f.weights);
    EXPECT_EQ(f.forward(), own);
    float& gate = f.tokens.gate.as<float>()[3];
    gate = std::nextafter(gate, 2.0f) + 0x1p-8f;
    EXPECT_NE(f.forward(), own) << "another gate must show";
  }
}

TEST(PlainLayer, FewerTokensAndOtherCallsBetweenChangeNothing) {
  Fixture f(DType::BF16);
  f.layer.set_weights(f.weights);
  const std::vector<std::byte> all = f.forward();
  f.layer.backward(f.memory, f.weights, f.gradients());
  EXPECT_EQ(f.forward(), all);
  PlainTokens first = f.tokens;
  for (TensorView* view : {&first.x, &first.index, &first.gate}) *view = view->rows(0, 3);
  const TensorView out = f.out.rows(0, 3);
  std::memset(out.data, 0xff, out.num_bytes());
  f.layer.forward(f.memory, first, out);
  EXPECT_EQ(std::memcmp(out.data, all.data(), out.num_bytes()), 0);
}

TEST(PlainLayer, RefusesWeightsOfOtherShapesAndBrokenTokens) {
  Fixture f(DType::F32);
  PlainWeights wrong = f.weights;
  wrong.down = wrong.gate_up;
  EXPECT_THROW(f.layer.set_weights(wrong), Error);
  f.layer.set_weights(f.weights);
  f.tokens.x.as<float>()[kHidden] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(f.layer.forward(f.memory, f.tokens, f.out), Error);
}

}  // namespace
}  // namespace dsmoe::moe

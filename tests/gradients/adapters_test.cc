// Weights with adapters: gradients against differences in double, bits against one longer product.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "base/rng.h"
#include "gradients/gradient_check.h"
#include "kernels/checks.h"

namespace dsmoe::testing {
namespace {

using kernels::Adapter;
using kernels::PackOrder;
using kernels::Weight;
using kernels::WeightStack;

constexpr int64_t kRank = 3;

// W, A and B as inputs, packed for both passes.
struct Adapted {
  CheckedInput weight, a, b;
  WeightStack packed, transposed;
  Adapter forward, backward;

  Weight for_forward() const { return {packed, forward}; }
  Weight for_backward() const { return {transposed, backward}; }
};

class AdapterCheck : public GradientCheck {
 protected:
  Adapted adapted(const std::string& name, const Shape& shape, int64_t rows) {
    const int64_t count = shape[0], n = shape[1], k = shape[2];
    const auto inner = [&] { return empty({rows, kRank}); };
    return {
        .weight = input(name, random(shape), Law::accumulated),
        .a = input(name + ".a", random({count, kRank, k}), Law::accumulated),
        .b = input(name + ".b", random({count, n, kRank}), Law::accumulated),
        .packed = stack(count, n, k),
        .transposed = stack(count, k, n),
        .forward = {.a = stack(count, kRank, k), .b = stack(count, n, kRank), .inner = inner()},
        .backward = {.a = stack(count, kRank, n), .b = stack(count, k, kRank), .inner = inner()}};
  }
  void pack_forward(const Adapted& w) {
    pack(w.weight.value, w.packed);
    pack(w.a.value, w.forward.a);
    pack(w.b.value, w.forward.b);
  }
  void pack_backward(const Adapted& w) {
    pack(w.weight.value, w.transposed, PackOrder::transposed);
    pack(w.b.value, w.backward.a, PackOrder::transposed);
    pack(w.a.value, w.backward.b, PackOrder::transposed);
  }
  // Of W, B and A, once both passes have left A x and B^T dy in `inner`.
  void add_gradients(const Adapted& w, const TensorView& dy, const TensorView& x) {
    const auto add = [&](const TensorView& left, const TensorView& right, const TensorView& sum) {
      kernels::weight_gradient(
          context_, {.dy = {left}, .x = {right}, .sequence_offsets = sequences_, .d_weight = sum});
    };
    add(dy, x, w.weight.gradient);
    add(dy, w.forward.inner, w.b.gradient);
    add(w.backward.inner, x, w.a.gradient);
  }

  TensorView sequences_;  // [count, sequences + 1]
};

// y = W x + B (A x).
class ProductCheck : public AdapterCheck {
 public:
  ProductCheck() { sequences_ = ints({0, 2, 2, 5}, {1, 4}); }
  double loss() override {
    pack_forward(w_);
    kernels::matmul_forward(
        context_, {.operand = DType::F64, .x = x_.value, .weight = w_.for_forward(), .out = out_});
    return dot(out_, d_out_);
  }
  void backward() override {
    pack_backward(w_);
    kernels::matmul_forward(
        context_,
        {.operand = DType::F64, .x = d_out_, .weight = w_.for_backward(), .out = x_.gradient});
    add_gradients(w_, d_out_, x_.value);
  }

 private:
  CheckedInput x_ = input("x", random({5, 6}), Law::assigned);
  Adapted w_ = adapted("weight", {1, 4, 6}, 5);
  TensorView d_out_ = random({5, 4}), out_ = empty({5, 4});
};

// Two experts over rows as they lie: gate, up and down have adapters.
class ExpertsCheck : public AdapterCheck {
 public:
  ExpertsCheck() { sequences_ = ints({0, 1, 2, 2, 3, 5}, {2, 3}); }
  double loss() override {
    for (const Adapted* w : {&gate_, &up_, &down_}) pack_forward(*w);
    const kernels::ExpertFamily family{.gate = gate_.for_forward(),
                                       .up = up_.for_forward(),
                                       .down = down_.for_forward(),
                                       .offsets = offsets_,
                                       .x = {x_.value},
                                       .activation = activation_,
                                       .out = out_,
                                       .gate_product = gate_product_,
                                       .up_product = up_product_};
    kernels::experts_up_forward(context_, {.operand = DType::F64, .families = {&family, 1}});
    kernels::experts_down_forward(context_, {.operand = DType::F64, .families = {&family, 1}});
    return dot(out_, d_out_);
  }
  void backward() override {
    for (const Adapted* w : {&gate_, &up_, &down_}) pack_backward(*w);
    const TensorView d_gate = empty(activation_.shape), d_up = empty(activation_.shape);
    const kernels::ExpertFamilyBackward family{.gate_transposed = gate_.for_backward(),
                                               .up_transposed = up_.for_backward(),
                                               .down_transposed = down_.for_backward(),
                                               .offsets = offsets_,
                                               .d_out = {d_out_},
                                               .activation = activation_,
                                               .gate_product = gate_product_,
                                               .up_product = up_product_,
                                               .d_gate_product = d_gate,
                                               .d_up_product = d_up,
                                               .d_x = x_.gradient};
    kernels::experts_down_backward(context_, {.operand = DType::F64, .families = {&family, 1}});
    kernels::experts_up_backward(context_, {.operand = DType::F64, .families = {&family, 1}});
    add_gradients(down_, d_out_, activation_);
    add_gradients(gate_, d_gate, x_.value);
    add_gradients(up_, d_up, x_.value);
  }

 private:
  static constexpr int64_t kRows = 5, kHidden = 6, kWidth = 4;
  TensorView offsets_ = ints({0, 2, kRows});
  CheckedInput x_ = input("x", random({kRows, kHidden}), Law::assigned);
  Adapted gate_ = adapted("gate", {2, kWidth, kHidden}, kRows);
  Adapted up_ = adapted("up", {2, kWidth, kHidden}, kRows);
  Adapted down_ = adapted("down", {2, kHidden, kWidth}, kRows);
  TensorView activation_ = empty({kRows, kWidth}), gate_product_ = empty({kRows, kWidth}),
             up_product_ = empty({kRows, kWidth});
  TensorView d_out_ = random({kRows, kHidden}), out_ = empty({kRows, kHidden});
};

template <class Check>
class Adapters : public ::testing::Test {};
using Checks = ::testing::Types<ProductCheck, ExpertsCheck>;
TYPED_TEST_SUITE(Adapters, Checks);

TYPED_TEST(Adapters, GradientsEqualDifferences) {
  TypeParam check;
  EXPECT_EQ(compare_with_differences(check, Damage::none, 200).report, "");
}

TYPED_TEST(Adapters, ControlIsSeen) {
  TypeParam check;
  EXPECT_EQ(compare_with_differences(check, Damage::one_entry, 200).wrong.size(),
            check.inputs().size());
}

// Where W's inputs fill whole blocks of the sum, [W B] (x, A x) is the same chain.
class AdapterBits : public ::testing::TestWithParam<DType> {
 protected:
  static constexpr int64_t kTokens = 3, kOutputs = 20, kInputs = 512,
                           kLongRank = 300;  // more than a segment

  AdapterBits() {
    seed_values(w_);
    seed_values(a_);
    seed_values(b_);
    for (int64_t n = 0; n < kOutputs; ++n) {
      std::memcpy(row(joined_, n), row(w_, n), kInputs * sizeof(float));
      std::memcpy(row(joined_, n) + kInputs, row(b_, n), kLongRank * sizeof(float));
    }
  }
  void seed_values(const TensorView& view) {
    for (int64_t i = 0; i < view.num_elements(); ++i)
      view.as<float>()[i] = 2 * rng_.uniform_f32(next_++) - 1;
  }
  static float* row(const TensorView& view, int64_t idx) {
    return view.as<float>() + idx * view.dim(1);
  }
  WeightStack packed(const TensorView& values) {
    WeightStack stack{.dtype = GetParam(),
                      .layout = context_.table->weight_layout,
                      .count = 1,
                      .n = values.dim(0),
                      .k = values.dim(1)};
    stack.data = arena_.bytes("weights", stack.num_bytes());
    kernels::pack_weight(context_, {.source = values, .target = stack});
    return stack;
  }
  TensorView product(const TensorView& x, const Weight& weight) {
    const TensorView out = arena_.tensor("out", DType::F32, {x.dim(0), weight.stack.n});
    kernels::matmul_forward(context_,
                            {.operand = GetParam(), .x = x, .weight = weight, .out = out});
    return out;
  }
  TensorView rounded(const TensorView& values) {
    const TensorView out = arena_.tensor("rounded", GetParam(), values.shape);
    kernels::round_values(context_, {.x = values, .out = out});
    return out;
  }
  static bool same(const TensorView& a, const TensorView& b) {
    return a.num_bytes() == b.num_bytes() && std::memcmp(a.data, b.data, a.num_bytes()) == 0;
  }

  ThreadPool pool_{2};
  Context context_{.table = &kernels::select_cpu_table(), .pool = &pool_};
  tensor::Arena arena_{"adapters"};
  Rng rng_{9, RngPurpose::test};
  uint64_t next_ = 0;
  TensorView w_ = arena_.tensor("w", DType::F32, {kOutputs, kInputs});
  TensorView a_ = arena_.tensor("a", DType::F32, {kLongRank, kInputs});
  TensorView b_ = arena_.tensor("b", DType::F32, {kOutputs, kLongRank});
  TensorView joined_ = arena_.tensor("joined", DType::F32, {kOutputs, kInputs + kLongRank});
};

TEST_P(AdapterBits, TheSumGoesOnOverTheRank) {
  const TensorView values = arena_.tensor("x", DType::F32, {kTokens, kInputs});
  seed_values(values);
  const TensorView x = rounded(values);
  const WeightStack a = packed(a_);
  const TensorView inner = rounded(product(x, a));
  const TensorView longer = arena_.tensor("longer", GetParam(), {kTokens, kInputs + kLongRank});
  const auto bytes = [](const TensorView& view) { return view.num_bytes() / kTokens; };
  for (int64_t t = 0; t < kTokens; ++t) {
    auto* target = static_cast<std::byte*>(longer.data) + t * bytes(longer);
    std::memcpy(target, static_cast<std::byte*>(x.data) + t * bytes(x), bytes(x));
    std::memcpy(target + bytes(x), static_cast<std::byte*>(inner.data) + t * bytes(inner),
                bytes(inner));
  }
  const Adapter adapter{
      .a = a, .b = packed(b_), .inner = arena_.tensor("inner", GetParam(), {kTokens, kLongRank})};
  const WeightStack w = packed(w_);
  const TensorView out = product(x, {w, adapter});
  EXPECT_TRUE(same(out, product(longer, packed(joined_))));
  EXPECT_TRUE(same(adapter.inner, inner));
  // The control adds what two sums from zero give: the second has more than one block.
  const TensorView apart = product(x, w), beside = product(inner, adapter.b);
  for (int64_t i = 0; i < apart.num_elements(); ++i)
    apart.as<float>()[i] = beside.as<float>()[i] + apart.as<float>()[i];
  EXPECT_FALSE(same(out, apart));
}

TEST_P(AdapterBits, WhatDoesNotFitIsRefusedByName) {
  const TensorView x = arena_.tensor("x", GetParam(), {kTokens, kInputs});
  const Adapter wrong{.a = packed(b_),
                      .b = packed(b_),
                      .inner = arena_.tensor("inner", GetParam(), {kTokens, kLongRank})};
  EXPECT_THROW(product(x, {packed(w_), wrong}), Error);
  kernels::KernelTable elsewhere = *context_.table;
  elsewhere.device = kernels::Device::cuda;
  Weight weight{packed(w_), wrong};
  weight.stack.device = kernels::Device::cuda;
  const kernels::OpCheck check("matmul_forward", {.table = &elsewhere});
  try {
    check.weight("weight", weight, GetParam(),
                 {.n = kOutputs, .k = kInputs, .rows = kTokens, .takes_integers = true});
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("weight has an adapter; only the CPU's ops take one yet"),
              std::string::npos)
        << e.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Types, AdapterBits, ::testing::Values(DType::BF16, DType::F32));

}  // namespace
}  // namespace dsmoe::testing

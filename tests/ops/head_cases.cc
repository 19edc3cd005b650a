// Cases of the ops on heads, and of the shared experts' gate.
#include <cmath>
#include <cstring>

#include "ops/gradient_cases.h"
#include "ops/op_case.h"

namespace dsmoe::ops {
namespace {

struct MoveShape {
  int64_t tokens, groups, width;
  int64_t from_columns, from_begin, from_step;
  int64_t to_columns, to_begin, to_step;
  enum { sums_to_sums, sums_to_operand, operand_to_sums } types = sums_to_sums;
};

class MoveCase : public OpCase {
 public:
  MoveCase(const Variant& variant, const MoveShape& shape) : OpCase(variant) {
    const int64_t tokens = rows_of(shape.tokens);
    const bool rounds = shape.types == MoveShape::sums_to_operand;
    // Between F32 and F32 where the operand is F32 anyway.
    const DType from = shape.types == MoveShape::operand_to_sums ? variant.operand : scalar();
    args_.from = {random(from, {tokens, shape.from_columns}, {.stream = 1, .by_row = true}),
                  shape.from_begin, shape.from_step};
    args_.to = {output("to", rounds ? variant.operand : scalar(), {tokens, shape.to_columns}),
                shape.to_begin, shape.to_step};
    args_.groups = shape.groups;
    args_.width = shape.width;
  }
  void run(const Context& context) override {
    std::memset(args_.to.rows.data, 0, args_.to.rows.num_bytes());
    kernels::move_columns(context, args_);
  }
  int64_t num_rows() const override { return args_.to.rows.dim(0); }
  // A sum of groups, each addition and the last rounding once.
  std::vector<double> bound(std::size_t, const OpCase&, const OpCase& magnitude) const override {
    std::vector<double> bounds;
    const TensorView& sums = magnitude.outputs()[0].view;
    for (int64_t i = 0; i < sums.num_elements(); ++i) {
      bounds.push_back((static_cast<double>(args_.groups) * kUnit + rounding()) * element(sums, i));
    }
    return bounds;
  }

 private:
  kernels::MoveColumns args_;
};

struct HeadProductsShape {
  int64_t tokens, heads, n, k;
};

class HeadProductsCase : public OpCase {
 public:
  HeadProductsCase(const Variant& variant, const HeadProductsShape& shape) : OpCase(variant) {
    const int64_t tokens = rows_of(shape.tokens);
    args_.x =
        random(variant.operand, {tokens, shape.heads, shape.k}, {.stream = 1, .by_row = true});
    args_.weight = weights(variant.operand, shape.heads, shape.n, shape.k, {.stream = 2});
    args_.out = output("out", variant.operand, {tokens, shape.heads, shape.n});
  }
  void run(const Context& context) override { kernels::head_products(context, args_); }
  int64_t num_rows() const override { return args_.x.dim(0); }
  std::vector<double> bound(std::size_t, const OpCase& exact,
                            const OpCase& magnitude) const override {
    std::vector<double> bounds;
    const double gamma = product_gamma(variant_.operand, args_.weight.k);
    for (int64_t i = 0; i < args_.out.num_elements(); ++i) {
      bounds.push_back(2 * gamma * element(magnitude.outputs()[0].view, i) +
                       rounding() * std::abs(element(exact.outputs()[0].view, i)) + 0x1p-126);
    }
    return bounds;
  }

 private:
  kernels::HeadProducts args_;
};

struct GateShape {
  int64_t tokens, hidden;
};

class SharedGateCase : public OpCase {
 public:
  SharedGateCase(const Variant& variant, const GateShape& shape) : OpCase(variant) {
    const int64_t tokens = rows_of(shape.tokens);
    scale_ = 1 / std::sqrt(static_cast<double>(shape.hidden));
    args_.x = random(variant.operand, {tokens, shape.hidden}, {.stream = 1, .by_row = true});
    args_.weight = weights(scalar(), 1, 1, shape.hidden,
                           {.stream = 2, .scale = scale_, .precision = DType::F32});
    args_.gate = output("gate", scalar(), {tokens, 1});
  }
  void run(const Context& context) override { kernels::shared_gate_forward(context, args_); }
  int64_t num_rows() const override { return args_.x.dim(0); }
  // The product's error (at most 5.5 * 5.5 a term) through a slope of a quarter, and the function.
  std::vector<double> bound(std::size_t, const OpCase&, const OpCase&) const override {
    const double hidden = static_cast<double>(args_.x.dim(1));
    const double product = product_gamma(DType::F32, args_.x.dim(1)) * 5.5 * 5.5 * hidden * scale_;
    return std::vector<double>(static_cast<std::size_t>(args_.gate.num_elements()),
                               product / 4 + 8 * kUnit);
  }

 private:
  double scale_ = 1;
  kernels::SharedGateForward args_;
};

class SharedGateBackwardCase : public GradientCase {
 public:
  SharedGateBackwardCase(const Variant& variant, const GateShape& shape) : GradientCase(variant) {
    args_.gate = number({shape.tokens, 1}, 1);
    args_.d_gate = number({shape.tokens}, 2);
    args_.d_logit = changed("d_logit", scalar(), {shape.tokens, 1}, 3);
  }

 private:
  void call(const Context& context) override { kernels::shared_gate_backward(context, args_); }
  kernels::SharedGateBackward args_;
};

}  // namespace

void add_head_cases(std::vector<OpEntry>& cases) {
  const auto move = [&](const char* name, const MoveShape& shape) {
    cases.push_back(gradient_entry<MoveCase>("move_columns", name, shape));
  };
  move("apart", {30, 3, 7, 40, 2, 10, 21, 0, 7});
  move("repeated", {9, 4, 5, 12, 6, 0, 60, 3, 15});
  move("added", {70, 5, 18, 130, 4, 25, 20, 1, 0});
  move("rounded", {30, 3, 17, 80, 2, 20, 60, 1, 19, MoveShape::sums_to_operand});
  move("added_and_rounded", {30, 3, 17, 80, 2, 20, 60, 1, 0, MoveShape::sums_to_operand});
  move("widened", {30, 3, 17, 80, 2, 20, 60, 1, 19, MoveShape::operand_to_sums});
  const auto products = [&](const char* name, const HeadProductsShape& shape) {
    cases.push_back(gradient_entry<HeadProductsCase>("head_products", name, shape));
  };
  products("even", {20, 4, 64, 32});
  products("odd", {7, 3, 13, 45});
  products("one_token", {1, 5, 70, 6});
  const auto gate = [&](const char* name, const GateShape& shape) {
    cases.push_back(gradient_entry<SharedGateCase>("shared_gate_forward", name, shape));
    cases.push_back(gradient_entry<SharedGateBackwardCase>("shared_gate_backward", name, shape));
  };
  gate("even", {20, 256});
  gate("odd", {37, 45});
}

}  // namespace dsmoe::ops

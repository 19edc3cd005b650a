// Cases of the products of the backward pass: weight gradients and experts.
#include "ops/gradient_cases.h"

namespace dsmoe::ops {
namespace {

struct WeightGradientShape {
  std::vector<std::vector<int32_t>> rows;  // of each sequence, per matrix
  int64_t n, k;
  enum { plain, gathered, float_dy, some_slots, tiny, from_zero } kind = plain;
};

class WeightGradientCase : public GradientCase {
 public:
  WeightGradientCase(const Variant& variant, const WeightGradientShape& shape)
      : GradientCase(variant), shape_(shape) {
    const auto matrices = static_cast<int64_t>(shape.rows.size());
    const auto sequences = static_cast<int64_t>(shape.rows[0].size());
    std::vector<int32_t> offsets;
    int32_t row = 0;
    for (const auto& matrix : shape.rows) {
      offsets.push_back(row);
      for (int32_t count : matrix) offsets.push_back(row += count);
    }
    const bool gathered = shape.kind == WeightGradientShape::gathered;
    const int64_t tokens = gathered ? 1 + row / 2 : row;
    const double scale = shape.kind == WeightGradientShape::tiny ? 0x1p-66 : 1.0;
    args_.x.x = operand({tokens, shape.k}, 1, scale);
    args_.dy.x = shape.kind == WeightGradientShape::float_dy ? number({tokens, shape.n}, 2)
                                                             : operand({tokens, shape.n}, 2, scale);
    if (gathered) {
      args_.x.index = tokens_of_rows(3, row, tokens);
      args_.dy.index = tokens_of_rows(4, row, tokens);
    }
    args_.sequence_offsets = int_matrix(offsets, {matrices, sequences + 1});
    int64_t slots = matrices;
    if (shape.kind == WeightGradientShape::some_slots) {
      slots = matrices - 1;
      std::vector<int32_t> slot_of_matrix;
      for (int64_t m = 0; m < matrices; ++m)
        slot_of_matrix.push_back(static_cast<int32_t>(slots - 1 - m));
      args_.slot_of_matrix = ints(slot_of_matrix);
    }
    args_.d_weight = changed("d_weight", scalar(), {slots, shape.n, shape.k}, 5);
    if (shape.kind == WeightGradientShape::from_zero)
      args_.start = kernels::GradientStart::from_zero;
  }
  bool has_bound(std::size_t) const override { return true; }
  std::vector<double> bound(std::size_t, const OpCase&, const OpCase& magnitude) const override {
    int64_t padded = 32;  // and one addition to what was there before
    for (const auto& matrix : shape_.rows) {
      for (int32_t count : matrix) padded += (count + 31) / 32 * 32;
    }
    const bool by_blocks = args_.dy.x.dtype == DType::BF16;
    const double gamma = product_gamma(DType::BF16, padded) + (by_blocks ? 0 : 256 * kUnit);
    std::vector<double> bounds;
    const TensorView& sums = magnitude.outputs()[0].view;
    for (int64_t i = 0; i < sums.num_elements(); ++i)
      bounds.push_back(gamma * element(sums, i) + static_cast<double>(2 * padded) * 0x1p-126);
    return bounds;
  }

 private:
  void call(const Context& context) override { kernels::weight_gradient(context, args_); }
  TensorView tokens_of_rows(uint32_t stream, int32_t rows, int64_t tokens) {
    std::vector<int32_t> index;
    for (int32_t r = 0; r < rows; ++r)
      index.push_back(static_cast<int32_t>(random_below(stream, static_cast<uint64_t>(r), tokens)));
    return ints(index);
  }

  WeightGradientShape shape_;
  kernels::WeightGradient args_;
};

struct ExpertsBackwardShape {
  int64_t tokens, experts, hidden, width, shared_width;
};

// Token t visits experts t % experts and (t + 2) % experts; expert 1 gets nobody.
class ExpertsBackwardCase : public GradientCase {
 public:
  enum class Half { down, up };
  ExpertsBackwardCase(const Variant& variant, const ExpertsBackwardShape& shape, Half half)
      : GradientCase(variant), half_(half) {
    const auto experts = static_cast<int32_t>(shape.experts);
    const auto tokens = static_cast<int32_t>(shape.tokens);
    std::vector<int32_t> offsets{0}, token_of_row;
    for (int32_t e = 0; e < experts; ++e) {
      for (int32_t t = 0; t < tokens && e != 1; ++t) {
        if (t % experts == e || (t + 2) % experts == e) token_of_row.push_back(t);
      }
      offsets.push_back(static_cast<int32_t>(token_of_row.size()));
    }
    d_out_ = operand({shape.tokens, shape.hidden}, 1);
    add_family(shape.experts, shape.hidden, shape.width, 10, ints(offsets), ints(token_of_row));
    if (shape.shared_width > 0)
      add_family(1, shape.hidden, shape.shared_width, 40, ints({0, tokens}), {});
  }

 private:
  void call(const Context& context) override {
    if (half_ == Half::down) {
      kernels::experts_down_backward(context, {.operand = variant_.operand, .families = families_});
    } else {
      kernels::experts_up_backward(context, {.operand = variant_.operand, .families = families_});
    }
  }
  void add_family(int64_t count, int64_t hidden, int64_t width, uint32_t stream, TensorView offsets,
                  TensorView token_of_row) {
    const int64_t rows = token_of_row ? token_of_row.dim(0) : d_out_.dim(0);
    const auto weight = [&](int64_t n, int64_t k, uint32_t s) {
      return weights(variant_.operand, count, n, k,
                     {.stream = stream + s, .scale = 1 / std::sqrt(static_cast<double>(k))});
    };
    kernels::ExpertFamilyBackward family;
    family.gate_transposed = weight(hidden, width, 0);
    family.up_transposed = weight(hidden, width, 1);
    family.down_transposed = weight(width, hidden, 2);
    family.offsets = offsets;
    family.d_out = {d_out_, token_of_row};
    family.activation = operand({rows, width}, stream + 3);
    family.gate_product = operand({rows, width}, stream + 4, 3);
    family.up_product = operand({rows, width}, stream + 5);
    const DType type = variant_.operand;
    if (token_of_row) {
      family.gate_of_row = number({rows}, stream + 6);
      family.scaled_activation = changed("scaled_activation", type, {rows, width}, stream + 7);
      family.d_gate_of_row = changed("d_gate_of_row", scalar(), {rows}, stream + 8);
    }
    family.d_gate_product = changed("d_gate_product", type, {rows, width}, stream + 9);
    family.d_up_product = changed("d_up_product", type, {rows, width}, stream + 10);
    family.d_x = changed("d_x", type, {rows, hidden}, stream + 11);
    families_.push_back(family);
  }

  Half half_;
  TensorView d_out_;
  std::vector<kernels::ExpertFamilyBackward> families_;
};

}  // namespace

void add_gradient_product_cases(std::vector<OpEntry>& cases) {
  using Sizes = WeightGradientShape;
  const auto weight = [&](const char* name, Sizes shape) {
    cases.push_back(gradient_entry<WeightGradientCase>("weight_gradient", name, shape));
  };
  weight("even", {{{32, 64}}, 48, 64});
  weight("odd", {{{7, 1, 0, 45}}, 13, 37});
  weight("experts", {{{3, 40, 0}, {0, 0, 0}, {70, 1, 33}}, 35, 21, Sizes::gathered});
  weight("some_slots", {{{5, 9}, {11, 2}, {3, 3}}, 9, 18, Sizes::some_slots});
  weight("router", {{{30, 300}}, 9, 50, Sizes::float_dy});
  weight("many_rows", {{{700, 513, 31}}, 50, 33});
  weight("many_outputs", {{{40, 9}}, 401, 19});
  weight("denormal_products", {{{40, 33}}, 20, 17, Sizes::tiny});
  weight("no_rows", {{{0, 0}}, 5, 6});
  weight("from_zero", {{{3, 40, 0}, {0, 0, 0}, {700, 1, 33}}, 35, 21, Sizes::from_zero});
  weight("from_zero_whole", {{{32, 64}, {600, 30}}, 96, 64, Sizes::from_zero});

  using Half = ExpertsBackwardCase::Half;
  const auto experts = [&](const char* name, ExpertsBackwardShape shape) {
    cases.push_back(
        gradient_entry<ExpertsBackwardCase>("experts_down_backward", name, shape, Half::down));
    cases.push_back(
        gradient_entry<ExpertsBackwardCase>("experts_up_backward", name, shape, Half::up));
  };
  experts("even", {32, 4, 64, 32, 48});
  experts("odd", {9, 5, 41, 23, 37});
  experts("no_shared", {20, 6, 33, 17, 0});
  experts("long", {6, 3, 20, 530, 0});
  experts("many_rows", {250, 3, 70, 35, 20});
}

}  // namespace dsmoe::ops

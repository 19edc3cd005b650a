// Cases of the products: pack, matmul, router, experts.
#include <cmath>
#include <cstring>

#include "kernels/elements.h"
#include "ops/op_case.h"

namespace dsmoe::ops {
namespace {

using kernels::WeightLayout;
using kernels::WeightStack;

// Zero-fills what an op may leave unwritten, so that runs compare byte by byte.
void clear(const TensorView& view) { std::memset(view.data, 0, view.num_bytes()); }

void copy(const TensorView& from, const TensorView& to) {
  std::memcpy(to.data, from.data, from.num_bytes());
}

struct MatmulShape {
  int64_t tokens, n, k;
  enum { plain, bias, residual, tiny, tiny_rows } kind = plain;
  kernels::WeightCoding coding = kernels::WeightCoding::plain;
};

class MatmulCase : public OpCase {
 public:
  MatmulCase(const Variant& variant, const MatmulShape& shape) : OpCase(variant), shape_(shape) {
    const int64_t tokens = rows_of(shape.tokens);
    // 2^-70: products fall among the denormals and below.
    const double scale = shape.kind == MatmulShape::tiny ? 0x1p-66 : 1.0;
    // Rows so small that their products with weights of ordinary size fall there.
    const double x_scale = shape.kind == MatmulShape::tiny_rows ? 0x1p-121 : scale;
    args_.operand = variant.operand;
    args_.x =
        random(variant.operand, {tokens, shape.k}, {.stream = 1, .scale = x_scale, .by_row = true});
    args_.weight = weights(variant.operand, 1, shape.n, shape.k,
                           {.stream = 2, .scale = scale, .coding = shape.coding});
    args_.out = output("out", scalar(), {tokens, shape.n});
    if (shape.kind == MatmulShape::bias || shape.kind == MatmulShape::residual) {
      args_.bias = random(scalar(), {shape.n}, {.stream = 3, .precision = DType::F32});
    }
    if (shape.kind == MatmulShape::residual) args_.store = kernels::Store::accumulate;
    before_ =
        random(scalar(), {tokens, shape.n}, {.stream = 4, .by_row = true, .precision = DType::F32});
  }

  void run(const Context& context) override {
    copy(before_, args_.out);
    kernels::matmul_forward(context, args_);
  }
  int64_t num_rows() const override { return args_.x.dim(0); }
  std::vector<double> bound(std::size_t, const OpCase&, const OpCase& magnitude) const override {
    std::vector<double> bounds;
    const TensorView& sums = magnitude.outputs()[0].view;
    // Three more roundings: bias, residual, and their addition; a flushed denormal per step.
    const double gamma = product_gamma(variant_.operand, shape_.k) + 3 * kUnit;
    for (int64_t i = 0; i < sums.num_elements(); ++i) {
      bounds.push_back(gamma * element(sums, i) + static_cast<double>(2 * shape_.k + 2) * 0x1p-126);
    }
    return bounds;
  }

 private:
  MatmulShape shape_;
  kernels::MatmulForward args_;
  TensorView before_;
};

struct PackShape {
  int64_t n, k, rows, row_begin;
  DType source;
  kernels::PackOrder order = kernels::PackOrder::as_stored;
};

class PackCase : public OpCase {
 public:
  PackCase(const Variant& variant, const PackShape& shape) : OpCase(variant), order_(shape.order) {
    const bool transposed = shape.order == kernels::PackOrder::transposed;
    // 2^-126: half of the numbers are denormal and must be flushed.
    source_ =
        random(shape.source, transposed ? Shape{shape.rows, shape.n} : Shape{shape.rows, shape.k},
               {.stream = 1, .scale = 0x1p-126, .precision = shape.source});
    target_ = {.dtype = variant.operand,
               .layout = WeightLayout::panels,
               .count = 2,
               .n = shape.n,
               .k = shape.k};
    view_ = output("matrix", DType::U8, {static_cast<int64_t>(target_.num_bytes())});
    target_.data = view_.data;
    row_begin_ = shape.row_begin;
  }
  void run(const Context& context) override {
    clear(view_);
    kernels::pack_weight(context, {.source = source_,
                                   .target = target_,
                                   .matrix_idx = 1,
                                   .row_begin = row_begin_,
                                   .order = order_});
  }
  int64_t num_rows() const override { return 0; }
  bool has_bound(std::size_t) const override { return false; }
  std::vector<double> bound(std::size_t, const OpCase&, const OpCase&) const override { return {}; }

 private:
  TensorView source_, view_;
  WeightStack target_;
  int64_t row_begin_;
  kernels::PackOrder order_;
};

struct RouterShape {
  int64_t tokens, experts, hidden;
  kernels::RouterRule rule;
  enum { plain, bias, per_token, replay, ties, infinite, infinite_bias } kind = plain;
};

class RouterCase : public OpCase {
 public:
  RouterCase(const Variant& variant, const RouterShape& shape) : OpCase(variant), shape_(shape) {
    const int64_t tokens = rows_of(shape.tokens);
    const int64_t top_k = shape.rule.top_k;
    args_.rule = shape.rule;
    args_.x = random(variant.operand, {tokens, shape.hidden}, {.stream = 1, .by_row = true});
    // Ties: every expert has the same centroid.
    const double scale =
        shape.kind == RouterShape::ties ? 0 : 1 / std::sqrt(static_cast<double>(shape.hidden));
    args_.centroids = weights(scalar(), 1, shape.experts, shape.hidden,
                              {.stream = 2, .scale = scale, .mean = 0.01});
    if (shape.kind == RouterShape::bias || shape.kind == RouterShape::infinite_bias) {
      args_.selection_bias =
          random(scalar(), {shape.experts}, {.stream = 3, .scale = 0.3, .precision = DType::F32});
    }
    std::vector<int32_t> counts, replayed;
    for (int64_t t = first_row(); t < first_row() + tokens; ++t) {
      counts.push_back(static_cast<int32_t>(random_below(4, t, top_k + 1)));
      for (int64_t slot = 0; slot < top_k; ++slot) {
        const bool absent = slot >= 1 + t % top_k;
        replayed.push_back(absent ? -1 : static_cast<int32_t>((t + slot * 3) % shape.experts));
      }
      if (t % 3 == 1) replayed[replayed.size() - top_k] = kernels::kChooseFreely;
    }
    if (shape.kind == RouterShape::per_token) args_.experts_of_token = ints(counts);
    if (shape.kind == RouterShape::replay) {
      args_.replayed_index = ints(replayed);
      args_.replayed_index.shape = {tokens, top_k};
    }
    if (shape.kind == RouterShape::infinite && tokens > 2) poison(2 * shape.hidden + 1);
    if (shape.kind == RouterShape::infinite_bias)
      kernels::write_element(args_.selection_bias.data, scalar(), 3, -INFINITY);
    args_.affinity = output("affinity", scalar(), {tokens, shape.experts});
    args_.index = output("index", DType::I32, {tokens, top_k});
    args_.gate = output("gate", scalar(), {tokens, top_k});
    bad_token_ = ints({0});
    args_.bad_token = bad_token_;
    if (is_refused()) {
      // Which NaN an affinity is depends on the order of operands: only the refusal is defined.
      outputs_.erase(outputs_.begin());
      outputs_.push_back({"bad_token", bad_token_});
    }
  }
  void run(const Context& context) override { kernels::router_forward(context, args_); }
  int64_t num_rows() const override { return is_refused() ? 0 : args_.x.dim(0); }
  bool has_bound(std::size_t idx) const override { return !is_refused() && OpCase::has_bound(idx); }
  // Scores err by gamma * sum |x e| each: softmax moves by twice the largest of them, relatively,
  // and its own few roundings.
  std::vector<double> bound(std::size_t idx, const OpCase& exact, const OpCase&) const override {
    const double sum =
        static_cast<double>(shape_.hidden) * 5 * 5 / std::sqrt(static_cast<double>(shape_.hidden));
    const double relative = 2 * product_gamma(DType::F32, shape_.hidden) * sum +
                            (static_cast<double>(shape_.experts) / 16 + 20) * kUnit;
    std::vector<double> bounds;
    const TensorView& view = exact.outputs()[idx].view;
    for (int64_t i = 0; i < view.num_elements(); ++i)
      bounds.push_back(3 * relative * std::abs(element(view, i)));
    return bounds;
  }

 private:
  bool is_refused() const {
    return shape_.kind == RouterShape::infinite || shape_.kind == RouterShape::infinite_bias;
  }
  void poison(int64_t idx) {
    const float infinity = INFINITY;
    if (args_.x.dtype == DType::BF16) {
      args_.x.as<tensor::Bf16>()[idx] = tensor::to_bf16(infinity);
    } else if (args_.x.dtype == DType::F32) {
      args_.x.as<float>()[idx] = infinity;
    }
  }
  RouterShape shape_;
  kernels::RouterForward args_;
  TensorView bad_token_;
};

struct ExpertsShape {
  int64_t tokens, experts, top_k, hidden, width, shared_width;
  enum { inference, training } phase = inference;
  kernels::WeightCoding coding = kernels::WeightCoding::plain;
};

// Routed experts through a plan, and a fused shared one, side by side.
class ExpertsCase : public OpCase {
 public:
  enum class Half { up, down };
  ExpertsCase(const Variant& variant, const ExpertsShape& shape, Half half)
      : OpCase(variant), shape_(shape), half_(half) {
    tokens_ = rows_of(shape.tokens);
    x_ = random(variant.operand, {tokens_, shape.hidden}, {.stream = 1, .by_row = true});
    route();
    add_family(shape.experts, shape.width, tokens_ * shape.top_k, 10, offsets_, token_of_row_);
    if (shape.shared_width > 0) {
      add_family(1, shape.shared_width, tokens_, 20, ints({0, static_cast<int32_t>(tokens_)}), {});
    }
    if (half == Half::up && shape.phase == ExpertsShape::training) keep_products();
  }
  void run(const Context& context) override {
    for (const Output& output : outputs_) clear(output.view);
    if (half_ == Half::up) {
      kernels::experts_up_forward(context, {.operand = variant_.operand, .families = families_});
    } else {
      kernels::experts_down_forward(context, {.operand = variant_.operand, .families = families_});
    }
  }
  int64_t num_rows() const override { return tokens_; }
  std::vector<std::byte> row_bytes(int64_t token) const override {
    std::vector<std::byte> all;
    const auto append = [&](const TensorView& view, int64_t row) {
      const TensorView one = view.rows(row, row + 1);
      const auto* data = static_cast<const std::byte*>(one.data);
      all.insert(all.end(), data, data + one.num_bytes());
    };
    for (int64_t slot = 0; slot < shape_.top_k; ++slot) {
      const int32_t row = row_of_slot_[token * shape_.top_k + slot];
      if (row >= 0) append(outputs_[0].view, row);
    }
    if (families_.size() > 1) append(outputs_[1].view, token);
    return all;
  }
  bool has_bound(std::size_t idx) const override { return idx < families_.size(); }
  // Inputs are normal: |x . w| terms sum to at most hidden * 5 * 5 * scale, far above what occurs;
  // silu has slope <= 1.1.
  std::vector<double> bound(std::size_t idx, const OpCase& exact, const OpCase&) const override {
    const ExpertFamily& family = families_[idx];
    const int64_t k = half_ == Half::up ? family.gate.stack.k : family.down.stack.k;
    const double sum = 25 * std::sqrt(static_cast<double>(k));
    const double product_error = product_gamma(variant_.operand, k) * sum;
    const double error = half_ == Half::up ? product_error * 2.2 * sum : product_error;
    std::vector<double> bounds;
    const TensorView& view = exact.outputs()[idx].view;
    for (int64_t i = 0; i < view.num_elements(); ++i) {
      bounds.push_back(error + (rounding() + 8 * kUnit) * std::abs(element(view, i)));
    }
    return bounds;
  }

 private:
  using ExpertFamily = kernels::ExpertFamily;

  // Token t takes top_k different experts, some slots absent; expert 1 gets nobody.
  void route() {
    std::vector<int32_t> expert_of_slot;
    for (int64_t t = first_row(); t < first_row() + tokens_; ++t) {
      const int64_t start = random_below(5, t, shape_.experts);
      for (int64_t slot = 0; slot < shape_.top_k; ++slot) {
        const auto expert = static_cast<int32_t>((start + slot) % shape_.experts);
        expert_of_slot.push_back(expert == 1 ? -1 : expert);
      }
    }
    std::vector<int32_t> offsets(shape_.experts + 1, 0), token_of_row(expert_of_slot.size(), 0);
    row_of_slot_.assign(expert_of_slot.size(), -1);
    int32_t row = 0;
    for (int32_t e = 0; e < shape_.experts; ++e) {
      for (std::size_t slot = 0; slot < expert_of_slot.size(); ++slot) {
        if (expert_of_slot[slot] != e) continue;
        row_of_slot_[slot] = row;
        token_of_row[row++] = static_cast<int32_t>(static_cast<int64_t>(slot) / shape_.top_k);
      }
      offsets[e + 1] = row;
    }
    offsets_ = ints(offsets);
    token_of_row_ = ints(token_of_row);
  }

  void add_family(int64_t count, int64_t width, int64_t rows, uint32_t stream, TensorView offsets,
                  TensorView token_of_row) {
    const DType type = variant_.operand;
    const auto scaled = [&](uint32_t s, int64_t k) {
      return Fill{
          .stream = s, .scale = 1 / std::sqrt(static_cast<double>(k)), .coding = shape_.coding};
    };
    ExpertFamily family;
    family.gate = weights(type, count, width, shape_.hidden, scaled(stream, shape_.hidden));
    family.up = weights(type, count, width, shape_.hidden, scaled(stream + 1, shape_.hidden));
    family.down = weights(type, count, shape_.hidden, width, scaled(stream + 2, width));
    family.offsets = offsets;
    family.x = {x_, token_of_row};
    if (half_ == Half::up) {
      family.activation = output(token_of_row ? "routed" : "shared", type, {rows, width});
      family.out = tensor(type, {rows, shape_.hidden});
    } else {
      family.activation = activations(rows, width, stream + 3, token_of_row.data != nullptr);
      family.out = output(token_of_row ? "routed" : "shared", type, {rows, shape_.hidden});
    }
    families_.push_back(family);
  }

  void keep_products() {
    for (ExpertFamily& family : families_) {
      family.gate_product = output("gate_product", variant_.operand, family.activation.shape);
      family.up_product = output("up_product", variant_.operand, family.activation.shape);
    }
  }

  // Inputs of the down product: by token, so that a token alone meets the same numbers.
  TensorView activations(int64_t rows, int64_t width, uint32_t stream, bool routed) {
    const int64_t per_token = routed ? shape_.top_k : 1;
    const TensorView by_slot =
        random(variant_.operand, {tokens_, per_token, width}, {.stream = stream, .by_row = true});
    if (!routed) {
      TensorView view = by_slot;
      view.shape = {rows, width};
      return view;
    }
    const TensorView view = tensor(variant_.operand, {rows, width});
    const std::size_t bytes = static_cast<std::size_t>(width) * tensor::size_of(view.dtype);
    for (std::size_t slot = 0; slot < row_of_slot_.size(); ++slot) {
      if (row_of_slot_[slot] < 0) continue;
      std::memcpy(
          static_cast<char*>(view.data) + static_cast<std::size_t>(row_of_slot_[slot]) * bytes,
          static_cast<const char*>(by_slot.data) + slot * bytes, bytes);
    }
    return view;
  }

  ExpertsShape shape_;
  Half half_;
  int64_t tokens_ = 0;
  TensorView x_, offsets_, token_of_row_;
  std::vector<int32_t> row_of_slot_;
  std::vector<ExpertFamily> families_;
};

template <class Case, class... Args>
OpEntry entry(const char* op, const char* name, Args... args) {
  return {op, name,
          [=](const Variant& variant) { return std::make_unique<Case>(variant, args...); }};
}

}  // namespace

void add_product_cases(std::vector<OpEntry>& cases) {
  const auto matmul = [&](const char* name, MatmulShape shape) {
    cases.push_back(entry<MatmulCase>("matmul_forward", name, shape));
  };
  matmul("one_row", {1, 96, 64});
  matmul("odd", {7, 41, 45});
  matmul("odd_k_in_last_pair", {3, 17, 33, MatmulShape::bias});
  matmul("long", {2, 48, 1100});
  matmul("many_rows", {131, 50, 80, MatmulShape::residual});
  matmul("many_rows_long", {100, 19, 1301, MatmulShape::bias});
  matmul("many_rows_longer", {70, 40, 2100});
  matmul("wide", {2, 1000, 40, MatmulShape::residual});
  matmul("thirteen_rows", {13, 65, 300});
  matmul("three_row_tiles", {48, 80, 96});
  matmul("three_row_tiles_odd", {37, 41, 77});
  matmul("four_row_tiles", {64, 48, 100});
  matmul("rows_split", {800, 18, 33});
  matmul("denormal_products", {9, 40, 70, MatmulShape::tiny});
  matmul("single", {1, 1, 1});
  matmul("no_rows", {0, 5, 6});

  const auto pack = [&](const char* name, PackShape shape) {
    cases.push_back(entry<PackCase>("pack_weight", name, shape));
  };
  for (const DType source : {DType::BF16, DType::F32}) {
    const std::string type(tensor::name_of(source));
    pack((type + "_whole").c_str(), {48, 64, 48, 0, source});
    pack((type + "_odd").c_str(), {45, 33, 45, 0, source});
    pack((type + "_stacked").c_str(), {60, 35, 21, 13, source});
    using enum kernels::PackOrder;
    pack((type + "_transposed").c_str(), {48, 64, 64, 0, source, transposed});
    pack((type + "_transposed_odd").c_str(), {45, 33, 33, 0, source, transposed});
    pack((type + "_transposed_stacked").c_str(), {37, 60, 22, 13, source, transposed});
    pack((type + "_no_rows").c_str(), {60, 35, 0, 13, source});
  }
  pack("F64", {20, 9, 20, 0, DType::F64});

  const auto router = [&](const char* name, RouterShape shape) {
    cases.push_back(entry<RouterCase>("router_forward", name, shape));
  };
  using kernels::GroupScore;
  using kernels::ScaleGates;
  using kernels::ScoreFunction;
  router("released", {9, 64, 72, {.top_k = 6}});
  router("odd", {5, 5, 43, {.top_k = 3, .normalise = true}});
  router("many_tokens", {70, 33, 300, {.top_k = 4, .scale = 2.5f}});
  router("per_token",
         {11,
          9,
          40,
          {.top_k = 4, .normalise = true, .scale = 2, .scale_gates = ScaleGates::always},
          RouterShape::per_token});
  router("replay", {8, 9, 40, {.top_k = 3, .normalise = true}, RouterShape::replay});
  router("v2_groups", {12, 24, 50, {.top_k = 4, .num_groups = 6, .top_groups = 2, .scale = 16}});
  router("v3_groups", {12,
                       24,
                       50,
                       {.score = ScoreFunction::sigmoid,
                        .top_k = 4,
                        .num_groups = 4,
                        .top_groups = 2,
                        .group_score = GroupScore::sum_of_best_two,
                        .normalise = true,
                        .scale = 2.5f,
                        .scale_gates = ScaleGates::always},
                       RouterShape::bias});
  router("ties", {4, 20, 30, {.top_k = 5}, RouterShape::ties});
  router("all_experts", {4, 7, 30, {.top_k = 7}});
  router("infinite", {6, 7, 30, {.top_k = 2}, RouterShape::infinite});
  router("infinite_bias", {6, 7, 30, {.top_k = 2}, RouterShape::infinite_bias});
  router("skip_best", {13, 21, 50, {.top_k = 3, .skip_best = 4, .normalise = true}});
  router("skip_ties", {4, 20, 30, {.top_k = 5, .skip_best = 2}, RouterShape::ties});
  router("skip_in_groups",
         {12, 24, 50, {.top_k = 4, .skip_best = 4, .num_groups = 6, .top_groups = 2}});

  const auto experts = [&](const char* name, ExpertsShape shape) {
    cases.push_back(entry<ExpertsCase>("experts_up_forward", name, shape, ExpertsCase::Half::up));
    cases.push_back(
        entry<ExpertsCase>("experts_down_forward", name, shape, ExpertsCase::Half::down));
  };
  experts("decode", {1, 8, 3, 96, 48, 64});
  experts("odd", {6, 5, 3, 41, 23, 37});
  experts("no_shared", {5, 6, 2, 33, 17, 0});
  experts("uneven", {60, 3, 2, 70, 31, 50});
  experts("training", {7, 5, 2, 40, 35, 20, ExpertsShape::training});
  experts("many_rows", {150, 4, 2, 40, 35, 20});
  experts("many_panels", {280, 3, 2, 200, 110, 100, ExpertsShape::training});

  for (const kernels::WeightCoding coding :
       {kernels::WeightCoding::int8, kernels::WeightCoding::int4}) {
    const std::string prefix = std::string(tensor::name_of(coding)) + "_";
    const auto coded_matmul = [&](const char* name, MatmulShape shape) {
      shape.coding = coding;
      cases.push_back(entry<MatmulCase>("matmul_quantised", (prefix + name).c_str(), shape));
    };
    coded_matmul("one_row", {1, 96, 64});
    coded_matmul("two_rows_odd", {2, 41, 45});
    coded_matmul("three_rows", {3, 17, 33, MatmulShape::bias});
    coded_matmul("four_rows_long", {4, 48, 1100});
    coded_matmul("odd", {7, 41, 45});
    coded_matmul("many_rows", {131, 50, 80, MatmulShape::residual});
    coded_matmul("many_rows_long", {100, 19, 1301, MatmulShape::bias});
    coded_matmul("many_rows_longer", {70, 40, 2100});
    coded_matmul("thirteen_rows", {13, 65, 300});
    coded_matmul("three_row_tiles", {48, 80, 320});
    coded_matmul("three_row_tiles_odd", {37, 90, 77});
    coded_matmul("four_row_tiles", {64, 48, 100});
    coded_matmul("wide", {1, 1000, 40, MatmulShape::residual});
    coded_matmul("denormal_products", {3, 40, 70, MatmulShape::tiny});
    coded_matmul("denormal_products_many", {9, 40, 70, MatmulShape::tiny});
    coded_matmul("denormal_sums", {1, 48, 300, MatmulShape::tiny_rows});
    coded_matmul("denormal_sums_many", {9, 48, 300, MatmulShape::tiny_rows});
    coded_matmul("five_panels", {1, 80, 200});
    coded_matmul("two_rows_wide", {2, 90, 320});
    coded_matmul("five_rows", {5, 33, 256});
    coded_matmul("eight_rows", {8, 50, 200});
    coded_matmul("single", {1, 1, 1});
    const auto coded_experts = [&](const char* name, ExpertsShape shape) {
      shape.coding = coding;
      const std::string full = prefix + name;
      cases.push_back(
          entry<ExpertsCase>("experts_up_quantised", full.c_str(), shape, ExpertsCase::Half::up));
      cases.push_back(entry<ExpertsCase>("experts_down_quantised", full.c_str(), shape,
                                         ExpertsCase::Half::down));
    };
    coded_experts("decode", {1, 8, 3, 96, 48, 64});
    coded_experts("odd", {6, 5, 3, 41, 23, 37});
    coded_experts("uneven", {60, 3, 2, 70, 31, 50});
    coded_experts("many_rows", {150, 4, 2, 40, 35, 20});
    coded_experts("four_row_tiles_many_panels", {64, 3, 2, 200, 110, 100});
  }
}

}  // namespace dsmoe::ops

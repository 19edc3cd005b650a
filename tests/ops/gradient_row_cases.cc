// Cases of the backward ops on rows and columns, and of the optimiser.
#include <type_traits>

#include "ops/gradient_cases.h"

namespace dsmoe::ops {
namespace {

// Sequences of a third, nothing, and the rest.
std::vector<int32_t> starts_of(int64_t rows) {
  const auto end = static_cast<int32_t>(rows);
  return {0, end / 3, end / 3, end};
}

struct Rows {
  int64_t rows, size;
  double scale = 1;
};

class BiasGradientCase : public GradientCase {
 public:
  BiasGradientCase(const Variant& variant, const Rows& shape) : GradientCase(variant) {
    args_.dy = operand({shape.rows, shape.size}, 1);
    args_.sequence_starts = ints(starts_of(shape.rows));
    args_.d_bias = changed("d_bias", scalar(), {shape.size}, 2);
  }

 private:
  void call(const Context& context) override { kernels::bias_gradient(context, args_); }
  kernels::BiasGradient args_;
};

class RoundValuesCase : public GradientCase {
 public:
  RoundValuesCase(const Variant& variant, const Rows& shape) : GradientCase(variant) {
    args_.x = number({shape.rows, shape.size}, 1, shape.scale);
    args_.out = changed("out", variant.operand, {shape.rows, shape.size}, 2);
  }

 private:
  void call(const Context& context) override { kernels::round_values(context, args_); }
  kernels::RoundValues args_;
};

class RmsNormBackwardCase : public GradientCase {
 public:
  RmsNormBackwardCase(const Variant& variant, const Rows& shape, bool wants_weight,
                      int64_t rows_per_token = 1)
      : GradientCase(variant) {
    args_.x = number({shape.rows, shape.size}, 1, shape.scale);
    args_.weight = number({shape.size}, 2);
    args_.d_out = number({shape.rows, shape.size}, 3);
    args_.rows_per_token = rows_per_token;
    args_.sequence_starts = ints(starts_of(shape.rows / rows_per_token));
    args_.d_x = changed("d_x", scalar(), {shape.rows, shape.size}, 4);
    if (wants_weight) args_.d_weight = changed("d_weight", scalar(), {shape.size}, 5);
  }

 private:
  void call(const Context& context) override { kernels::rms_norm_backward(context, args_); }
  kernels::RmsNormBackward args_;
};

struct RopeBackwardShape {
  int64_t tokens, heads, kv_heads, key_width;
  int64_t value_width = key_width;
  int64_t half = key_width / 2;
  kernels::Rotation rotation = {};
};

class RopeBackwardCase : public GradientCase {
 public:
  RopeBackwardCase(const Variant& variant, const RopeBackwardShape& shape) : GradientCase(variant) {
    const Shape row{shape.tokens, (shape.heads + shape.kv_heads) * shape.key_width +
                                      shape.kv_heads * shape.value_width};
    args_.d_qkv = number(row, 1);
    const auto table = [&](uint32_t stream) {
      return random(DType::F32, {shape.tokens + 3, shape.half},
                    {.stream = stream, .precision = DType::F32});
    };
    args_.cos = table(2);
    args_.sin = table(3);
    std::vector<int32_t> position;
    for (int64_t t = 0; t < shape.tokens; ++t)
      position.push_back(static_cast<int32_t>(shape.tokens + 2 - t));
    args_.position = ints(position);
    args_.num_heads = shape.heads;
    args_.num_kv_heads = shape.kv_heads;
    args_.key_width = shape.key_width;
    args_.rotation = shape.rotation;
    args_.out = changed("out", variant.operand, row, 4);
  }

 private:
  void call(const Context& context) override { kernels::rope_backward(context, args_); }
  kernels::RopeBackward args_;
};

class EmbeddingBackwardCase : public GradientCase {
 public:
  EmbeddingBackwardCase(const Variant& variant, const Rows& shape) : GradientCase(variant) {
    constexpr int64_t kVocabulary = 7;
    std::vector<int32_t> ids;
    for (int64_t t = 0; t < shape.rows; ++t)
      ids.push_back(static_cast<int32_t>(random_below(1, static_cast<uint64_t>(t), kVocabulary)));
    args_.ids = ints(ids);
    args_.d_out = number({shape.rows, shape.size}, 2);
    args_.d_table = changed("d_table", scalar(), {kVocabulary, shape.size}, 3);
  }

 private:
  void call(const Context& context) override { kernels::embedding_backward(context, args_); }
  kernels::EmbeddingBackward args_;
};

class CrossEntropyCase : public GradientCase {
 public:
  CrossEntropyCase(const Variant& variant, const Rows& shape) : GradientCase(variant) {
    args_.logits = number({shape.rows, shape.size}, 1, shape.scale);
    std::vector<int32_t> target;
    for (int64_t r = 0; r < shape.rows; ++r) {
      const int64_t id = random_below(2, static_cast<uint64_t>(r), shape.size);
      target.push_back(r % 4 == 3 ? -1 : static_cast<int32_t>(id));
    }
    target[0] = static_cast<int32_t>(shape.size - 1);
    args_.target = ints(target);
    args_.scale = 1.0 / 37;
    args_.log_prob = changed("log_prob", scalar(), {shape.rows}, 3);
    args_.d_logits = changed("d_logits", variant.operand, {shape.rows, shape.size}, 4);
  }

 private:
  void call(const Context& context) override { kernels::cross_entropy_backward(context, args_); }
  kernels::CrossEntropyBackward args_;
};

class SumOfSquaresCase : public GradientCase {
 public:
  SumOfSquaresCase(const Variant& variant, const Rows& shape) : GradientCase(variant) {
    args_.x = number({shape.rows, shape.size}, 1, shape.scale);
    args_.out = changed("out", DType::F64, {1}, 2);
  }

 private:
  void call(const Context& context) override { kernels::sum_of_squares(context, args_); }
  kernels::SumOfSquares args_;
};

class AdamwCase : public GradientCase {
 public:
  AdamwCase(const Variant& variant, const Rows& shape) : GradientCase(variant) {
    const Shape all{shape.rows, shape.size};
    args_.gradient = number(all, 1, shape.scale);
    args_.weight = changed("weight", scalar(), all, 2);
    args_.first_moment = changed("first_moment", scalar(), all, 3);
    args_.second_moment = changed("second_moment", scalar(), all, 4, 20);  // positive
    args_.gradient_scale = 0.37f;
    args_.lr = 3e-4f;
    args_.weight_decay = 0.1f;
    args_.correction1 = 0.271f;
    args_.correction2 = 0.142625f;
  }

 private:
  void call(const Context& context) override { kernels::adamw_step(context, args_); }
  kernels::AdamwStep args_;
};

struct RouterBackwardShape {
  int64_t tokens, experts;
  kernels::RouterRule rule;
  enum { plain, balanced } kind = plain;
};

class RouterBackwardCase : public GradientCase {
 public:
  RouterBackwardCase(const Variant& variant, const RouterBackwardShape& shape)
      : GradientCase(variant) {
    const int64_t top_k = shape.rule.top_k;
    args_.rule = shape.rule;
    args_.affinity = random(scalar(), {shape.tokens, shape.experts},
                            {.stream = 1, .scale = 0.05, .mean = 0.4, .precision = DType::F32});
    std::vector<int32_t> index, rows;
    for (int64_t t = 0; t < shape.tokens; ++t) {
      for (int64_t slot = 0; slot < top_k; ++slot) {
        const bool absent = slot > t % 5;
        index.push_back(absent ? -1 : static_cast<int32_t>((t + slot * 3) % shape.experts));
        rows.push_back(absent ? -1
                              : static_cast<int32_t>(shape.tokens * top_k - 1 - t * top_k - slot));
      }
    }
    args_.index = int_matrix(index, {shape.tokens, top_k});
    args_.row_of_slot = int_matrix(rows, {shape.tokens, top_k});
    args_.d_gate_of_row = number({shape.tokens * top_k}, 2);
    if (shape.kind == RouterBackwardShape::balanced)
      args_.d_affinity = number({shape.tokens, shape.experts}, 3);
    args_.d_logits = changed("d_logits", scalar(), {shape.tokens, shape.experts}, 4);
  }

 private:
  void call(const Context& context) override { kernels::router_backward(context, args_); }
  kernels::RouterBackward args_;
};

}  // namespace

void add_gradient_row_cases(std::vector<OpEntry>& cases) {
  const auto rows = [&]<class Case>(const char* op, std::type_identity<Case>) {
    cases.push_back(gradient_entry<Case>(op, "even", Rows{6, 64}));
    cases.push_back(gradient_entry<Case>(op, "odd", Rows{11, 43}));
    cases.push_back(gradient_entry<Case>(op, "short", Rows{4, 3, 0x1p-63}));
    cases.push_back(gradient_entry<Case>(op, "long", Rows{41, 2051, 4}));
  };
  rows("bias_gradient", std::type_identity<BiasGradientCase>{});
  rows("round_values", std::type_identity<RoundValuesCase>{});
  rows("embedding_backward", std::type_identity<EmbeddingBackwardCase>{});
  rows("cross_entropy_backward", std::type_identity<CrossEntropyCase>{});
  rows("sum_of_squares", std::type_identity<SumOfSquaresCase>{});
  rows("adamw_step", std::type_identity<AdamwCase>{});
  const auto norm = [&](const char* name, Rows shape, bool wants_weight) {
    cases.push_back(
        gradient_entry<RmsNormBackwardCase>("rms_norm_backward", name, shape, wants_weight));
  };
  norm("even", {6, 64}, true);
  norm("odd", {11, 43}, true);
  norm("no_weight", {5, 40}, false);
  norm("denormal_squares", {3, 50, 0x1p-65}, true);
  norm("long", {41, 2051}, true);
  cases.push_back(gradient_entry<RmsNormBackwardCase>("rms_norm_backward", "heads", Rows{36, 22},
                                                      true, int64_t{3}));
  const auto rope = [&](const char* name, RopeBackwardShape shape) {
    cases.push_back(gradient_entry<RopeBackwardCase>("rope_backward", name, shape));
  };
  rope("even", {5, 4, 2, 32});
  rope("odd", {7, 3, 1, 10});
  rope("many_tokens", {150, 4, 4, 34});
  rope("partial", {9, 3, 2, 34, 34, 8});
  rope("neighbours", {20, 3, 3, 22, 13, 5, {12, kernels::RotaryPairs::neighbours}});
  const auto router = [&](const char* name, RouterBackwardShape shape) {
    cases.push_back(gradient_entry<RouterBackwardCase>("router_backward", name, shape));
  };
  using Kind = RouterBackwardShape;
  router("softmax", {9, 21, {.top_k = 4}, Kind::balanced});
  router("normalised", {700, 33, {.top_k = 5, .normalise = true, .scale = 2}});
  router("sigmoid", {30,
                     17,
                     {.score = kernels::ScoreFunction::sigmoid, .top_k = 3, .normalise = true},
                     Kind::balanced});
}

}  // namespace dsmoe::ops

// Every op with a backward, in double, against differences of its forward.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>

#include "gradients/gradient_check.h"

namespace dsmoe::testing {
namespace {

using kernels::PackOrder;

class NormCheck : public GradientCheck {
 public:
  double loss() override {
    kernels::rms_norm_forward(context_, {.x = x_.value, .weight = weight_.value, .out = out_});
    return dot(out_, d_out_);
  }
  void backward() override {
    kernels::rms_norm_backward(context_, {.x = x_.value,
                                          .weight = weight_.value,
                                          .d_out = d_out_,
                                          .sequence_starts = starts_,
                                          .d_x = x_.gradient,
                                          .d_weight = weight_.gradient});
  }

 private:
  TensorView starts_ = ints({0, 2, 2, 5});
  CheckedInput x_ = input("x", random({5, 7}), Law::accumulated);
  CheckedInput weight_ = input("weight", random({7}, {.mean = 1}), Law::accumulated);
  TensorView d_out_ = random({5, 7}), out_ = empty({5, 7});
};

// y = x W^T + b.
class ProductCheck : public GradientCheck {
 public:
  double loss() override {
    pack(weight_.value, packed_);
    kernels::matmul_forward(context_, {.operand = x_.value.dtype,
                                       .x = x_.value,
                                       .weight = packed_,
                                       .bias = bias_.value,
                                       .out = out_});
    return dot(out_, d_out_);
  }
  void backward() override {
    pack(weight_.value, transposed_, PackOrder::transposed);
    kernels::matmul_forward(
        context_,
        {.operand = d_out_.dtype, .x = d_out_, .weight = transposed_, .out = x_.gradient});
    TensorView d_weight = weight_.gradient;
    d_weight.shape = {1, 4, 6};
    kernels::weight_gradient(context_, {.dy = {d_out_},
                                        .x = {x_.value},
                                        .sequence_offsets = ints({0, 2, 2, 5}, {1, 4}),
                                        .d_weight = d_weight});
    kernels::bias_gradient(
        context_, {.dy = d_out_, .sequence_starts = ints({0, 2, 2, 5}), .d_bias = bias_.gradient});
  }

 private:
  CheckedInput x_ = input("x", random({5, 6}), Law::assigned);
  CheckedInput weight_ = input("weight", random({4, 6}), Law::accumulated);
  CheckedInput bias_ = input("bias", random({4}), Law::accumulated);
  TensorView d_out_ = random({5, 4}), out_ = empty({5, 4});
  kernels::WeightStack packed_ = stack(1, 4, 6), transposed_ = stack(1, 6, 4);
};

class EmbeddingCheck : public GradientCheck {
 public:
  double loss() override {
    kernels::embedding_forward(context_, {.ids = ids_, .table = table_.value, .out = out_});
    return dot(out_, d_out_);
  }
  void backward() override {
    kernels::embedding_backward(context_,
                                {.ids = ids_, .d_out = d_out_, .d_table = table_.gradient});
  }

 private:
  TensorView ids_ = ints({3, 1, 3, 3, 0});
  CheckedInput table_ = input("table", random({5, 3}), Law::accumulated);
  TensorView d_out_ = random({5, 3}), out_ = empty({5, 3});
};

class CrossEntropyCheck : public GradientCheck {
 public:
  double loss() override {
    kernels::log_prob_forward(context_,
                              {.logits = logits_.value, .target = target_, .log_prob = log_prob_});
    double sum = 0;
    for (int64_t row = 0; row < 4; ++row) sum -= kScale * log_prob_.as<double>()[row];
    return sum;
  }
  void backward() override {
    kernels::cross_entropy_backward(context_, {.logits = logits_.value,
                                               .target = target_,
                                               .scale = kScale,
                                               .log_prob = log_prob_,
                                               .d_logits = logits_.gradient});
  }

 private:
  static constexpr double kScale = 1.0 / 3;
  TensorView target_ = ints({2, -1, 0, 8});
  CheckedInput logits_ = input("logits", random({4, 9}, {.scale = 2}), Law::assigned);
  TensorView log_prob_ = empty({4});
};

struct Heads {
  int64_t heads, kv_heads, head_dim;
  std::vector<int32_t> documents;
};

// qkv -> rope -> q and KV pages.
class RotatedCheck : public GradientCheck {
 public:
  explicit RotatedCheck(const Heads& heads) : heads_(heads) {
    int32_t token = 0, page = 0;
    std::vector<int32_t> position, slot, starts{0}, table;
    int64_t max_pages = 1;
    for (const int32_t length : heads.documents)
      max_pages = std::max<int64_t>(max_pages, (length + 63) / 64);
    for (const int32_t length : heads.documents) {
      for (int32_t place = 0; place < length; ++place) {
        position.push_back(place);
        slot.push_back(page * 64 + place);  // the pages of a document follow one another
      }
      for (int64_t p = 0; p < max_pages; ++p)
        table.push_back(p < (length + 63) / 64 ? page + static_cast<int32_t>(p) : 0);
      page += (length + 63) / 64;
      starts.push_back(token += length);
    }
    tokens_ = token;
    position_ = ints(position);
    slot_ = ints(slot);
    starts_ = ints(starts);
    page_table_ = ints(table, {static_cast<int64_t>(heads.documents.size()), max_pages});
    pages_ = {.num_pages = page,
              .shape = {.dtype = DType::F64,
                        .heads = heads.kv_heads,
                        .key_width = heads.head_dim,
                        .value_width = heads.head_dim}};
    const auto all_pages = [&](int64_t page_bytes) {
      return arena_.bytes("check", static_cast<std::size_t>(page * page_bytes));
    };
    pages_.keys = all_pages(pages_.shape.key_page_bytes());
    pages_.values = all_pages(pages_.shape.value_page_bytes());
    qkv_ = input("qkv", random({tokens_, row_heads() * heads.head_dim}), Law::assigned);
    q_ = empty({tokens_, heads.heads, heads.head_dim});
    cos_ = arena_.tensor("check", DType::F32, {tokens_, heads.head_dim / 2});
    sin_ = arena_.tensor("check", DType::F32, {tokens_, heads.head_dim / 2});
  }

 protected:
  int64_t row_heads() const { return heads_.heads + 2 * heads_.kv_heads; }
  void set_angle(double per_position) {
    for (int64_t p = 0; p < tokens_; ++p) {
      for (int64_t i = 0; i < heads_.head_dim / 2; ++i) {
        const double angle = per_position * static_cast<double>(p * (i + 1));
        const int64_t at = p * (heads_.head_dim / 2) + i;
        cos_.as<float>()[at] = static_cast<float>(std::cos(angle));
        sin_.as<float>()[at] = static_cast<float>(std::sin(angle));
      }
    }
  }
  void rotate() {
    kernels::rope_forward(context_, {.qkv = qkv_.value,
                                     .cos = cos_,
                                     .sin = sin_,
                                     .position = position_,
                                     .kv_slot = slot_,
                                     .q = q_,
                                     .kv = pages_});
  }
  // What the pages hold of a token: key or value heads.
  double key(int64_t token, int64_t head, int64_t d) const {
    const int64_t slot = slot_.as<int32_t>()[token];
    return static_cast<const double*>(pages_.keys)[pages_.shape.key_offset(slot / 64, head) +
                                                   pages_.shape.key_index(slot % 64, d)];
  }
  double value(int64_t token, int64_t head, int64_t d) const {
    const int64_t slot = slot_.as<int32_t>()[token];
    return static_cast<const double*>(pages_.values)[pages_.shape.value_offset(slot / 64, head) +
                                                     pages_.shape.value_index(slot % 64, d)];
  }

  Heads heads_;
  int64_t tokens_ = 0;
  TensorView position_, slot_, starts_, page_table_, q_, cos_, sin_;
  kernels::KvPages pages_;
  CheckedInput qkv_;
};

class RopeCheck : public RotatedCheck {
 public:
  RopeCheck() : RotatedCheck({.heads = 3, .kv_heads = 1, .head_dim = 4, .documents = {3, 4}}) {
    set_angle(0.7);
    d_out_ = random(qkv_.value.shape);
  }
  double loss() override {
    rotate();
    double sum = 0;
    const double* d = d_out_.as<double>();
    for (int64_t t = 0; t < tokens_; ++t) {
      for (int64_t h = 0; h < row_heads(); ++h) {
        for (int64_t i = 0; i < heads_.head_dim; ++i) {
          const int64_t kv_head = h - heads_.heads;
          const double x = kv_head < 0 ? q_.as<double>()[(t * heads_.heads + h) * 4 + i]
                           : kv_head < heads_.kv_heads ? key(t, kv_head, i)
                                                       : value(t, kv_head - heads_.kv_heads, i);
          sum += *d++ * x;
        }
      }
    }
    return sum;
  }
  void backward() override {
    kernels::rope_backward(context_, {.d_qkv = d_out_,
                                      .cos = cos_,
                                      .sin = sin_,
                                      .position = position_,
                                      .num_heads = heads_.heads,
                                      .num_kv_heads = heads_.kv_heads,
                                      .key_width = heads_.head_dim,
                                      .out = qkv_.gradient});
  }

 private:
  TensorView d_out_;
};

class AttentionCheck : public RotatedCheck {
 public:
  explicit AttentionCheck(const Heads& heads) : RotatedCheck(heads) {
    set_angle(0);
    d_out_ = random(q_.shape);
    out_ = empty(q_.shape);
  }
  double loss() override {
    rotate();
    kernels::attention_forward(context_, {.q = q_,
                                          .kv = pages_,
                                          .q_starts = starts_,
                                          .position = position_,
                                          .page_table = page_table_,
                                          .scale = kScale,
                                          .out = out_});
    return dot(out_, d_out_);
  }
  void backward() override {
    kernels::attention_backward(context_, {.q = q_,
                                           .kv = pages_,
                                           .q_starts = starts_,
                                           .page_table = page_table_,
                                           .scale = kScale,
                                           .out = out_,
                                           .d_out = d_out_,
                                           .d_qkv = qkv_.gradient});
  }

 private:
  static constexpr float kScale = 0.5f;
  TensorView d_out_, out_;
};

// Routed experts through a plan, and shared ones: dispatch, SwiGLU, combine, gates.
class ExpertsCheck : public GradientCheck {
 public:
  double loss() override {
    kernels::plan_build(context_, {.index = index_, .sequence_starts = starts_, .plan = plan_});
    const kernels::ExpertFamily families[] = {
        routed_.forward(*this, plan_.expert_offsets, plan_.token_of_row),
        shared_.forward(*this, range_, {})};
    kernels::experts_up_forward(context_,
                                {.operand = families[0].activation.dtype, .families = families});
    kernels::experts_down_forward(context_,
                                  {.operand = families[0].activation.dtype, .families = families});
    kernels::combine_forward(context_, {.index = index_,
                                        .gate = gate_.value,
                                        .row_of_slot = plan_.row_of_slot,
                                        .routed = routed_.out,
                                        .shared = shared_.out,
                                        .residual = out_,
                                        .store = kernels::Store::assign});
    return dot(out_, d_out_);
  }
  void backward() override {
    const TensorView gate_of_row = empty({kSlots}), d_gate_of_row = empty({kSlots});
    kernels::dispatch_gates(
        context_,
        {.gate = gate_.value, .row_of_slot = plan_.row_of_slot, .gate_of_row = gate_of_row});
    kernels::ExpertFamilyBackward families[] = {
        routed_.backward(*this, plan_.expert_offsets, plan_.token_of_row),
        shared_.backward(*this, range_, {})};
    families[0].gate_of_row = gate_of_row;
    families[0].d_gate_of_row = d_gate_of_row;
    families[0].scaled_activation = empty({kSlots, routed_.width});
    kernels::experts_down_backward(context_,
                                   {.operand = families[0].d_x.dtype, .families = families});
    kernels::experts_up_backward(context_,
                                 {.operand = families[0].d_x.dtype, .families = families});
    routed_.weight_gradients(*this, families[0], plan_.sequence_offsets);
    shared_.weight_gradients(*this, families[1], ints({0, 4, kTokens}, {1, 3}));
    kernels::combine_forward(context_, {.index = index_,
                                        .row_of_slot = plan_.row_of_slot,
                                        .routed = families[0].d_x,
                                        .shared = families[1].d_x,
                                        .residual = x_.gradient,
                                        .store = kernels::Store::assign});
    for (int64_t slot = 0; slot < kSlots; ++slot) {
      const int32_t row = plan_.row_of_slot.as<int32_t>()[slot];
      gate_.gradient.as<double>()[slot] = row < 0 ? 0 : d_gate_of_row.as<double>()[row];
    }
  }

 private:
  static constexpr int64_t kTokens = 6, kTopK = 2, kSlots = kTokens * kTopK, kHidden = 5,
                           kExperts = 4;
  struct Family {
    Family(ExpertsCheck& check, const std::string& name, int64_t experts, int64_t rows_,
           int64_t width_)
        : count(experts), rows(rows_), width(width_) {
      const auto weight = [&](const char* kind, int64_t n, int64_t k) {
        return check.input(name + kind, check.random({experts, n, k}), Law::accumulated);
      };
      gate = weight(".gate", width, kHidden);
      up = weight(".up", width, kHidden);
      down = weight(".down", kHidden, width);
      for (int matrix = 0; matrix < 3; ++matrix) {
        const int64_t n = matrix < 2 ? width : kHidden, k = matrix < 2 ? kHidden : width;
        packed[matrix] = check.stack(experts, n, k);
        transposed[matrix] = check.stack(experts, k, n);
      }
      activation = check.empty({rows, width});
      out = check.empty({rows, kHidden});
      gate_product = check.empty({rows, width});
      up_product = check.empty({rows, width});
    }
    kernels::ExpertFamily forward(ExpertsCheck& check, const TensorView& offsets,
                                  const TensorView& token_of_row) {
      check.pack(gate.value, packed[0]);
      check.pack(up.value, packed[1]);
      check.pack(down.value, packed[2]);
      return {.gate = packed[0],
              .up = packed[1],
              .down = packed[2],
              .offsets = offsets,
              .x = {check.x_.value, token_of_row},
              .activation = activation,
              .out = out,
              .gate_product = gate_product,
              .up_product = up_product};
    }
    kernels::ExpertFamilyBackward backward(ExpertsCheck& check, const TensorView& offsets,
                                           const TensorView& token_of_row) {
      check.pack(gate.value, transposed[0], PackOrder::transposed);
      check.pack(up.value, transposed[1], PackOrder::transposed);
      check.pack(down.value, transposed[2], PackOrder::transposed);
      return {.gate_transposed = transposed[0],
              .up_transposed = transposed[1],
              .down_transposed = transposed[2],
              .offsets = offsets,
              .d_out = {check.d_out_, token_of_row},
              .activation = activation,
              .gate_product = gate_product,
              .up_product = up_product,
              .d_gate_product = check.empty({rows, width}),
              .d_up_product = check.empty({rows, width}),
              .d_x = check.empty({rows, kHidden})};
    }
    void weight_gradients(ExpertsCheck& check, const kernels::ExpertFamilyBackward& family,
                          const TensorView& offsets) {
      const auto add = [&](const kernels::Rows& dy, const kernels::Rows& x,
                           const TensorView& d_weight) {
        kernels::weight_gradient(
            check.context_, {.dy = dy, .x = x, .sequence_offsets = offsets, .d_weight = d_weight});
      };
      const kernels::Rows x{check.x_.value, family.d_out.index};
      add({family.d_gate_product}, x, gate.gradient);
      add({family.d_up_product}, x, up.gradient);
      add(family.d_out, {family.scaled_activation ? family.scaled_activation : family.activation},
          down.gradient);
    }

    int64_t count, rows, width;
    CheckedInput gate, up, down;
    TensorView activation, out, gate_product, up_product;
    kernels::WeightStack packed[3], transposed[3];  // gate, up, down
  };

  // Expert 2 gets nobody, token 3 has one expert only.
  TensorView index_ = ints({0, 1, 3, 0, 1, 0, 3, -1, 0, 3, 1, 3}, {kTokens, kTopK});
  TensorView starts_ = ints({0, 4, kTokens}), range_ = ints({0, kTokens});
  kernels::DispatchPlan plan_{
      .expert_offsets = ints(std::vector<int32_t>(kExperts + 1)),
      .sequence_offsets = ints(std::vector<int32_t>(kExperts * 3), {kExperts, 3}),
      .token_of_row = ints(std::vector<int32_t>(kSlots)),
      .row_of_slot = ints(std::vector<int32_t>(kSlots), {kTokens, kTopK})};
  CheckedInput x_ = input("x", random({kTokens, kHidden}), Law::assigned);
  CheckedInput gate_ = input("gate", random({kTokens, kTopK}), Law::assigned);
  Family routed_{*this, "routed", kExperts, kSlots, 3}, shared_{*this, "shared", 1, kTokens, 4};
  TensorView d_out_ = random({kTokens, kHidden}), out_ = empty({kTokens, kHidden});
};

class RouterCheck : public GradientCheck {
 public:
  explicit RouterCheck(const kernels::RouterRule& rule) : rule_(rule) {
    index_ = ints(std::vector<int32_t>(kTokens * rule.top_k), {kTokens, rule.top_k});
    gate_ = empty({kTokens, rule.top_k});
    d_gate_ = random({kTokens * rule.top_k});
  }
  double loss() override {
    pack(centroids_.value, packed_);
    kernels::router_forward(context_, {.rule = rule_,
                                       .x = x_.value,
                                       .centroids = packed_,
                                       .selection_bias = bias_,
                                       .experts_of_token = experts_of_token_,
                                       .affinity = affinity_,
                                       .index = index_,
                                       .gate = gate_,
                                       .bad_token = bad_token_});
    return dot(gate_, d_gate_);
  }
  void backward() override {
    std::vector<int32_t> rows;  // a slot is its own row
    for (int32_t slot = 0; slot < kTokens * rule_.top_k; ++slot)
      rows.push_back(index_.as<int32_t>()[slot] < 0 ? -1 : slot);
    const TensorView d_logits = empty({kTokens, kExperts});
    kernels::router_backward(context_, {.rule = rule_,
                                        .affinity = affinity_,
                                        .index = index_,
                                        .row_of_slot = ints(rows, {kTokens, rule_.top_k}),
                                        .d_gate_of_row = d_gate_,
                                        .d_logits = d_logits});
    pack(centroids_.value, transposed_, PackOrder::transposed);
    kernels::matmul_forward(
        context_,
        {.operand = d_logits.dtype, .x = d_logits, .weight = transposed_, .out = x_.gradient});
    TensorView d_centroids = centroids_.gradient;
    d_centroids.shape = {1, kExperts, kHidden};
    kernels::weight_gradient(context_, {.dy = {d_logits},
                                        .x = {x_.value},
                                        .sequence_offsets = ints({0, kTokens}, {1, 2}),
                                        .d_weight = d_centroids});
  }
  std::vector<int64_t> choice() const override {
    return {index_.as<int32_t>(), index_.as<int32_t>() + index_.num_elements()};
  }

 private:
  static constexpr int64_t kTokens = 6, kExperts = 8, kHidden = 5;
  kernels::RouterRule rule_;
  CheckedInput x_ = input("x", random({kTokens, kHidden}), Law::assigned);
  CheckedInput centroids_ = input("centroids", random({kExperts, kHidden}), Law::accumulated);
  TensorView bias_ = random({kExperts}, {.scale = 0.1});
  TensorView experts_of_token_ = ints({2, 1, 2, 0, 2, 2}), bad_token_ = ints({0});
  TensorView affinity_ = empty({kTokens, kExperts}), index_, gate_, d_gate_;
  kernels::WeightStack packed_ = stack(1, kExperts, kHidden),
                       transposed_ = stack(1, kHidden, kExperts);
};

class BalanceCheck : public GradientCheck {
 public:
  explicit BalanceCheck(kernels::ScoreFunction score) : score_(score) {}
  double loss() override { return run(ignored_); }
  void backward() override { run(affinity_.gradient); }

 private:
  double run(const TensorView& d_affinity) {
    std::fill_n(losses_.as<double>(), 2, 0.0);
    kernels::balance_loss(context_, {.score = score_,
                                     .sequences_per_group = 2,
                                     .alpha = 0.3,
                                     .device_alpha = 0.2,
                                     .num_devices = 3,
                                     .group_weight = 0.5,
                                     .affinity = affinity_.value,
                                     .index = index_,
                                     .sequence_starts = starts_,
                                     .d_affinity = d_affinity,
                                     .losses = losses_});
    return losses_.as<double>()[0] + losses_.as<double>()[1];
  }
  kernels::ScoreFunction score_;
  TensorView index_ = ints({0, 1, 5, 0, 2, -1, 3, 4, 0, 2, 5, 1}, {6, 2});
  TensorView starts_ = ints({0, 1, 4, 6});
  CheckedInput affinity_ =
      input("affinity", random({6, 6}, {.scale = 0.05, .mean = 0.4}), Law::assigned);
  TensorView ignored_ = empty({6, 6}), losses_ = empty({2});
};

class ZLossCheck : public GradientCheck {
 public:
  double loss() override { return run(ignored_); }
  void backward() override { run(logits_.gradient); }

 private:
  double run(const TensorView& d_logits) {
    *loss_.as<double>() = 0;
    kernels::router_z_loss(context_, {.weight = 0.25,
                                      .logits = logits_.value,
                                      .is_counted = counted_,
                                      .d_logits = d_logits,
                                      .loss = loss_});
    return *loss_.as<double>();
  }
  TensorView counted_ = ints({1, 0, 1});
  CheckedInput logits_ = input("logits", random({3, 7}, {.scale = 2}), Law::accumulated);
  TensorView ignored_ = empty({3, 7}), loss_ = empty({1});
};

struct Op {
  std::string name;
  std::function<std::unique_ptr<GradientCheck>()> make;
};

template <class Check, class... Args>
Op op(const char* name, Args... args) {
  return {name,
          [=]() -> std::unique_ptr<GradientCheck> { return std::make_unique<Check>(args...); }};
}

std::vector<Op> ops() {
  using kernels::RouterRule;
  using kernels::ScoreFunction;
  constexpr ScoreFunction sigmoid = ScoreFunction::sigmoid;
  const RouterRule grouped{.score = sigmoid,
                           .top_k = 2,
                           .num_groups = 4,
                           .top_groups = 2,
                           .group_score = kernels::GroupScore::sum_of_best_two,
                           .normalise = true,
                           .scale = 2.5f,
                           .scale_gates = kernels::ScaleGates::always};
  return {
      op<NormCheck>("rms_norm"),
      op<ProductCheck>("product"),
      op<EmbeddingCheck>("embedding"),
      op<CrossEntropyCheck>("cross_entropy"),
      op<RopeCheck>("rope"),
      op<AttentionCheck>("attention", Heads{2, 2, 6, {1, 5, 9}}),
      op<AttentionCheck>("attention_grouped", Heads{4, 2, 4, {3, 8}}),
      op<AttentionCheck>("attention_two_blocks", Heads{2, 1, 4, {67, 2}}),
      op<ExpertsCheck>("experts"),
      op<RouterCheck>("router_softmax", RouterRule{.top_k = 2, .scale = 1.5f}),
      op<RouterCheck>("router_softmax_normalised", RouterRule{.top_k = 2, .normalise = true}),
      op<RouterCheck>("router_sigmoid", RouterRule{.score = sigmoid, .top_k = 2}),
      op<RouterCheck>("router_sigmoid_groups", grouped),
      op<BalanceCheck>("balance_softmax", ScoreFunction::softmax),
      op<BalanceCheck>("balance_sigmoid", sigmoid),
      op<ZLossCheck>("z_loss"),
  };
}

class Gradients : public ::testing::TestWithParam<Op> {
 protected:
  Comparison compared(Damage damage) {
    const auto check = GetParam().make();
    num_inputs_ = check->inputs().size();
    return compare_with_differences(*check, damage, /*max_elements=*/200);
  }
  std::size_t num_inputs_ = 0;
};

TEST_P(Gradients, EqualDifferences) {
  const Comparison comparison = compared(Damage::none);
  EXPECT_FALSE(comparison.choice_changed) << "take another seed";
  EXPECT_EQ(comparison.report, "");
}

TEST_P(Gradients, ControlIsSeen) {
  EXPECT_EQ(compared(Damage::one_entry).wrong.size(), num_inputs_);
}

INSTANTIATE_TEST_SUITE_P(Ops, Gradients, ::testing::ValuesIn(ops()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace dsmoe::testing

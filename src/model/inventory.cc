// What a model holds, as a list of stacks; all else follows from it.
#include "model/inventory.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "moe/exchange.h"

namespace dsmoe::model {

using tensor::TensorSpec;
using tensor::WeightCoding;

namespace {

WeightCoding coding_of(const Quantization& quantization, Kind kind) {
  if (kind == Kind::projection) return quantization.projections;
  return kind == Kind::head ? quantization.head : WeightCoding::plain;
}

class StackList {
 public:
  explicit StackList(const ModelConfig& config) : config_(config) {}

  void add(std::vector<Stack::Part> parts, int64_t columns = 0, int64_t count = 1) {
    const Role role = parts.front().role;
    stacks_.push_back({.role = role,
                       .layer = layer_,
                       .count = count,
                       .columns = columns,
                       .parts = std::move(parts),
                       .group = stacks_.size(),
                       .coding = coding_of(config_.quantization, kind_of(role))});
  }
  void add_experts(const Role (&roles)[3], int64_t count, int64_t width) {
    const std::size_t group = stacks_.size();
    add({{roles[0], width}}, config_.hidden_size, count);
    add({{roles[1], width}}, config_.hidden_size, count);
    add({{roles[2], config_.hidden_size}}, width, count);
    for (std::size_t i = group; i < stacks_.size(); ++i) stacks_[i].group = group;
  }
  void tie_head() {
    add({{Role::embedding, config_.vocab_size}}, config_.hidden_size);
    stacks_.back().role = Role::head;
  }

  void set_layer(int64_t layer) { layer_ = layer; }
  std::vector<Stack> take() { return std::move(stacks_); }

 private:
  const ModelConfig& config_;
  int64_t layer_ = -1;
  std::vector<Stack> stacks_;
};

constexpr Role kRouted[] = {Role::routed_gate, Role::routed_up, Role::routed_down};
constexpr Role kShared[] = {Role::shared_gate, Role::shared_up, Role::shared_down};
constexpr Role kDense[] = {Role::dense_gate, Role::dense_up, Role::dense_down};

void add_latent_attention(StackList& list, const attention::Shape& shape) {
  const attention::Latent& latent = shape.latent;
  const int64_t q = shape.heads * latent.key();
  const Role first = latent.q_rank > 0 ? Role::query_down : Role::query;
  list.add({{Role::attention_norm, shape.hidden}});
  list.add({{first, shape.q_part()}, {Role::key_value_down, latent.kv_rank + latent.rope}},
           shape.hidden);
  if (latent.q_rank > 0) {
    list.add({{Role::query_down_norm, latent.q_rank}});
    list.add({{Role::query_up, q}}, latent.q_rank);
  }
  list.add({{Role::key_value_norm, latent.kv_rank}});
  list.add({{Role::key_value_up, shape.heads * (latent.nope + latent.value)}}, latent.kv_rank);
  list.add({{Role::attention_out, shape.hidden}}, shape.merged_width());
}

void add_attention(StackList& list, const ModelConfig& config) {
  const attention::Shape shape = config.attention_shape();
  if (shape.latent) return add_latent_attention(list, shape);
  const int64_t d = shape.hidden, q = shape.q_width(), k = shape.k_width();
  const int64_t v = shape.kv.heads * shape.kv.value_width;
  list.add({{Role::attention_norm, d}});
  list.add({{Role::query, q}, {Role::key, k}, {Role::value, v}}, d);
  list.add({{Role::attention_out, d}}, shape.out_width());
  if (shape.has_qk_norm) {
    list.add({{Role::query_norm, shape.kv.key_width}});
    list.add({{Role::key_norm, shape.kv.key_width}});
  }
  if (!config.attention_bias) return;
  list.add({{Role::query_bias, q}, {Role::key_bias, k}, {Role::value_bias, v}});
  if (config.attention_out_bias) list.add({{Role::attention_out_bias, d}});
}

void add_ffn(StackList& list, const ModelConfig& config, int64_t layer, const Share& share) {
  list.add({{Role::ffn_norm, config.hidden_size}});
  if (!config.is_moe_layer(layer)) {
    list.add_experts(kDense, 1, config.intermediate_size);
    return;
  }
  list.add({{Role::router, config.n_routed_experts}}, config.hidden_size);
  if (config.topk_method == TopkMethod::noaux_tc) {
    list.add({{Role::selection_bias, config.n_routed_experts}});
  }
  list.add_experts(kRouted, share.num_experts, config.moe_intermediate_size);
  if (config.n_shared_experts > 0) list.add_experts(kShared, 1, config.shared_width());
  if (config.shared_expert_gate) list.add({{Role::shared_expert_gate, 1}}, config.hidden_size);
}

bool is_one_of(const Role (&roles)[3], Role role) {
  return std::count(std::begin(roles), std::end(roles), role) > 0;
}
bool is_routed(Role role) { return is_one_of(kRouted, role); }

Parameter parameter_of(const Stack& stack, const Stack::Part& part) {
  const Kind kind = kind_of(part.role);
  const bool is_vector = stack.columns == 0;
  Parameter parameter{
      .role = part.role,
      .layer = stack.layer,
      .shape = is_vector ? tensor::Shape{part.rows} : tensor::Shape{part.rows, stack.columns},
      .coding = stack.coding};
  if (is_vector) {
    parameter.initial = kind == Kind::norm ? Initial::ones : Initial::zeros;
    parameter.update = Update::undecayed;
  }
  if (kind == Kind::selection_bias) {
    parameter.update = Update::by_load;
    parameter.is_always_f32 = true;
  }
  return parameter;
}

}  // namespace

Share share_of(const ModelConfig& config, int64_t rank, int64_t ranks) {
  DSMOE_CHECK(0 <= rank && rank < ranks, "rank {} of {}", rank, ranks);
  const int64_t first = moe::first_expert(config.n_routed_experts, rank, ranks);
  return {.rank = rank,
          .ranks = ranks,
          .first_expert = first,
          .num_experts = moe::first_expert(config.n_routed_experts, rank + 1, ranks) - first};
}

Kind kind_of(Role role) {
  switch (role) {
    case Role::embedding:
      return Kind::embedding;
    case Role::head:
      return Kind::head;
    case Role::router:
    case Role::shared_expert_gate:
      return Kind::router;
    case Role::selection_bias:
      return Kind::selection_bias;
    case Role::attention_norm:
    case Role::query_norm:
    case Role::key_norm:
    case Role::query_down_norm:
    case Role::key_value_norm:
    case Role::ffn_norm:
    case Role::final_norm:
      return Kind::norm;
    case Role::query_bias:
    case Role::key_bias:
    case Role::value_bias:
    case Role::attention_out_bias:
      return Kind::bias;
    default:
      return Kind::projection;
  }
}

bool is_expert(Role role) {
  return is_routed(role) || is_one_of(kShared, role) || is_one_of(kDense, role);
}

int64_t Stack::rows() const {
  int64_t sum = 0;
  for (const Part& part : parts) sum += part.rows;
  return sum;
}

tensor::Shape Stack::shape() const {
  return columns == 0 ? tensor::Shape{rows()} : tensor::Shape{rows(), columns};
}

std::vector<Stack> stacks(const ModelConfig& config, const Share& share) {
  StackList list(config);
  list.add({{Role::embedding, config.vocab_size}}, config.hidden_size);
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    list.set_layer(layer);
    add_attention(list, config);
    add_ffn(list, config, layer, share);
  }
  list.set_layer(-1);
  list.add({{Role::final_norm, config.hidden_size}});
  if (config.tie_word_embeddings) {
    list.tie_head();
  } else {
    list.add({{Role::head, config.vocab_size}}, config.hidden_size);
  }
  return list.take();
}

Inventory inventory(const ModelConfig& config, const Share& share) {
  Inventory all{.stacks = stacks(config, share)};
  const auto add = [&](std::size_t stack_idx, int64_t matrix) {
    const Stack& stack = all.stacks[stack_idx];
    int64_t row = 0;
    for (const Stack::Part& part : stack.parts) {
      Place place{.stack = stack_idx, .matrix = matrix, .row_begin = row};
      if (!stack.repeats_embedding()) {  // which is the first of all
        place.parameter = all.parameters.size();
        Parameter& added = all.parameters.emplace_back(parameter_of(stack, part));
        if (is_routed(part.role)) added.expert = share.first_expert + matrix;
        added.name = name_of(kDeepseekNames, part.role, added.layer, added.expert);
      }
      all.places.push_back(place);
      row += part.rows;
    }
  };
  for (std::size_t begin = 0, end = 0; begin < all.stacks.size(); begin = end) {
    while (end < all.stacks.size() && all.stacks[end].group == begin) ++end;
    for (int64_t matrix = 0; matrix < all.stacks[begin].count; ++matrix) {
      for (std::size_t i = begin; i < end; ++i) add(i, matrix);
    }
  }
  return all;
}

int64_t elements_per_token(const ModelConfig& config, const Stack& stack) {
  const int64_t count = is_routed(stack.role) ? config.num_experts_per_tok : stack.count;
  return count * stack.num_elements();
}

std::vector<TensorSpec> stored_specs(const ModelConfig& config, const Parameter& parameter) {
  const std::string& name = parameter.name;
  const tensor::Shape& shape = parameter.shape;
  if (parameter.coding == WeightCoding::plain) {
    return {{name, stored_type(parameter, config.torch_dtype), shape}};
  }
  return {tensor::coded_spec(parameter.coding, name, shape[0], shape[1]),
          tensor::scale_spec(name, shape[0], shape[1])};
}

}  // namespace dsmoe::model

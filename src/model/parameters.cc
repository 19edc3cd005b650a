// Names of stored tensors -> places in memory.
#include "model/parameters.h"

#include <algorithm>

#include "kernels/checks.h"
#include "kernels/pack.h"

namespace dsmoe::model {
namespace {

class Loader {
 public:
  Loader(const Context& context, DType operand, TensorSource& source, tensor::Arena& arena)
      : context_(context),
        operand_(operand),
        scalar_(kernels::scalar_type(operand)),
        source_(source),
        arena_(arena) {}

  // A vector, or a table that is looked up by rows.
  TensorView values(const std::string& what, const std::string& name, DType dtype) {
    const TensorView stored = source_.tensor(name);
    TensorView target = arena_.tensor(what, dtype, stored.shape);
    convert_rows(stored, target);
    source_.release(name);
    return target;
  }

  TensorView scalars(const std::string& what, const std::string& name) {
    return values(what, name, scalar_);
  }

  WeightStack operand_stack(const std::string& what, int64_t count, int64_t n, int64_t k) {
    return stack(what, operand_, count, n, k);
  }

  WeightStack stack(const std::string& what, DType dtype, int64_t count, int64_t n, int64_t k) {
    WeightStack stack{.dtype = dtype,
                      .layout = context_.table->weight_layout,
                      .device = arena_.device(),
                      .count = count,
                      .n = n,
                      .k = k};
    stack.data = arena_.bytes(what, stack.num_bytes());
    return stack;
  }

  void pack(const std::string& name, const WeightStack& target, int64_t matrix_idx = 0,
            int64_t row_begin = 0) {
    kernels::pack_weight(context_, {.source = source_.tensor(name),
                                    .target = target,
                                    .matrix_idx = matrix_idx,
                                    .row_begin = row_begin});
    source_.release(name);
  }

  WeightStack matrix(const std::string& what, const std::string& name, int64_t n, int64_t k) {
    const WeightStack target = operand_stack(what, 1, n, k);
    pack(name, target);
    return target;
  }

  WeightStack centroids(const std::string& name, int64_t experts, int64_t hidden) {
    const WeightStack target = stack("router", scalar_, 1, experts, hidden);
    pack(name, target);
    return target;
  }

  // prefix0.gate_proj.weight, prefix0.up_proj.weight, ...: one matrix of each stack per expert.
  moe::ExpertWeights experts(const std::string& what, const std::string& prefix, int64_t count,
                             int64_t width, int64_t hidden) {
    const moe::ExpertWeights weights = expert_stacks(what, count, width, hidden);
    for (int64_t e = 0; e < count; ++e) pack_expert(prefix + std::to_string(e) + ".", weights, e);
    return weights;
  }

  moe::ExpertWeights expert(const std::string& what, const std::string& prefix, int64_t width,
                            int64_t hidden) {
    const moe::ExpertWeights weights = expert_stacks(what, 1, width, hidden);
    pack_expert(prefix, weights, 0);
    return weights;
  }

  // Several stored vectors end to end.
  TensorView joined(const std::string& what, std::initializer_list<std::string> names) {
    int64_t size = 0;
    for (const std::string& name : names) size += source_.tensor(name).dim(0);
    TensorView target = arena_.tensor(what, scalar_, {size});
    int64_t begin = 0;
    for (const std::string& name : names) {
      const TensorView stored = source_.tensor(name);
      convert_rows(stored, target.rows(begin, begin + stored.dim(0)));
      begin += stored.dim(0);
      source_.release(name);
    }
    return target;
  }

 private:
  moe::ExpertWeights expert_stacks(const std::string& what, int64_t count, int64_t width,
                                   int64_t hidden) {
    return {.gate = operand_stack(what, count, width, hidden),
            .up = operand_stack(what, count, width, hidden),
            .down = operand_stack(what, count, hidden, width)};
  }

  void pack_expert(const std::string& prefix, const moe::ExpertWeights& weights,
                   int64_t expert_idx) {
    pack(prefix + "gate_proj.weight", weights.gate, expert_idx);
    pack(prefix + "up_proj.weight", weights.up, expert_idx);
    pack(prefix + "down_proj.weight", weights.down, expert_idx);
  }

  void convert_rows(const TensorView& stored, const TensorView& target) {
    // Through a bounded host buffer, so that a table on a device needs no second copy in host
    // memory.
    const int64_t rows = stored.dim(0);
    const int64_t row_elements = rows > 0 ? stored.num_elements() / rows : 0;
    const int64_t chunk =
        std::max<int64_t>(1, (int64_t{4} << 20) / std::max<int64_t>(1, row_elements * 8));
    std::vector<std::byte> buffer;
    for (int64_t begin = 0; begin < rows; begin += chunk) {
      const TensorView part = target.rows(begin, std::min(rows, begin + chunk));
      buffer.resize(part.num_bytes());
      TensorView host = part;
      host.data = buffer.data();
      host.device = kernels::Device::cpu;
      kernels::convert_elements(stored.rows(begin, std::min(rows, begin + chunk)), host);
      kernels::upload(context_, buffer.data(), part);
    }
  }

  const Context& context_;
  DType operand_;
  DType scalar_;
  TensorSource& source_;
  tensor::Arena& arena_;
};

AttentionWeights load_attention(Loader& loader, const ModelConfig& config,
                                const std::string& prefix) {
  const int64_t q = config.q_width();
  const int64_t kv = config.kv_width();
  AttentionWeights weights;
  weights.qkv = loader.operand_stack("attention", 1, q + 2 * kv, config.hidden_size);
  loader.pack(prefix + "q_proj.weight", weights.qkv, 0, 0);
  loader.pack(prefix + "k_proj.weight", weights.qkv, 0, q);
  loader.pack(prefix + "v_proj.weight", weights.qkv, 0, q + kv);
  weights.out = loader.matrix("attention", prefix + "o_proj.weight", config.hidden_size, q);
  if (config.attention_bias) {
    weights.qkv_bias = loader.joined(
        "attention", {prefix + "q_proj.bias", prefix + "k_proj.bias", prefix + "v_proj.bias"});
    weights.out_bias = loader.scalars("attention", prefix + "o_proj.bias");
  }
  return weights;
}

moe::LayerWeights load_ffn(Loader& loader, const ModelConfig& config, int64_t layer,
                           const std::string& prefix) {
  const int64_t hidden = config.hidden_size;
  moe::LayerWeights weights;
  if (!config.is_moe_layer(layer)) {
    weights.shared = loader.expert("dense layers", prefix, config.intermediate_size, hidden);
    return weights;
  }
  weights.centroids = loader.centroids(prefix + "gate.weight", config.n_routed_experts, hidden);
  if (config.topk_method == TopkMethod::noaux_tc) {
    weights.selection_bias = loader.scalars("router", prefix + "gate.e_score_correction_bias");
  }
  weights.routed = loader.experts("routed experts", prefix + "experts.", config.n_routed_experts,
                                  config.moe_intermediate_size, hidden);
  if (config.n_shared_experts > 0) {
    weights.shared =
        loader.expert("shared experts", prefix + "shared_experts.", config.shared_width(), hidden);
  }
  return weights;
}

}  // namespace

Parameters load_parameters(const Context& context, const ModelConfig& config, DType operand,
                           TensorSource& source, tensor::Arena& arena) {
  Loader loader(context, operand, source, arena);
  Parameters parameters;
  const std::string embedding = "model.embed_tokens.weight";
  // A tied head packs the same stored tensor, so it goes first and the table releases it.
  parameters.head = loader.matrix("head", config.tie_word_embeddings ? embedding : "lm_head.weight",
                                  config.vocab_size, config.hidden_size);
  parameters.embedding = loader.values("embedding", embedding, operand);
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    BlockWeights block;
    block.attention_norm = loader.scalars("norms", prefix + "input_layernorm.weight");
    block.attention = load_attention(loader, config, prefix + "self_attn.");
    block.ffn_norm = loader.scalars("norms", prefix + "post_attention_layernorm.weight");
    block.ffn = load_ffn(loader, config, layer, prefix + "mlp.");
    parameters.blocks.push_back(std::move(block));
  }
  parameters.final_norm = loader.scalars("norms", "model.norm.weight");
  return parameters;
}

}  // namespace dsmoe::model

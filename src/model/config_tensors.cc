// What follows from a configuration: tensor names and shapes, parameter counts, memory and work per
// token.
#include "base/error.h"
#include "model/config.h"

namespace dsmoe::model {
namespace {

using tensor::DType;
using tensor::Shape;
using tensor::TensorSpec;

class TensorList {
 public:
  TensorList(const ModelConfig& config, int64_t count)
      : dtype_(config.torch_dtype), quantization_(config.quantization) {
    specs_.reserve(static_cast<std::size_t>(count));
  }

  void add(std::string name, Shape shape) {
    const tensor::WeightCoding coding = coding_of(quantization_, name);
    if (coding == tensor::WeightCoding::plain) {
      specs_.push_back({std::move(name), dtype_, shape});
      return;
    }
    specs_.push_back(tensor::coded_spec(coding, name, shape[0], shape[1]));
    specs_.push_back(tensor::scale_spec(name, shape[0], shape[1]));
  }
  void add_f32(std::string name, Shape shape) {
    specs_.push_back({std::move(name), DType::F32, shape});
  }

  // gate and up [width, hidden], down [hidden, width].
  void add_mlp(const std::string& prefix, int64_t hidden, int64_t width) {
    add(prefix + ".gate_proj.weight", {width, hidden});
    add(prefix + ".up_proj.weight", {width, hidden});
    add(prefix + ".down_proj.weight", {hidden, width});
  }

  std::vector<TensorSpec> take() { return std::move(specs_); }

 private:
  DType dtype_;
  Quantization quantization_;
  std::vector<TensorSpec> specs_;
};

void add_attention(TensorList& list, const ModelConfig& config, const std::string& prefix) {
  const int64_t d = config.hidden_size;
  const auto add_projection = [&](const char* name, int64_t rows, int64_t columns) {
    list.add(prefix + name + ".weight", {rows, columns});
    if (config.attention_bias) list.add(prefix + name + ".bias", {rows});
  };
  add_projection("q_proj", config.q_width(), d);
  add_projection("k_proj", config.kv_width(), d);
  add_projection("v_proj", config.kv_width(), d);
  add_projection("o_proj", d, config.q_width());
}

void add_moe(TensorList& list, const ModelConfig& config, const std::string& prefix) {
  list.add(prefix + ".gate.weight", {config.n_routed_experts, config.hidden_size});
  if (config.topk_method == TopkMethod::noaux_tc) {
    list.add_f32(prefix + ".gate.e_score_correction_bias", {config.n_routed_experts});
  }
  for (int64_t expert = 0; expert < config.n_routed_experts; ++expert) {
    list.add_mlp(fmt::format("{}.experts.{}", prefix, expert), config.hidden_size,
                 config.moe_intermediate_size);
  }
  if (config.n_shared_experts > 0) {
    list.add_mlp(prefix + ".shared_experts", config.hidden_size, config.shared_width());
  }
}

// Numbers in the matrices of one layer that a token meets with `num_experts` routed experts.
int64_t layer_matrix_parameters(const ModelConfig& config, int64_t layer, int64_t num_experts) {
  const int64_t d = config.hidden_size;
  const int64_t attention = 2 * d * (config.q_width() + config.kv_width());
  if (!config.is_moe_layer(layer)) return attention + 3 * d * config.intermediate_size;
  const int64_t experts =
      3 * d * (num_experts * config.moe_intermediate_size + config.shared_width());
  return attention + config.n_routed_experts * d + experts;
}

int64_t layer_vector_parameters(const ModelConfig& config, int64_t layer) {
  const int64_t norms = 2 * config.hidden_size;
  const int64_t biases =
      config.attention_bias ? config.q_width() + 2 * config.kv_width() + config.hidden_size : 0;
  const bool has_selection_bias =
      config.is_moe_layer(layer) && config.topk_method == TopkMethod::noaux_tc;
  return norms + biases + (has_selection_bias ? config.n_routed_experts : 0);
}

int64_t count_parameters(const ModelConfig& config, int64_t num_experts) {
  const int64_t num_tables = config.tie_word_embeddings ? 1 : 2;
  int64_t count = num_tables * config.vocab_size * config.hidden_size + config.hidden_size;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    count += layer_matrix_parameters(config, layer, num_experts) +
             layer_vector_parameters(config, layer);
  }
  return count;
}

}  // namespace

int64_t ModelConfig::num_moe_layers() const {
  int64_t count = 0;
  for (int64_t layer = 0; layer < num_hidden_layers; ++layer) count += is_moe_layer(layer) ? 1 : 0;
  return count;
}

int64_t ModelConfig::num_parameters() const { return count_parameters(*this, n_routed_experts); }

int64_t ModelConfig::num_active_parameters() const {
  return count_parameters(*this, num_experts_per_tok);
}

int64_t ModelConfig::num_tensors() const {
  const int64_t per_layer = 2 + (attention_bias ? 8 : 4);
  const int64_t per_moe = 1 + (topk_method == TopkMethod::noaux_tc ? 1 : 0) + 3 * n_routed_experts +
                          (n_shared_experts > 0 ? 3 : 0);
  const int64_t num_moe = num_moe_layers();
  const int64_t plain = (tie_word_embeddings ? 2 : 3) + num_hidden_layers * per_layer +
                        num_moe * per_moe + (num_hidden_layers - num_moe) * 3;
  if (!quantization) return plain;
  const int64_t per_moe_mlp = 3 * n_routed_experts + (n_shared_experts > 0 ? 3 : 0);
  const int64_t num_scales = 4 * num_hidden_layers + num_moe * per_moe_mlp +
                             (num_hidden_layers - num_moe) * 3 +
                             (quantization.head != tensor::WeightCoding::plain ? 1 : 0);
  return plain + num_scales;
}

tensor::WeightCoding coding_of(const Quantization& quantization, std::string_view name) {
  if (name.ends_with("_proj.weight")) return quantization.projections;
  if (name == "lm_head.weight") return quantization.head;
  return tensor::WeightCoding::plain;
}

int64_t ModelConfig::kv_bytes_per_token(DType dtype) const {
  return 2 * num_hidden_layers * kv_width() * static_cast<int64_t>(tensor::size_of(dtype));
}

double ModelConfig::forward_flops_per_token(int64_t context) const {
  double weights = static_cast<double>(vocab_size) * static_cast<double>(hidden_size);
  for (int64_t layer = 0; layer < num_hidden_layers; ++layer) {
    weights += static_cast<double>(layer_matrix_parameters(*this, layer, num_experts_per_tok));
  }
  const double attention =
      4.0 * static_cast<double>(num_hidden_layers * q_width()) * static_cast<double>(context);
  return 2.0 * weights + attention;
}

std::vector<TensorSpec> expected_tensors(const ModelConfig& config) {
  const int64_t d = config.hidden_size;
  TensorList list(config, config.num_tensors());
  list.add("model.embed_tokens.weight", {config.vocab_size, d});
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}", layer);
    list.add(prefix + ".input_layernorm.weight", {d});
    add_attention(list, config, prefix + ".self_attn.");
    list.add(prefix + ".post_attention_layernorm.weight", {d});
    if (config.is_moe_layer(layer)) {
      add_moe(list, config, prefix + ".mlp");
    } else {
      list.add_mlp(prefix + ".mlp", d, config.intermediate_size);
    }
  }
  list.add("model.norm.weight", {d});
  if (!config.tie_word_embeddings) list.add("lm_head.weight", {config.vocab_size, d});
  return list.take();
}

}  // namespace dsmoe::model

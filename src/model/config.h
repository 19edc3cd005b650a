// ModelConfig: config.json of a DeepSeekMoE model, every field checked, and what follows from it by
// arithmetic.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attention/shape.h"
#include "model/format.h"
#include "tensor/quantised.h"
#include "tensor/tensor_spec.h"

namespace dsmoe::model {

// A config.json longer than this is refused before it is read.
inline constexpr std::size_t kMaxConfigBytes = std::size_t{1} << 20;

enum class ScoringFunc { softmax, sigmoid };
// greedy: the K best scores. group_limited_greedy (V2): only in the topk_group groups of best
// maximum. noaux_tc (V3): selection by score + e_score_correction_bias, group score = sum of the
// best two.
enum class TopkMethod { greedy, group_limited_greedy, noaux_tc };
enum class RopeKind { plain, linear, dynamic, yarn };

std::string_view name_of(ScoringFunc value);
std::string_view name_of(TopkMethod value);
std::string_view name_of(RopeKind value);

// Which weights are integers (tensor/quantised.h). Embedding, router, norms and biases never are.
struct Quantization {
  tensor::WeightCoding projections = tensor::WeightCoding::plain;  // of attention and experts
  tensor::WeightCoding head = tensor::WeightCoding::plain;         // plain when tied

  explicit operator bool() const { return projections != tensor::WeightCoding::plain; }
};

// How `yarn` blends frequencies, and what it makes of scores.
struct Yarn {
  int64_t original_positions = 0;  // original_max_position_embeddings
  double beta_fast = 32;
  double beta_slow = 1;
  double mscale = 0;  // 0: absent, like the next
  double mscale_all_dim = 0;
  double attention_factor = 0;
  bool truncate = true;
};

// Names are those of config.json; defaults are those of the published configuration class. A zero
// size has no default and must be set. After parse_config or check() every value lies in its range
// and products of sizes cannot overflow.
struct ModelConfig {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;  // divides num_attention_heads; absent in the file: equal to it
  int64_t head_dim = 0;             // even; absent in the file: hidden_size / num_attention_heads
  int64_t intermediate_size = 0;    // width of a dense layer's MLP; 0 only if every layer is MoE
  int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  bool attention_bias = false;     // on q, k, v and o
  bool attention_out_bias = true;  // on o too, where attention_bias
  bool use_qk_norm = false;
  double partial_rotary_factor = 1.0;  // of head_dim: what turns
  bool tie_word_embeddings = false;
  double initializer_range = 0.02;
  tensor::DType torch_dtype = tensor::DType::F32;  // F32, BF16 or F16

  double rope_theta = 10000.0;
  RopeKind rope_kind = RopeKind::plain;
  double rope_factor = 1.0;  // at least 1
  Yarn yarn;                 // of RopeKind::yarn

  // Latent attention; kv_lora_rank 0: grouped. Then head_dim is qk_rope_head_dim.
  int64_t kv_lora_rank = 0;
  int64_t q_lora_rank = 0;  // 0: queries come from x
  int64_t qk_nope_head_dim = 0;
  int64_t qk_rope_head_dim = 0;
  int64_t v_head_dim = 0;
  bool rope_interleave = false;  // neighbours turn together

  // Mixture of experts; n_routed_experts == 0 (null in the file) is a dense model.
  int64_t n_routed_experts = 0;
  int64_t n_shared_experts = 0;
  int64_t num_experts_per_tok = 0;
  int64_t moe_intermediate_size = 0;
  int64_t moe_layer_freq = 1;
  int64_t first_k_dense_replace = 0;
  int64_t decoder_sparse_step = 1;              // layer + 1 is a multiple of it
  std::vector<int64_t> mlp_only_layers;         // dense all the same, ascending
  int64_t shared_expert_intermediate_size = 0;  // 0: n_shared_experts * moe_intermediate_size
  bool shared_expert_gate = false;              // sigmoid(w . x) of what the shared experts add
  bool norm_topk_prob = false;
  ScoringFunc scoring_func = ScoringFunc::softmax;
  TopkMethod topk_method = TopkMethod::greedy;
  int64_t n_group = 1;
  int64_t topk_group = 1;
  double routed_scaling_factor = 1.0;
  double aux_loss_alpha = 0.001;
  bool seq_aux = true;

  std::optional<int64_t> bos_token_id;
  std::vector<int64_t> eos_token_ids;  // empty: none
  std::optional<int64_t> pad_token_id;

  Quantization quantization;             // quantization_config with quant_method "dsmoe"
  NameMap file_names = kDeepseekNames;   // how its files name and hold parameters
  std::string read_as;                   // the model_type that it was read with; empty: none
  int64_t num_nextn_predict_layers = 0;  // in files behind the last layer; passed over
  std::string extra = "{}";  // keys this program does not know, as JSON: written back by to_json

  // Throws Error(input) that starts with `what` and names key, expected and found.
  void check(std::string_view what) const;

  // A model within the options of the released one is `deepseek`.
  bool within_released_options() const;
  // The type that says exactly what this model is: the one it was read with if it can, else the
  // first of formats() that does. `dsmoe` says everything, and other programs refuse it instead of
  // misreading it.
  const Format& format() const;
  std::string_view model_type() const { return format().model_type; }
  nlohmann::json to_json() const;

  bool is_moe_layer(int64_t layer) const {
    return n_routed_experts > 0 && layer >= first_k_dense_replace && layer % moe_layer_freq == 0 &&
           (layer + 1) % decoder_sparse_step == 0 &&
           !std::ranges::binary_search(mlp_only_layers, layer);
  }
  int64_t num_moe_layers() const;
  // Routed experts a token may choose from: the best groups' where there are groups.
  int64_t num_selectable_experts() const {
    return topk_method == TopkMethod::greedy ? n_routed_experts
                                             : n_routed_experts / n_group * topk_group;
  }
  attention::Shape attention_shape(
      tensor::DType operand = tensor::DType::F32,
      attention::LatentForm form = attention::LatentForm::absorbed) const;
  int64_t rotary_width() const {
    return static_cast<int64_t>(static_cast<double>(head_dim) * partial_rotary_factor);
  }
  int64_t shared_width() const {
    return shared_expert_intermediate_size > 0 ? shared_expert_intermediate_size
                                               : n_shared_experts * moe_intermediate_size;
  }

  // Every stored number; a tied head counts once.
  int64_t num_parameters() const;
  // Those that one token meets: all but the routed experts, plus num_experts_per_tok of them in
  // each MoE layer.
  int64_t num_active_parameters() const;
  int64_t num_tensors() const;
  // Keys and values of one position in all layers.
  int64_t kv_bytes_per_token(tensor::DType dtype) const;
  // Forward pass of one token that attends to `context` positions, as inference computes it: 2 per
  // weight of every product (the embedding is a look-up, the head a product even when tied), and 2
  // per position for each number of queries and outputs, per layer.
  double forward_flops_per_token(int64_t context) const;
};

// Reads one config.json. Throws Error(input): one line with `what`, the key, what was expected and
// what was found.
ModelConfig parse_config(std::string_view text, std::string_view what);

// The same of a file, of the config.json in a folder, or of the metadata of a GGUF file.
ModelConfig read_config(const std::filesystem::path& path);

// All tensors of the model, in the order of the forward pass, in torch_dtype (the selection bias in
// F32); a quantised weight is followed by its scales.
std::vector<tensor::TensorSpec> expected_tensors(const ModelConfig& config);

}  // namespace dsmoe::model

// The table of types. Defaults are those of the published configuration classes.
#include "model/format.h"

#include "base/error.h"
#include "model/config.h"

namespace dsmoe::model {
namespace {

// Keys that only some types know; elsewhere they have these values.
#define DSMOE_NO_LATENT                                                            \
  {"kv_lora_rank", "null"}, {"q_lora_rank", "null"}, {"qk_nope_head_dim", "null"}, \
      {"qk_rope_head_dim", "null"}, {                                              \
    "v_head_dim", "null"                                                           \
  }
#define DSMOE_NO_SHARED_GATE \
  {"shared_expert_intermediate_size", "null"}, { "shared_expert_gate", "false" }
#define DSMOE_NO_LAYER_LIST \
  {"decoder_sparse_step", "1"}, { "mlp_only_layers", "[]" }
#define DSMOE_SIGMOID_WITH_BIAS \
  {"scoring_func", "\"sigmoid\""}, {"topk_method", "\"noaux_tc\""}, { "moe_layer_freq", "1" }
#define DSMOE_SOFTMAX_OF_ALL                                                          \
  {"scoring_func", "\"softmax\""}, {"topk_method", "\"greedy\""}, {"n_group", "1"},   \
      {"topk_group", "1"}, {"routed_scaling_factor", "1"}, {"moe_layer_freq", "1"}, { \
    "first_k_dense_replace", "0"                                                      \
  }

constexpr Given kDeepseekFixed[] = {
    DSMOE_NO_LATENT,
    DSMOE_NO_SHARED_GATE,
    DSMOE_NO_LAYER_LIST,
    {"use_qk_norm", "false"},
    {"partial_rotary_factor", "1"},
    {"rope_interleave", "false"},
    {"attention_out_bias", "true"},
    {"topk_method", "\"greedy\""},
    {"n_group", "1"},
    {"topk_group", "1"},
    {"routed_scaling_factor", "1"},
};

constexpr Given kGlm4Defaults[] = {
    {"partial_rotary_factor", "0.5"},
    {"norm_topk_prob", "true"},
    {"first_k_dense_replace", "1"},
    {"n_shared_experts", "1"},
    {"rms_norm_eps", "1e-5"},
    {"use_qk_norm", "false"},
    {"max_position_embeddings", "131072"},
    {"num_nextn_predict_layers", "0"},
};
constexpr Given kGlm4Fixed[] = {
    DSMOE_NO_LATENT,
    DSMOE_NO_SHARED_GATE,
    DSMOE_NO_LAYER_LIST,
    DSMOE_SIGMOID_WITH_BIAS,
    {"attention_out_bias", "false"},
    {"rope_interleave", "false"},
};

constexpr Spelling kQwen3Spellings[] = {
    {"num_experts", "n_routed_experts"},
    {"num_local_experts", "n_routed_experts"},
};
constexpr Given kQwenDefaults[] = {
    {"use_sliding_window", "false"},
    {"max_position_embeddings", "32768"},
};
constexpr Given kQwen3Fixed[] = {
    DSMOE_NO_LATENT,
    DSMOE_NO_SHARED_GATE,
    DSMOE_SOFTMAX_OF_ALL,
    {"n_shared_experts", "0"},
    {"use_qk_norm", "true"},
    {"partial_rotary_factor", "1"},
    {"attention_out_bias", "true"},
    {"rope_interleave", "false"},
};

constexpr Spelling kQwen2Spellings[] = {
    {"num_experts", "n_routed_experts"},
    {"qkv_bias", "attention_bias"},
};
constexpr Given kQwen2Defaults[] = {
    {"use_sliding_window", "false"},
    {"max_position_embeddings", "32768"},
    {"attention_bias", "true"},
    {"shared_expert_intermediate_size", "5632"},
};
constexpr Given kQwen2Fixed[] = {
    DSMOE_NO_LATENT,
    DSMOE_SOFTMAX_OF_ALL,
    {"n_shared_experts", "1"},
    {"shared_expert_gate", "true"},
    {"use_qk_norm", "false"},
    {"partial_rotary_factor", "1"},
    {"attention_out_bias", "false"},
    {"rope_interleave", "false"},
};

constexpr Given kV3Defaults[] = {
    {"q_lora_rank", "1536"},
    {"kv_lora_rank", "512"},
    {"qk_nope_head_dim", "128"},
    {"qk_rope_head_dim", "64"},
    {"v_head_dim", "128"},
    {"rope_interleave", "true"},
    {"n_group", "8"},
    {"topk_group", "4"},
    {"norm_topk_prob", "true"},
    {"first_k_dense_replace", "3"},
    {"routed_scaling_factor", "2.5"},
    {"n_shared_experts", "1"},
    {"max_position_embeddings", "4096"},
    {"num_nextn_predict_layers", "0"},
};
constexpr Given kV3Fixed[] = {
    DSMOE_NO_SHARED_GATE,           DSMOE_NO_LAYER_LIST,
    DSMOE_SIGMOID_WITH_BIAS,        {"use_qk_norm", "false"},
    {"partial_rotary_factor", "1"}, {"attention_bias", "false"},
};

constexpr Given kV2Defaults[] = {
    {"q_lora_rank", "1536"},    {"kv_lora_rank", "512"}, {"qk_nope_head_dim", "128"},
    {"qk_rope_head_dim", "64"}, {"v_head_dim", "128"},   {"n_shared_experts", "2"},
};
constexpr Given kV2Fixed[] = {
    DSMOE_NO_SHARED_GATE,           DSMOE_NO_LAYER_LIST,         {"scoring_func", "\"softmax\""},
    {"moe_layer_freq", "1"},        {"rope_interleave", "true"}, {"use_qk_norm", "false"},
    {"partial_rotary_factor", "1"}, {"attention_bias", "false"},
};

constexpr Given kGlm4LiteDefaults[] = {
    {"q_lora_rank", "768"},
    {"kv_lora_rank", "512"},
    {"qk_nope_head_dim", "192"},
    {"qk_rope_head_dim", "64"},
    {"v_head_dim", "256"},
    {"rope_interleave", "true"},
    {"norm_topk_prob", "true"},
    {"first_k_dense_replace", "1"},
    {"routed_scaling_factor", "1.8"},
    {"n_shared_experts", "1"},
    {"rms_norm_eps", "1e-5"},
    {"max_position_embeddings", "202752"},
};
constexpr Given kGlm4LiteFixed[] = {
    DSMOE_NO_SHARED_GATE,     DSMOE_SIGMOID_WITH_BIAS,        {"decoder_sparse_step", "1"},
    {"use_qk_norm", "false"}, {"partial_rotary_factor", "1"}, {"attention_bias", "false"},
};

#undef DSMOE_NO_LATENT
#undef DSMOE_NO_SHARED_GATE
#undef DSMOE_NO_LAYER_LIST
#undef DSMOE_SIGMOID_WITH_BIAS
#undef DSMOE_SOFTMAX_OF_ALL

std::string no_experts(const ModelConfig& c) {
  return c.n_routed_experts > 0 ? "" : "the type has routed experts, and the file gives no number";
}

// The published classes normalise a single gate to 1; this program leaves it what it is.
std::string single_normalised(const ModelConfig& c) {
  return c.norm_topk_prob && c.num_experts_per_tok == 1
             ? "norm_topk_prob with num_experts_per_tok 1 is not supported"
             : "";
}

std::string first_of(std::initializer_list<std::string> objections) {
  for (const std::string& objection : objections) {
    if (!objection.empty()) return objection;
  }
  return "";
}

std::string without_shared(const ModelConfig& c) {
  return c.n_shared_experts > 0 ? "" : "the type has shared experts, and n_shared_experts is 0";
}

std::string object_to_qwen(const ModelConfig& c) {
  return first_of({no_experts(c), single_normalised(c)});
}

std::string object_to_sigmoid(const ModelConfig& c) {
  const bool has_two = c.n_routed_experts / std::max<int64_t>(c.n_group, 1) >= 2;
  return first_of({no_experts(c), single_normalised(c), without_shared(c),
                   has_two ? "" : "a group needs two experts, whose scores are its own"});
}

std::string object_to_v2(const ModelConfig& c) {
  const bool has_bias = c.topk_method == TopkMethod::noaux_tc;
  return first_of({no_experts(c), without_shared(c), c.kv_lora_rank > 0 ? "" : "kv_lora_rank is 0",
                   has_bias ? "topk_method \"noaux_tc\" is one of deepseek_v3" : ""});
}

std::string object_to_latent(const ModelConfig& c) {
  return first_of({object_to_sigmoid(c), c.kv_lora_rank > 0 ? "" : "kv_lora_rank is 0"});
}

std::string object_to_deepseek(const ModelConfig& c) {
  if (c.within_released_options()) return "";
  return fmt::format(
      "model_type \"deepseek\" has softmax scores, rope_scaling \"linear\" or \"dynamic\" or none, "
      "and no quantization_config; found \"{}\", \"{}\" and {}; anything else needs model_type "
      "\"dsmoe\"",
      name_of(c.scoring_func), name_of(c.rope_kind), c.quantization ? "one" : "none");
}

}  // namespace

std::span<const Format> formats() {
  static const Format all[] = {
      {.model_type = "deepseek",
       .architecture = "DeepseekForCausalLM",
       .names = kDeepseekNames,
       .fixed = kDeepseekFixed,
       .objection = object_to_deepseek},
      {.model_type = "glm4_moe",
       .architecture = "Glm4MoeForCausalLM",
       .names = kDeepseekNames,
       .defaults = kGlm4Defaults,
       .fixed = kGlm4Fixed,
       .objection = object_to_sigmoid},
      {.model_type = "qwen3_moe",
       .architecture = "Qwen3MoeForCausalLM",
       .names = kDeepseekNames,
       .spellings = kQwen3Spellings,
       .defaults = kQwenDefaults,
       .fixed = kQwen3Fixed,
       .objection = object_to_qwen},
      {.model_type = "qwen2_moe",
       .architecture = "Qwen2MoeForCausalLM",
       .names = kQwen2MoeNames,
       .spellings = kQwen2Spellings,
       .defaults = kQwen2Defaults,
       .fixed = kQwen2Fixed,
       .objection = object_to_qwen},
      {.model_type = "deepseek_v2",
       .architecture = "DeepseekV2ForCausalLM",
       .names = kDeepseekNames,
       .defaults = kV2Defaults,
       .fixed = kV2Fixed,
       .objection = object_to_v2},
      {.model_type = "deepseek_v3",
       .architecture = "DeepseekV3ForCausalLM",
       .names = kDeepseekNames,
       .defaults = kV3Defaults,
       .fixed = kV3Fixed,
       .objection = object_to_latent},
      {.model_type = "glm4_moe_lite",
       .architecture = "Glm4MoeLiteForCausalLM",
       .names = kDeepseekNames,
       .defaults = kGlm4LiteDefaults,
       .fixed = kGlm4LiteFixed,
       .lists_layers = true,
       .objection = object_to_latent},
      {.model_type = "dsmoe", .architecture = "DsmoeForCausalLM", .names = kDeepseekNames},
  };
  return all;
}

}  // namespace dsmoe::model

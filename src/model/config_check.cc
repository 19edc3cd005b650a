// The ranges of a configuration and the rules between its fields.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kernels/combine.h"
#include "kernels/sample.h"
#include "model/config.h"

namespace dsmoe::model {
namespace {

// Far above any published model; they keep every product of sizes inside an int64_t and hostile
// files small.
constexpr int64_t kMaxVocab = kernels::kMostSampled;  // a token has to be drawn from it
constexpr int64_t kMaxHidden = int64_t{1} << 17;
constexpr int64_t kMaxWidth = int64_t{1} << 20;
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxHeads = 1024;
constexpr int64_t kMaxHeadDim = 1024;
constexpr int64_t kMaxExperts = 8192;
constexpr int64_t kMaxShared = 256;
constexpr int64_t kMaxPositions = int64_t{1} << 24;
constexpr int64_t kMaxTensors = 131072;
constexpr int64_t kMaxParameters = int64_t{1} << 44;

class Checker {
 public:
  explicit Checker(std::string_view what) : what_(what) {}

  void range(std::string_view key, int64_t value, int64_t low, int64_t high) const {
    if (value < low || value > high)
      refuse(key, fmt::format("an integer from {} to {}", low, high), value);
  }

  void range(std::string_view key, double value, double low, double high) const {
    if (!(value >= low && value <= high))
      refuse(key, fmt::format("a number from {} to {}", low, high), value);
  }

  template <class T>
  [[noreturn]] void refuse(std::string_view key, std::string_view expected, const T& found) const {
    fail(ErrorKind::input, "{}: {} must be {}, found {}", what_, key, expected, found);
  }

 private:
  std::string_view what_;
};

void check_heads(const Checker& checker, const ModelConfig& c) {
  checker.range("head_dim", c.head_dim, 2, kMaxHeadDim);
  if (c.head_dim % 2 != 0) {
    checker.refuse(
        "head_dim",
        "even, since rotary embedding turns pairs (hidden_size / num_attention_heads if absent)",
        c.head_dim);
  }
  checker.range("partial_rotary_factor", c.partial_rotary_factor, 0.0, 1.0);
  if (c.rotary_width() < 2 || c.rotary_width() % 2 != 0) {
    checker.refuse("partial_rotary_factor",
                   fmt::format("a part of head_dim ({}) that is even and at least 2", c.head_dim),
                   c.partial_rotary_factor);
  }
}

void check_latent(const Checker& checker, const ModelConfig& c) {
  checker.range("kv_lora_rank", c.kv_lora_rank, 1, kMaxHidden);
  checker.range("q_lora_rank", c.q_lora_rank, 0, kMaxHidden);
  checker.range("qk_nope_head_dim", c.qk_nope_head_dim, 1, kMaxHeadDim);
  checker.range("qk_rope_head_dim", c.qk_rope_head_dim, 2, kMaxHeadDim);
  checker.range("v_head_dim", c.v_head_dim, 1, kMaxHeadDim);
  if (c.qk_rope_head_dim % 2 != 0) {
    checker.refuse("qk_rope_head_dim", "even, since rotary embedding turns pairs",
                   c.qk_rope_head_dim);
  }
  if (c.attention_bias || c.use_qk_norm || c.partial_rotary_factor != 1) {
    checker.refuse("kv_lora_rank",
                   "null where attention_bias, use_qk_norm or partial_rotary_factor is used",
                   c.kv_lora_rank);
  }
}

void check_yarn(const Checker& checker, const Yarn& yarn) {
  checker.range("rope_scaling.original_max_position_embeddings", yarn.original_positions, 1,
                kMaxPositions);
  checker.range("rope_scaling.beta_fast", yarn.beta_fast, 1e-6, 1e6);
  checker.range("rope_scaling.beta_slow", yarn.beta_slow, 1e-6, 1e6);
  checker.range("rope_scaling.mscale", yarn.mscale, 0.0, 1e3);
  checker.range("rope_scaling.mscale_all_dim", yarn.mscale_all_dim, 0.0, 1e3);
  checker.range("rope_scaling.attention_factor", yarn.attention_factor, 0.0, 1e3);
  if (yarn.mscale != 0 && yarn.mscale_all_dim == 0) {
    checker.refuse("rope_scaling.mscale", "given with mscale_all_dim, as programs differ without",
                   yarn.mscale);
  }
}

void check_attention(const Checker& checker, const ModelConfig& c) {
  checker.range("num_attention_heads", c.num_attention_heads, 1, kMaxHeads);
  checker.range("num_key_value_heads", c.num_key_value_heads, 1, c.num_attention_heads);
  if (c.num_attention_heads % c.num_key_value_heads != 0) {
    checker.refuse("num_key_value_heads",
                   fmt::format("a divisor of num_attention_heads ({})", c.num_attention_heads),
                   c.num_key_value_heads);
  }
  c.kv_lora_rank != 0 ? check_latent(checker, c) : check_heads(checker, c);
  checker.range("rope_theta", c.rope_theta, 1.0, 1e15);
  checker.range("rope_scaling.factor", c.rope_factor, 1.0, 1e6);
  if (c.rope_kind == RopeKind::dynamic && c.rotary_width() == 2) {
    checker.refuse("head_dim",
                   "at least 4 with dynamic rope_scaling, whose exponent is d / (d - 2)",
                   c.head_dim);
  }
  if (c.rope_kind == RopeKind::yarn) check_yarn(checker, c.yarn);
}

void check_groups(const Checker& checker, const ModelConfig& c) {
  checker.range("n_group", c.n_group, 1, c.n_routed_experts);
  checker.range("topk_group", c.topk_group, 1, c.n_group);
  if (c.topk_method == TopkMethod::greedy && c.n_group != 1) {
    checker.refuse("n_group", "1 with topk_method \"greedy\", which has no groups", c.n_group);
  }
  if (c.n_routed_experts % c.n_group != 0) {
    checker.refuse("n_group", fmt::format("a divisor of n_routed_experts ({})", c.n_routed_experts),
                   c.n_group);
  }
  const int64_t group_size = c.n_routed_experts / c.n_group;
  if (c.topk_method == TopkMethod::noaux_tc && c.n_group > 1 && group_size < 2) {
    checker.refuse("n_group",
                   "small enough for two experts in each group, whose best two scores are its own",
                   c.n_group);
  }
  if (c.num_experts_per_tok > c.topk_group * group_size) {
    checker.refuse(
        "num_experts_per_tok",
        fmt::format("at most the {} experts of topk_group groups", c.topk_group * group_size),
        c.num_experts_per_tok);
  }
}

void check_experts(const Checker& checker, const ModelConfig& c) {
  checker.range("n_routed_experts", c.n_routed_experts, 0, kMaxExperts);
  checker.range("moe_layer_freq", c.moe_layer_freq, 1, kMaxLayers);
  checker.range("decoder_sparse_step", c.decoder_sparse_step, 1, kMaxLayers);
  checker.range("num_nextn_predict_layers", c.num_nextn_predict_layers, 0, kMaxLayers);
  checker.range("first_k_dense_replace", c.first_k_dense_replace, 0, kMaxLayers);
  checker.range("aux_loss_alpha", c.aux_loss_alpha, 0.0, 1e6);
  if (c.n_routed_experts == 0) {
    for (const auto& [key, value] : {std::pair{"n_shared_experts", c.n_shared_experts},
                                     std::pair{"num_experts_per_tok", c.num_experts_per_tok}}) {
      if (value != 0)
        checker.refuse(key, "0 or null in a dense model (n_routed_experts is null)", value);
    }
    return;
  }
  checker.range("n_shared_experts", c.n_shared_experts, 0, kMaxShared);
  checker.range("shared_expert_intermediate_size", c.shared_expert_intermediate_size, 0, kMaxWidth);
  if (c.n_shared_experts == 0 && (c.shared_expert_gate || c.shared_expert_intermediate_size > 0)) {
    checker.refuse("n_shared_experts", "at least 1 where shared experts have a width or a gate",
                   c.n_shared_experts);
  }
  checker.range("num_experts_per_tok", c.num_experts_per_tok, 1,
                std::min(c.n_routed_experts, kernels::kMaxExpertsPerToken));
  checker.range("moe_intermediate_size", c.moe_intermediate_size, 1, kMaxWidth);
  checker.range("routed_scaling_factor", c.routed_scaling_factor, 1e-6, 1e6);
  check_groups(checker, c);
}

void check_token_ids(const Checker& checker, const ModelConfig& c) {
  const auto check_id = [&](std::string_view key, int64_t id) {
    if (id < 0 || id >= c.vocab_size) {
      checker.refuse(
          key, fmt::format("an id below vocab_size ({}), or null for none", c.vocab_size), id);
    }
  };
  if (c.bos_token_id) check_id("bos_token_id", *c.bos_token_id);
  if (c.pad_token_id) check_id("pad_token_id", *c.pad_token_id);
  for (const int64_t id : c.eos_token_ids) check_id("eos_token_id", id);
}

void check_totals(const Checker& checker, const ModelConfig& c) {
  if (c.num_tensors() > kMaxTensors) {
    checker.refuse("num_hidden_layers and n_routed_experts",
                   fmt::format("together at most {} tensors", kMaxTensors), c.num_tensors());
  }
  if (c.num_parameters() > kMaxParameters) {
    checker.refuse("the number of parameters", fmt::format("at most {}", kMaxParameters),
                   c.num_parameters());
  }
}

}  // namespace

void ModelConfig::check(std::string_view what) const {
  const Checker checker(what);
  checker.range("vocab_size", vocab_size, 1, kMaxVocab);
  checker.range("hidden_size", hidden_size, 1, kMaxHidden);
  checker.range("num_hidden_layers", num_hidden_layers, 1, kMaxLayers);
  checker.range("max_position_embeddings", max_position_embeddings, 1, kMaxPositions);
  checker.range("rms_norm_eps", rms_norm_eps, 1e-30, 1.0);
  checker.range("initializer_range", initializer_range, 0.0, 10.0);
  check_attention(checker, *this);
  check_experts(checker, *this);
  const bool has_dense_layer = num_moe_layers() < num_hidden_layers;
  checker.range("intermediate_size", intermediate_size, has_dense_layer ? 1 : 0, kMaxWidth);
  check_token_ids(checker, *this);
  check_totals(checker, *this);
}

}  // namespace dsmoe::model

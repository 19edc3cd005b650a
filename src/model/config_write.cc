// Writing config.json: every field in this program's words, then in those of the type that says
// exactly what the model is.
#include "model/config.h"
#include "model/config_fields.h"
#include "model/config_words.h"

namespace dsmoe::model {
namespace {

Json quantization_json(const Quantization& quantization) {
  Json json{{"quant_method", "dsmoe"},
            {"projections", lookup_name(kCodings, quantization.projections)},
            {"group_size", tensor::kGroupSize}};
  if (quantization.head != WeightCoding::plain)
    json["head"] = lookup_name(kCodings, quantization.head);
  return json;
}

// Keys that only models beyond the released one need, and what each is elsewhere.
constexpr Given kNeutral[] = {
    {"attention_out_bias", "true"},   {"use_qk_norm", "false"},
    {"partial_rotary_factor", "1.0"}, {"rope_interleave", "false"},
    {"kv_lora_rank", "null"},         {"q_lora_rank", "null"},
    {"qk_nope_head_dim", "null"},     {"qk_rope_head_dim", "null"},
    {"v_head_dim", "null"},           {"decoder_sparse_step", "1"},
    {"mlp_only_layers", "[]"},        {"shared_expert_intermediate_size", "null"},
    {"shared_expert_gate", "false"},  {"num_nextn_predict_layers", "0"},
};

Json rope_json(const ModelConfig& config) {
  if (config.rope_kind == RopeKind::plain) return nullptr;
  Json json{{"type", name_of(config.rope_kind)}, {"factor", config.rope_factor}};
  if (config.rope_kind != RopeKind::yarn) return json;
  const Yarn& yarn = config.yarn;
  json["original_max_position_embeddings"] = yarn.original_positions;
  json["beta_fast"] = yarn.beta_fast;
  json["beta_slow"] = yarn.beta_slow;
  if (yarn.mscale != 0) json["mscale"] = yarn.mscale;
  if (yarn.mscale_all_dim != 0) json["mscale_all_dim"] = yarn.mscale_all_dim;
  if (yarn.attention_factor != 0) json["attention_factor"] = yarn.attention_factor;
  if (!yarn.truncate) json["truncate"] = false;
  return json;
}

Json or_null(int64_t value) { return value == 0 ? Json() : Json(value); }

// Every field, in our words.
Json all_fields(const ModelConfig& c) {
  const auto optional = [](const std::optional<int64_t>& value) {
    return value ? Json(*value) : Json();
  };
  Json json = Json::parse(c.extra);
  json["vocab_size"] = c.vocab_size;
  json["hidden_size"] = c.hidden_size;
  json["num_hidden_layers"] = c.num_hidden_layers;
  json["num_attention_heads"] = c.num_attention_heads;
  json["num_key_value_heads"] = c.num_key_value_heads;
  // The released code has no such key; it is written only where the model needs it.
  const bool is_latent = c.kv_lora_rank > 0;
  if (!is_latent && c.head_dim * c.num_attention_heads != c.hidden_size)
    json["head_dim"] = c.head_dim;
  if (c.intermediate_size > 0) json["intermediate_size"] = c.intermediate_size;
  json["max_position_embeddings"] = c.max_position_embeddings;
  json["rms_norm_eps"] = c.rms_norm_eps;
  json["attention_bias"] = c.attention_bias;
  json["attention_out_bias"] = c.attention_out_bias || !c.attention_bias;
  json["use_qk_norm"] = c.use_qk_norm;
  json["partial_rotary_factor"] = c.partial_rotary_factor;
  json["rope_interleave"] = c.rope_interleave;
  json["kv_lora_rank"] = or_null(c.kv_lora_rank);
  json["q_lora_rank"] = or_null(c.q_lora_rank);
  json["qk_nope_head_dim"] = or_null(c.qk_nope_head_dim);
  json["qk_rope_head_dim"] = or_null(c.qk_rope_head_dim);
  json["v_head_dim"] = or_null(c.v_head_dim);
  json["tie_word_embeddings"] = c.tie_word_embeddings;
  json["initializer_range"] = c.initializer_range;
  json["torch_dtype"] = lookup_name(kDTypes, c.torch_dtype);
  json["hidden_act"] = "silu";
  json["rope_theta"] = c.rope_theta;
  json["rope_scaling"] = rope_json(c);
  json["n_routed_experts"] = or_null(c.n_routed_experts);
  json["n_shared_experts"] = or_null(c.n_shared_experts);
  json["num_experts_per_tok"] = or_null(c.num_experts_per_tok);
  if (c.moe_intermediate_size > 0) json["moe_intermediate_size"] = c.moe_intermediate_size;
  json["moe_layer_freq"] = c.moe_layer_freq;
  json["first_k_dense_replace"] = c.first_k_dense_replace;
  json["decoder_sparse_step"] = c.decoder_sparse_step;
  json["mlp_only_layers"] = c.mlp_only_layers;
  json["shared_expert_intermediate_size"] = or_null(c.shared_expert_intermediate_size);
  json["shared_expert_gate"] = c.shared_expert_gate;
  json["norm_topk_prob"] = c.norm_topk_prob;
  json["scoring_func"] = name_of(c.scoring_func);
  json["topk_method"] = name_of(c.topk_method);
  json["n_group"] = c.n_group;
  json["topk_group"] = c.topk_group;
  json["routed_scaling_factor"] = c.routed_scaling_factor;
  json["aux_loss_alpha"] = c.aux_loss_alpha;
  json["seq_aux"] = c.seq_aux;
  json["bos_token_id"] = optional(c.bos_token_id);
  json["pad_token_id"] = optional(c.pad_token_id);
  json["eos_token_id"] = c.eos_token_ids.empty()       ? Json()
                         : c.eos_token_ids.size() == 1 ? Json(c.eos_token_ids.front())
                                                       : Json(c.eos_token_ids);
  if (c.quantization) json["quantization_config"] = quantization_json(c.quantization);
  json["num_nextn_predict_layers"] = 0;  // which are passed over, and so not written
  return json;
}

bool lists(std::span<const Given> given, std::string_view key) {
  return std::ranges::find(given, key, &Given::key) != given.end();
}

Json in_words_of(const Format& format, const ModelConfig& config) {
  Json json = all_fields(config);
  for (const auto& [key, neutral] : kNeutral) {
    if (!lists(format.defaults, key) && json[std::string(key)] == Json::parse(neutral))
      json.erase(std::string(key));
  }
  for (const Given& given : format.fixed) json.erase(std::string(given.key));
  for (const Spelling& spelling : format.spellings) {
    const auto ours = json.find(std::string(spelling.ours));
    if (ours == json.end()) continue;
    Json value = std::move(*ours);
    json.erase(ours);
    json[std::string(spelling.theirs)] = std::move(value);
  }
  if (format.lists_layers) {
    json.erase("mlp_only_layers");
    Json types = Json::array();
    for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
      types.push_back(config.is_moe_layer(layer) ? "sparse" : "dense");
    json["mlp_layer_types"] = std::move(types);
  }
  json["model_type"] = format.model_type;
  json["architectures"] = Json::array({format.architecture});
  // Names the Python code of another class, which would misread this model.
  const bool is_ours = format.model_type == formats().back().model_type;
  if (is_ours || (format.model_type != "deepseek" && format.model_type != config.read_as))
    json.erase("auto_map");
  return json;
}

// Whether a reader of the type's files finds exactly this model in them. Files are written under
// this program's names.
bool says_all(const Format& format, const ModelConfig& config) {
  if (&format == &formats().back()) return true;
  if (format.names.data() != kDeepseekNames.data()) return false;
  if (config.quantization || format.objection(config) != "") return false;
  try {
    const ModelConfig read = parse_config(in_words_of(format, config).dump(), format.model_type);
    ModelConfig own = config;  // keys that mean nothing here may differ
    own.extra = read.extra;
    own.num_nextn_predict_layers = read.num_nextn_predict_layers;
    return all_fields(read) == all_fields(own);
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

std::string_view name_of(ScoringFunc value) { return lookup_name(kScoringFuncs, value); }
std::string_view name_of(TopkMethod value) { return lookup_name(kTopkMethods, value); }
std::string_view name_of(RopeKind value) { return lookup_name(kRopeKinds, value); }

bool ModelConfig::within_released_options() const {
  return scoring_func == ScoringFunc::softmax && topk_method == TopkMethod::greedy &&
         n_group == 1 && topk_group == 1 && routed_scaling_factor == 1.0 &&
         rope_kind != RopeKind::yarn && !quantization;
}

const Format& ModelConfig::format() const {
  const std::span<const Format> all = formats();
  const auto as_read = std::ranges::find(all, read_as, &Format::model_type);
  if (as_read != all.end() && as_read->model_type != "dsmoe" && says_all(*as_read, *this))
    return *as_read;
  return *std::ranges::find_if(all, [&](const Format& format) { return says_all(format, *this); });
}

Json ModelConfig::to_json() const { return in_words_of(format(), *this); }

Json own_words(const ModelConfig& config) {
  const std::span<const Format> all = formats();
  const Format& released = all.front();
  Json words = in_words_of(says_all(released, config) ? released : all.back(), config);
  words.erase("num_nextn_predict_layers");  // they were not read
  return words;
}

}  // namespace dsmoe::model

// Reading config.json: types, spellings and keys. Ranges are checked in config_check.cc.
#include "model/config.h"

#include <system_error>

#include "base/mapped_file.h"
#include "model/config_fields.h"
#include "model/gguf_format.h"
#include "store/gguf/gguf_file.h"

namespace dsmoe::model {
namespace {

// "deepseek" or "dsmoe"
std::string names_of_types(std::string_view between) {
  std::string list;
  for (const Format& format : formats()) {
    const bool last = &format == &formats().back();
    list += fmt::format("{}\"{}\"", list.empty() ? "" : last ? between : ", ", format.model_type);
  }
  return list;
}

const Format& read_format(FieldReader& reader) {
  const std::optional<std::string> type = reader.text("model_type");
  if (!type) {
    fail(ErrorKind::input, "{}: model_type is missing; {} are supported", reader.what(),
         names_of_types(" and "));
  }
  const auto format = std::ranges::find(formats(), *type, &Format::model_type);
  if (format == formats().end()) {
    reader.refuse("model_type", names_of_types(" or ") + ", other architectures are not supported",
                  shown(*type));
  }
  if (const std::optional<Json> value = reader.take("architectures")) {
    if (*value != Json::array({format->architecture})) {
      reader.refuse("architectures",
                    fmt::format("[\"{}\"] for model_type {}", format->architecture, *type),
                    shown(*value));
    }
  }
  return *format;
}

// From here on keys are ours. What the file leaves out has the type's value; what the type fixes
// may be given as it is.
void take_format(FieldReader& reader, const Format& format) {
  for (const Spelling& spelling : format.spellings) reader.rename(spelling);
  if (std::optional<Json> parameters = reader.object("rope_parameters")) {
    const auto part = parameters->find("partial_rotary_factor");
    if (part != parameters->end() && !part->is_null()) {
      reader.set("rope_parameters.partial_rotary_factor", std::move(*part));
      reader.rename({"rope_parameters.partial_rotary_factor", "partial_rotary_factor"});
    }
    parameters->erase("partial_rotary_factor");
    reader.set("rope_parameters", std::move(*parameters));
  }
  for (const Given& given : format.defaults) {
    if (!reader.has(std::string(given.key))) reader.set(given.key, Json::parse(given.json));
  }
  for (const Given& given : format.fixed) {
    const Json value = Json::parse(given.json);
    const std::optional<Json> found = reader.take(std::string(given.key));
    if (found && *found != value) {
      reader.refuse(given.key, fmt::format("{} in model_type {}", given.json, format.model_type),
                    shown(*found));
    }
    reader.set(given.key, value);
  }
}

// Heads of grouped attention.
void read_heads(FieldReader& reader, ModelConfig& config) {
  for (const char* key : {"q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"}) {
    if (const std::optional<int64_t> given = reader.integer(key)) {
      reader.refuse(key, "absent or null without kv_lora_rank", std::to_string(*given));
    }
  }
  config.num_key_value_heads =
      reader.integer("num_key_value_heads").value_or(config.num_attention_heads);
  if (const std::optional<int64_t> head_dim = reader.integer("head_dim")) {
    config.head_dim = *head_dim;
  } else if (config.num_attention_heads > 0 &&
             config.hidden_size % config.num_attention_heads == 0) {
    config.head_dim = config.hidden_size / config.num_attention_heads;
  } else {
    reader.refuse("hidden_size",
                  fmt::format("a multiple of num_attention_heads ({})", config.num_attention_heads),
                  fmt::format("{}; give head_dim if this is meant", config.hidden_size));
  }
}

// Heads of latent attention: each has a key and a value of its own, made from the latent.
void read_latent(FieldReader& reader, ModelConfig& config) {
  config.q_lora_rank = reader.integer("q_lora_rank").value_or(0);
  config.qk_nope_head_dim = reader.required_integer("qk_nope_head_dim");
  config.qk_rope_head_dim = reader.required_integer("qk_rope_head_dim");
  config.v_head_dim = reader.required_integer("v_head_dim");
  config.num_key_value_heads = config.num_attention_heads;
  config.head_dim = config.qk_rope_head_dim;
  const auto follows = [&](const char* key, int64_t value) {
    const std::optional<int64_t> given = reader.integer(key);
    if (given && *given != value) {
      reader.refuse(key, fmt::format("{}, which follows from the other sizes", value),
                    std::to_string(*given));
    }
  };
  follows("num_key_value_heads", config.num_attention_heads);
  follows("head_dim", config.qk_rope_head_dim);
  const bool adds_up = config.qk_nope_head_dim >= 0 && config.qk_nope_head_dim <= 1 << 20 &&
                       config.qk_rope_head_dim >= 0 && config.qk_rope_head_dim <= 1 << 20;
  if (adds_up) follows("qk_head_dim", config.qk_nope_head_dim + config.qk_rope_head_dim);
}

void read_sizes(FieldReader& reader, ModelConfig& config) {
  config.vocab_size = reader.required_integer("vocab_size");
  config.hidden_size = reader.required_integer("hidden_size");
  config.num_hidden_layers = reader.required_integer("num_hidden_layers");
  config.num_attention_heads = reader.required_integer("num_attention_heads");
  config.kv_lora_rank = reader.integer("kv_lora_rank").value_or(0);
  config.kv_lora_rank != 0 ? read_latent(reader, config) : read_heads(reader, config);
  assign(config.intermediate_size, reader.integer("intermediate_size"));
  assign(config.max_position_embeddings, reader.integer("max_position_embeddings"));
  assign(config.rms_norm_eps, reader.number("rms_norm_eps"));
  assign(config.attention_bias, reader.boolean("attention_bias"));
  assign(config.attention_out_bias, reader.boolean("attention_out_bias"));
  assign(config.use_qk_norm, reader.boolean("use_qk_norm"));
  assign(config.partial_rotary_factor, reader.number("partial_rotary_factor"));
  assign(config.rope_interleave, reader.boolean("rope_interleave"));
  assign(config.tie_word_embeddings, reader.boolean("tie_word_embeddings"));
  assign(config.initializer_range, reader.number("initializer_range"));
  const auto torch_dtype = reader.choice("torch_dtype", kDTypes);
  const auto dtype = reader.choice("dtype", kDTypes);
  assign(config.torch_dtype, reader.one_of("torch_dtype", torch_dtype, "dtype", dtype));
  if (const std::optional<std::string> act = reader.text("hidden_act"); act && *act != "silu") {
    reader.refuse("hidden_act", "\"silu\"", shown(*act));
  }
}

void read_yarn(FieldReader& fields, ModelConfig& config) {
  Yarn& yarn = config.yarn;
  assign(yarn.original_positions, fields.integer("original_max_position_embeddings"));
  if (yarn.original_positions == 0) yarn.original_positions = config.max_position_embeddings;
  assign(yarn.beta_fast, fields.number("beta_fast"));
  assign(yarn.beta_slow, fields.number("beta_slow"));
  assign(yarn.mscale, fields.number("mscale"));
  assign(yarn.mscale_all_dim, fields.number("mscale_all_dim"));
  assign(yarn.attention_factor, fields.number("attention_factor"));
  assign(yarn.truncate, fields.boolean("truncate"));
}

// rope_scaling {"type" or "rope_type", "factor"}, or the newer rope_parameters that also holds
// rope_theta.
void read_rope(FieldReader& reader, ModelConfig& config) {
  std::optional<double> theta = reader.number("rope_theta");
  std::optional<Json> scaling = reader.object("rope_scaling");
  std::string key = "rope_scaling";
  if (std::optional<Json> parameters = reader.object("rope_parameters")) {
    if (scaling) {
      fail(ErrorKind::input,
           "{}: rope_scaling and rope_parameters are both given; keep one of them", reader.what());
    }
    scaling = std::move(parameters);
    key = "rope_parameters";
  }
  if (scaling) {
    FieldReader fields(std::move(*scaling), reader.what(), key + ".");
    theta = reader.one_of("rope_theta", theta, key + ".rope_theta", fields.number("rope_theta"));
    const auto type = fields.choice("type", kRopeKinds);
    const auto rope_type = fields.choice("rope_type", kRopeKinds);
    const auto kind = fields.one_of("type", type, "rope_type", rope_type);
    if (!kind && key == "rope_scaling")
      fields.refuse("type", "one of " + list_names(kRopeKinds), "nothing");
    assign(config.rope_kind, kind);
    const std::optional<double> factor = fields.number("factor");
    if (config.rope_kind == RopeKind::yarn) read_yarn(fields, config);
    if (config.rope_kind != RopeKind::plain) {
      if (!factor) fields.refuse("factor", "a number", "nothing");
      config.rope_factor = *factor;
    }
    for (const auto& [name, value] : fields.rest().items()) {
      if (!value.is_null()) fields.refuse(name, "absent, it is not supported", shown(value));
    }
  }
  assign(config.rope_theta, theta);
}

std::vector<int64_t> layer_list(FieldReader& reader, const std::string& key,
                                const ModelConfig& config) {
  std::vector<int64_t> layers;
  const std::optional<Json> list = reader.take(key);
  if (!list) return layers;
  if (!list->is_array() || list->size() > 1024) {
    reader.refuse(key, "a list of at most 1024 layers", shown(*list));
  }
  for (const Json& layer : *list) {
    layers.push_back(reader.as_integer(key, layer));
    if (layers.back() < 0 || layers.back() >= config.num_hidden_layers) {
      reader.refuse(key,
                    fmt::format("layers below num_hidden_layers ({})", config.num_hidden_layers),
                    std::to_string(layers.back()));
    }
  }
  std::ranges::sort(layers);
  const auto repeated = std::ranges::unique(layers);
  layers.erase(repeated.begin(), repeated.end());
  return layers;
}

// mlp_only_layers, or mlp_layer_types: "dense" or "sparse" for each layer.
void read_dense_layers(FieldReader& reader, ModelConfig& config) {
  config.mlp_only_layers = layer_list(reader, "mlp_only_layers", config);
  const std::optional<Json> types = reader.take("mlp_layer_types");
  if (!types) return;
  const bool counted = types->is_array() && config.num_hidden_layers >= 0 &&
                       types->size() == static_cast<std::size_t>(config.num_hidden_layers);
  if (!counted) {
    reader.refuse("mlp_layer_types", "a list of \"dense\" or \"sparse\" for each layer",
                  shown(*types));
  }
  config.mlp_only_layers.clear();
  for (std::size_t layer = 0; layer < types->size(); ++layer) {
    const Json& type = (*types)[layer];
    if (type != "dense" && type != "sparse")
      reader.refuse("mlp_layer_types", "\"dense\" or \"sparse\" for each layer", shown(type));
    if (type == "dense") config.mlp_only_layers.push_back(static_cast<int64_t>(layer));
  }
  // The first of them are what first_k_dense_replace counts.
  std::size_t first = 0;
  while (first < config.mlp_only_layers.size() &&
         config.mlp_only_layers[first] == static_cast<int64_t>(first)) {
    ++first;
  }
  config.first_k_dense_replace = static_cast<int64_t>(first);
  config.mlp_only_layers.erase(config.mlp_only_layers.begin(),
                               config.mlp_only_layers.begin() + static_cast<std::ptrdiff_t>(first));
}

void read_experts(FieldReader& reader, ModelConfig& config) {
  if (const std::optional<int64_t> experts = reader.integer("n_routed_experts")) {
    if (*experts == 0)
      reader.refuse("n_routed_experts", "at least 1, or null for a dense model", "0");
    config.n_routed_experts = *experts;
  }
  assign(config.n_shared_experts, reader.integer("n_shared_experts"));
  assign(config.num_experts_per_tok, reader.integer("num_experts_per_tok"));
  assign(config.moe_intermediate_size, reader.integer("moe_intermediate_size"));
  assign(config.moe_layer_freq, reader.integer("moe_layer_freq"));
  assign(config.first_k_dense_replace, reader.integer("first_k_dense_replace"));
  assign(config.decoder_sparse_step, reader.integer("decoder_sparse_step"));
  read_dense_layers(reader, config);
  assign(config.shared_expert_intermediate_size, reader.integer("shared_expert_intermediate_size"));
  assign(config.shared_expert_gate, reader.boolean("shared_expert_gate"));
  assign(config.norm_topk_prob, reader.boolean("norm_topk_prob"));
  assign(config.scoring_func, reader.choice("scoring_func", kScoringFuncs));
  assign(config.topk_method, reader.choice("topk_method", kTopkMethods));
  assign(config.n_group, reader.integer("n_group"));
  assign(config.topk_group, reader.integer("topk_group"));
  assign(config.routed_scaling_factor, reader.number("routed_scaling_factor"));
  assign(config.aux_loss_alpha, reader.number("aux_loss_alpha"));
  assign(config.seq_aux, reader.boolean("seq_aux"));
  if (config.n_routed_experts > 0) return;
  // Published dense configurations carry leftovers of these; nothing uses them.
  config.n_shared_experts = config.num_experts_per_tok = config.moe_intermediate_size = 0;
  config.shared_expert_intermediate_size = 0;
}

void read_token_ids(FieldReader& reader, ModelConfig& config) {
  config.bos_token_id = reader.integer("bos_token_id");
  config.pad_token_id = reader.integer("pad_token_id");
  const std::optional<Json> eos = reader.take("eos_token_id");
  if (!eos) return;
  if (eos->is_array()) {
    constexpr std::size_t kMaxIds = 256;
    if (eos->size() > kMaxIds)
      reader.refuse("eos_token_id", "at most 256 ids", std::to_string(eos->size()));
    for (const Json& id : *eos)
      config.eos_token_ids.push_back(reader.as_integer("eos_token_id", id));
  } else {
    config.eos_token_ids.push_back(reader.as_integer("eos_token_id", *eos));
  }
}

void read_quantization(FieldReader& reader, ModelConfig& config) {
  std::optional<Json> value = reader.object("quantization_config");
  if (!value) return;
  FieldReader fields(std::move(*value), reader.what(), "quantization_config.");
  const std::optional<Json> method = fields.take("quant_method");
  if (!method || *method != "dsmoe") {
    fields.refuse("quant_method", "\"dsmoe\", other quantised weights are not supported",
                  method ? shown(*method) : "nothing");
  }
  const auto projections = fields.choice("projections", kCodings);
  if (!projections) fields.refuse("projections", "one of " + list_names(kCodings), "nothing");
  config.quantization.projections = *projections;
  assign(config.quantization.head, fields.choice("head", kCodings));
  if (config.tie_word_embeddings && config.quantization.head != WeightCoding::plain) {
    fields.refuse("head", "absent, the head is tied to the embedding, which is not quantised",
                  name_of(config.quantization.head));
  }
  if (const auto size = fields.integer("group_size"); size && *size != tensor::kGroupSize) {
    fields.refuse("group_size", std::to_string(tensor::kGroupSize), std::to_string(*size));
  }
  for (const auto& [name, found] : fields.rest().items()) {
    if (!found.is_null()) fields.refuse(name, "absent, it is not supported", shown(found));
  }
}

// Keys that would change the mathematics in a way this program does not implement; kept, but only
// at these values.
void check_unimplemented(const FieldReader& reader) {
  const std::array<std::pair<const char*, Json>, 8> neutral = {{{"pretraining_tp", 1},
                                                                {"attention_dropout", 0},
                                                                {"hidden_dropout", 0},
                                                                {"resid_pdrop", 0},
                                                                {"mlp_bias", false},
                                                                {"sliding_window", nullptr},
                                                                {"use_sliding_window", false},
                                                                {"attention_chunk_size", nullptr}}};
  // What windows a model would have that uses none says nothing.
  const auto& rest = reader.rest();
  const bool has_no_window =
      rest.contains("use_sliding_window") && rest["use_sliding_window"] == false;
  for (const auto& [key, value] : neutral) {
    if (has_no_window && std::string_view(key) == "sliding_window") continue;
    const auto found = rest.find(key);
    if (found != rest.end() && !found->is_null() && *found != value) {
      reader.refuse(key, fmt::format("{}, anything else is not supported", value.dump()),
                    shown(*found));
    }
  }
  const auto types = rest.find("layer_types");
  if (types == rest.end() || types->is_null()) return;
  if (!types->is_array()) reader.refuse("layer_types", "a list", shown(*types));
  for (const Json& type : *types) {
    if (type != "full_attention")
      reader.refuse("layer_types", "\"full_attention\" for every layer", shown(type));
  }
}

}  // namespace

ModelConfig read_config(const std::filesystem::path& path) {
  if (store::gguf::is_gguf(path)) return config_of_gguf(store::gguf::File::open(path));
  std::error_code ignored;  // what cannot be read is told by the reader
  const bool is_folder = std::filesystem::is_directory(path, ignored);
  const std::filesystem::path file = is_folder ? path / "config.json" : path;
  return parse_config(read_small_file(file, kMaxConfigBytes), file.string());
}

ModelConfig parse_config(std::string_view text, std::string_view what) {
  if (text.size() > kMaxConfigBytes) {
    fail(ErrorKind::input, "{}: {} bytes, a configuration has at most {}", what, text.size(),
         kMaxConfigBytes);
  }
  Json json = parse_json(text, what);
  if (!json.is_object())
    fail(ErrorKind::input, "{}: expected a JSON object, found {}", what, shown(json));
  FieldReader reader(std::move(json), what);
  const Format& format = read_format(reader);
  take_format(reader, format);
  ModelConfig config;
  config.file_names = format.names;
  config.read_as = format.model_type;
  read_sizes(reader, config);
  read_rope(reader, config);
  const bool has_list = reader.has("mlp_layer_types");
  read_experts(reader, config);
  if (format.lists_layers && !has_list && config.first_k_dense_replace != 1) {
    reader.refuse("first_k_dense_replace", "1 where mlp_layer_types is absent",
                  std::to_string(config.first_k_dense_replace));
  }
  read_token_ids(reader, config);
  read_quantization(reader, config);
  config.num_nextn_predict_layers = reader.integer("num_nextn_predict_layers").value_or(0);
  check_unimplemented(reader);
  config.extra = reader.take_rest().dump();
  config.check(what);
  if (format.objection != nullptr) {
    const std::string objection = format.objection(config);
    if (!objection.empty()) fail(ErrorKind::input, "{}: {}", what, objection);
    if (config.quantization) {
      fail(ErrorKind::input, "{}: quant_method \"dsmoe\" needs model_type \"dsmoe\", found \"{}\"",
           what, format.model_type);
    }
  }
  return config;
}

}  // namespace dsmoe::model

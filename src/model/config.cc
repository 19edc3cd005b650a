// Reading and writing config.json: types, spellings and keys. Ranges are checked in
// config_check.cc.
#include "model/config.h"

#include <algorithm>
#include <array>
#include <limits>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "model/gguf_format.h"
#include "store/gguf/gguf_file.h"

namespace dsmoe::model {
namespace {

using tensor::DType;
using tensor::WeightCoding;

template <class Enum>
struct Named {
  std::string_view name;
  Enum value;
};

constexpr std::array<Named<ScoringFunc>, 2> kScoringFuncs = {
    {{"softmax", ScoringFunc::softmax}, {"sigmoid", ScoringFunc::sigmoid}}};
constexpr std::array<Named<TopkMethod>, 3> kTopkMethods = {
    {{"greedy", TopkMethod::greedy},
     {"group_limited_greedy", TopkMethod::group_limited_greedy},
     {"noaux_tc", TopkMethod::noaux_tc}}};
constexpr std::array<Named<RopeKind>, 3> kRopeKinds = {
    {{"default", RopeKind::plain}, {"linear", RopeKind::linear}, {"dynamic", RopeKind::dynamic}}};
constexpr std::array<Named<WeightCoding>, 2> kCodings = {
    {{"int8", WeightCoding::int8}, {"int4", WeightCoding::int4}}};
constexpr std::array<Named<DType>, 3> kDTypes = {
    {{"float32", DType::F32}, {"bfloat16", DType::BF16}, {"float16", DType::F16}}};

template <class Table, class Enum>
std::string_view lookup_name(const Table& table, Enum value) {
  for (const auto& entry : table) {
    if (entry.value == value) return entry.name;
  }
  return "?";
}

template <class Table>
std::string list_names(const Table& table) {
  std::string text;
  for (const auto& entry : table)
    text += fmt::format("{}\"{}\"", text.empty() ? "" : ", ", entry.name);
  return text;
}

// A value for a message: its JSON, cut.
std::string shown(const Json& value) {
  constexpr std::size_t kMaxBytes = 60;
  std::string text = value.dump(-1, ' ', true);
  if (text.size() > kMaxBytes) text = text.substr(0, kMaxBytes) + "...";
  return text;
}

// Takes fields out of a JSON object one by one; what stays behind is unknown.
class FieldReader {
 public:
  FieldReader(Json object, std::string_view what, std::string prefix = "")
      : object_(std::move(object)), what_(what), prefix_(std::move(prefix)) {}

  [[noreturn]] void refuse(std::string_view key, std::string_view expected,
                           std::string_view found) const {
    fail(ErrorKind::input, "{}: {}{} must be {}, found {}", what_, prefix_, key, expected, found);
  }

  // The value, taken out; absent and null are the same.
  std::optional<Json> take(const std::string& key) {
    const auto found = object_.find(key);
    if (found == object_.end()) return std::nullopt;
    Json value = std::move(*found);
    object_.erase(found);
    if (value.is_null()) return std::nullopt;
    return value;
  }

  std::optional<int64_t> integer(const std::string& key) {
    const std::optional<Json> value = take(key);
    if (!value) return std::nullopt;
    return as_integer(key, *value);
  }

  int64_t required_integer(const std::string& key) {
    const std::optional<int64_t> value = integer(key);
    if (!value)
      fail(ErrorKind::input, "{}: {}{} is missing; it must be an integer", what_, prefix_, key);
    return *value;
  }

  int64_t as_integer(const std::string& key, const Json& value) const {
    const bool fits =
        value.is_number_integer() &&
        (!value.is_number_unsigned() ||
         value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
    if (!fits) refuse(key, "an integer", shown(value));
    return value.get<int64_t>();
  }

  std::optional<double> number(const std::string& key) {
    const std::optional<Json> value = take(key);
    if (!value) return std::nullopt;
    if (!value->is_number()) refuse(key, "a number", shown(*value));
    return value->get<double>();
  }

  std::optional<bool> boolean(const std::string& key) {
    const std::optional<Json> value = take(key);
    if (!value) return std::nullopt;
    if (!value->is_boolean()) refuse(key, "true or false", shown(*value));
    return value->get<bool>();
  }

  std::optional<std::string> text(const std::string& key) {
    const std::optional<Json> value = take(key);
    if (!value) return std::nullopt;
    if (!value->is_string()) refuse(key, "a string", shown(*value));
    return value->get<std::string>();
  }

  template <class Table>
  auto choice(const std::string& key, const Table& table)
      -> std::optional<decltype(table[0].value)> {
    const std::optional<std::string> value = text(key);
    if (!value) return std::nullopt;
    for (const auto& entry : table) {
      if (entry.name == *value) return entry.value;
    }
    refuse(key, "one of " + list_names(table), shown(*value));
  }

  std::optional<Json> object(const std::string& key) {
    std::optional<Json> value = take(key);
    if (value && !value->is_object()) refuse(key, "an object", shown(*value));
    return value;
  }

  // Two spellings of one field: either may be given, both only if they agree.
  template <class T>
  std::optional<T> one_of(const std::string& key_a, std::optional<T> a, const std::string& key_b,
                          std::optional<T> b) const {
    if (a && b && *a != *b) {
      fail(ErrorKind::input, "{}: {}{} and {}{} disagree; keep one of them", what_, prefix_, key_a,
           prefix_, key_b);
    }
    return a ? a : b;
  }

  const Json& rest() const { return object_; }
  Json take_rest() { return std::move(object_); }
  std::string_view what() const { return what_; }

 private:
  Json object_;
  std::string_view what_;
  std::string prefix_;
};

template <class T, class U>
void assign(T& field, const std::optional<U>& value) {
  if (value) field = *value;
}

// "deepseek" or "dsmoe"
std::string names_of_types(std::string_view between) {
  std::string list;
  for (const Format& format : formats()) {
    list += fmt::format("{}\"{}\"", list.empty() ? "" : between, format.model_type);
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

void read_sizes(FieldReader& reader, ModelConfig& config) {
  config.vocab_size = reader.required_integer("vocab_size");
  config.hidden_size = reader.required_integer("hidden_size");
  config.num_hidden_layers = reader.required_integer("num_hidden_layers");
  config.num_attention_heads = reader.required_integer("num_attention_heads");
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
  assign(config.intermediate_size, reader.integer("intermediate_size"));
  assign(config.max_position_embeddings, reader.integer("max_position_embeddings"));
  assign(config.rms_norm_eps, reader.number("rms_norm_eps"));
  assign(config.attention_bias, reader.boolean("attention_bias"));
  assign(config.tie_word_embeddings, reader.boolean("tie_word_embeddings"));
  assign(config.initializer_range, reader.number("initializer_range"));
  const auto torch_dtype = reader.choice("torch_dtype", kDTypes);
  const auto dtype = reader.choice("dtype", kDTypes);
  assign(config.torch_dtype, reader.one_of("torch_dtype", torch_dtype, "dtype", dtype));
  if (const std::optional<std::string> act = reader.text("hidden_act"); act && *act != "silu") {
    reader.refuse("hidden_act", "\"silu\"", shown(*act));
  }
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

Json quantization_json(const Quantization& quantization) {
  Json json{{"quant_method", "dsmoe"},
            {"projections", lookup_name(kCodings, quantization.projections)},
            {"group_size", tensor::kGroupSize}};
  if (quantization.head != WeightCoding::plain)
    json["head"] = lookup_name(kCodings, quantization.head);
  return json;
}

// Keys that would change the mathematics in a way this program does not implement; kept, but only
// at these values.
void check_unimplemented(const FieldReader& reader) {
  const std::array<std::pair<const char*, Json>, 11> neutral = {{{"pretraining_tp", 1},
                                                                 {"attention_dropout", 0},
                                                                 {"hidden_dropout", 0},
                                                                 {"resid_pdrop", 0},
                                                                 {"mlp_bias", false},
                                                                 {"sliding_window", nullptr},
                                                                 {"use_sliding_window", false},
                                                                 {"partial_rotary_factor", 1},
                                                                 {"q_lora_rank", nullptr},
                                                                 {"kv_lora_rank", nullptr},
                                                                 {"num_nextn_predict_layers", 0}}};
  for (const auto& [key, value] : neutral) {
    const auto found = reader.rest().find(key);
    if (found != reader.rest().end() && !found->is_null() && *found != value) {
      reader.refuse(key, fmt::format("{}, anything else is not supported", value.dump()),
                    shown(*found));
    }
  }
}

}  // namespace

std::string_view name_of(ScoringFunc value) { return lookup_name(kScoringFuncs, value); }
std::string_view name_of(TopkMethod value) { return lookup_name(kTopkMethods, value); }
std::string_view name_of(RopeKind value) { return lookup_name(kRopeKinds, value); }

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
  ModelConfig config;
  config.file_names = format.names;
  read_sizes(reader, config);
  read_rope(reader, config);
  read_experts(reader, config);
  read_token_ids(reader, config);
  read_quantization(reader, config);
  check_unimplemented(reader);
  config.extra = reader.take_rest().dump();
  config.check(what);
  if (format.model_type == "deepseek" && !config.within_released_options()) {
    fail(ErrorKind::input,
         "{}: model_type \"deepseek\" has softmax scores, topk_method \"greedy\", n_group 1, "
         "routed_scaling_factor 1 and "
         "no quantization_config; found \"{}\", \"{}\", {}, {} and {}; anything else needs "
         "model_type \"dsmoe\"",
         what, name_of(config.scoring_func), name_of(config.topk_method), config.n_group,
         config.routed_scaling_factor, config.quantization ? "one" : "none");
  }
  return config;
}

bool ModelConfig::within_released_options() const {
  return scoring_func == ScoringFunc::softmax && topk_method == TopkMethod::greedy &&
         n_group == 1 && topk_group == 1 && routed_scaling_factor == 1.0 && !quantization;
}

Json ModelConfig::to_json() const {
  const auto or_null = [](int64_t value) { return value == 0 ? Json() : Json(value); };
  const auto optional = [](const std::optional<int64_t>& value) {
    return value ? Json(*value) : Json();
  };
  Json json = Json::parse(extra);
  const bool released = within_released_options();
  json["model_type"] = model_type();
  json["architectures"] = Json::array({released ? "DeepseekForCausalLM" : "DsmoeForCausalLM"});
  json["vocab_size"] = vocab_size;
  json["hidden_size"] = hidden_size;
  json["num_hidden_layers"] = num_hidden_layers;
  json["num_attention_heads"] = num_attention_heads;
  json["num_key_value_heads"] = num_key_value_heads;
  // The released code has no such key; it is written only where the model needs it.
  if (head_dim * num_attention_heads != hidden_size) json["head_dim"] = head_dim;
  if (intermediate_size > 0) json["intermediate_size"] = intermediate_size;
  json["max_position_embeddings"] = max_position_embeddings;
  json["rms_norm_eps"] = rms_norm_eps;
  json["attention_bias"] = attention_bias;
  json["tie_word_embeddings"] = tie_word_embeddings;
  json["initializer_range"] = initializer_range;
  json["torch_dtype"] = lookup_name(kDTypes, torch_dtype);
  json["hidden_act"] = "silu";
  json["rope_theta"] = rope_theta;
  json["rope_scaling"] = nullptr;
  if (rope_kind != RopeKind::plain)
    json["rope_scaling"] = {{"type", name_of(rope_kind)}, {"factor", rope_factor}};
  json["n_routed_experts"] = or_null(n_routed_experts);
  json["n_shared_experts"] = or_null(n_shared_experts);
  json["num_experts_per_tok"] = or_null(num_experts_per_tok);
  if (moe_intermediate_size > 0) json["moe_intermediate_size"] = moe_intermediate_size;
  json["moe_layer_freq"] = moe_layer_freq;
  json["first_k_dense_replace"] = first_k_dense_replace;
  json["norm_topk_prob"] = norm_topk_prob;
  json["scoring_func"] = name_of(scoring_func);
  json["aux_loss_alpha"] = aux_loss_alpha;
  json["seq_aux"] = seq_aux;
  json["bos_token_id"] = optional(bos_token_id);
  json["pad_token_id"] = optional(pad_token_id);
  json["eos_token_id"] = eos_token_ids.empty()       ? Json()
                         : eos_token_ids.size() == 1 ? Json(eos_token_ids.front())
                                                     : Json(eos_token_ids);
  if (released) return json;
  json["topk_method"] = name_of(topk_method);
  json["n_group"] = n_group;
  json["topk_group"] = topk_group;
  json["routed_scaling_factor"] = routed_scaling_factor;
  if (quantization) json["quantization_config"] = quantization_json(quantization);
  json.erase(
      "auto_map");  // names the Python code of the released class, which would misread this model
  return json;
}

}  // namespace dsmoe::model

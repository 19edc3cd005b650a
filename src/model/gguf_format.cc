// One table of names per architecture; keys to fields and back.
#include "model/gguf_format.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <set>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "base/utf8.h"
#include "model/gguf_names.h"
#include "model/inventory.h"
#include "store/gguf/gguf_tensors.h"

namespace dsmoe::model {
namespace {

using store::gguf::File;
using store::gguf::Metadata;
using store::gguf::TensorEntry;
using store::gguf::TensorType;

// How the format numbers the scores.
enum class Gating : int64_t { softmax = 1, sigmoid = 2 };

constexpr std::string_view kOurConfig = "dsmoe.config";

// Takes the keys of one architecture; what stays behind is unknown.
class ArchReader {
 public:
  ArchReader(const File& file, std::string_view architecture)
      : file_(file), prefix_(std::string(architecture) + ".") {}

  std::string_view architecture() const {
    return std::string_view(prefix_).substr(0, prefix_.size() - 1);
  }
  std::string key(std::string_view name) {
    std::string key = prefix_ + std::string(name);
    known_.insert(key);
    return key;
  }
  std::optional<int64_t> integer(std::string_view name) { return file_.integer(key(name)); }
  std::optional<double> number(std::string_view name) { return file_.number(key(name)); }
  std::optional<bool> boolean(std::string_view name) { return file_.boolean(key(name)); }
  std::optional<std::string> text(std::string_view name) { return file_.text(key(name)); }

  int64_t required(std::string_view name) {
    const auto value = integer(name);
    if (!value) file_.refuse_absent(key(name));
    return *value;
  }
  // A number for every layer is refused unless all are one.
  std::optional<int64_t> of_all_layers(std::string_view name) {
    if (!file_.is_array(key(name))) return integer(name);
    const auto values = file_.integers(key(name));
    if (!values || values->empty()) return std::nullopt;
    if (std::ranges::count(*values, values->front()) != std::ssize(*values)) {
      file_.refuse(key(name), "one number for all layers", "several");
    }
    return values->front();
  }
  void pass_over(std::string_view name) { key(name); }

  void refuse_rest() const {
    for (const std::string& name : file_.keys_with(prefix_)) {
      if (!known_.contains(name)) {
        file_.refuse(name, "absent: dsmoe does not know what it changes", "it");
      }
    }
  }

 private:
  const File& file_;
  std::string prefix_;
  std::set<std::string> known_;
};

void refuse_other_files(const File& file) {
  if (const auto type = file.text("general.type"); type && *type != "model") {
    file.refuse("general.type", "\"model\"", in_quotes(*type));
  }
  if (const auto parts = file.integer("split.count"); parts && *parts > 1) {
    file.refuse("split.count", "1: join the parts first, such as with llama-gguf-split --merge",
                std::to_string(*parts));
  }
}

// How much of a head turns: all of it, or its first numbers where the architecture can do that.
void read_rotation(const File& file, ArchReader& reader, ModelConfig& config) {
  const auto turns = reader.integer("rope.dimension_count").value_or(config.head_dim);
  const bool may_be_a_part = reader.architecture() == kGlm4MoeArch;
  if (turns == config.head_dim || config.head_dim < 1) return;
  config.partial_rotary_factor = static_cast<double>(turns) / static_cast<double>(config.head_dim);
  const bool is_a_part =
      turns > 0 && turns < config.head_dim && turns % 2 == 0 && config.rotary_width() == turns;
  if (!may_be_a_part || !is_a_part) {
    file.refuse(reader.key("rope.dimension_count"),
                fmt::format("the width of a head ({}){}", config.head_dim,
                            may_be_a_part ? ", or less and even" : ""),
                std::to_string(turns));
  }
}

void read_attention(const File& file, ArchReader& reader, ModelConfig& config) {
  const auto heads = reader.of_all_layers("attention.head_count");
  if (!heads) file.refuse_absent(reader.key("attention.head_count"));
  config.num_attention_heads = *heads;
  config.num_key_value_heads = reader.of_all_layers("attention.head_count_kv").value_or(*heads);
  const auto key_length = reader.integer("attention.key_length");
  if (!key_length && (*heads < 1 || config.hidden_size % *heads != 0)) {
    file.refuse_absent(reader.key("attention.key_length"));
  }
  config.head_dim = key_length ? *key_length : config.hidden_size / *heads;
  const auto values = reader.integer("attention.value_length").value_or(config.head_dim);
  if (values != config.head_dim) {
    file.refuse(reader.key("attention.value_length"),
                fmt::format("the width of a head ({})", config.head_dim), std::to_string(values));
  }
  read_rotation(file, reader, config);
  config.rms_norm_eps = reader.number("attention.layer_norm_rms_epsilon").value_or(0);
  config.rope_theta = reader.number("rope.freq_base").value_or(config.rope_theta);
  const std::string type = reader.text("rope.scaling.type").value_or("none");
  const double factor =
      reader.number("rope.scaling.factor").value_or(reader.number("rope.scale_linear").value_or(0));
  if (type == "linear" || (type == "none" && factor != 0 && factor != 1)) {
    config.rope_kind = RopeKind::linear;
    config.rope_factor = factor == 0 ? 1 : factor;
    if (config.rope_factor == 1) config.rope_kind = RopeKind::plain;
  } else if (type != "none") {
    file.refuse(reader.key("rope.scaling.type"), "\"none\" or \"linear\"", in_quotes(type));
  }
  reader.pass_over("rope.scaling.finetuned");
  reader.pass_over("rope.scaling.original_context_length");
}

void read_experts(const File& file, ArchReader& reader, ModelConfig& config) {
  config.n_routed_experts = reader.required("expert_count");
  config.num_experts_per_tok = reader.required("expert_used_count");
  config.n_shared_experts = reader.integer("expert_shared_count").value_or(0);
  config.moe_intermediate_size = reader.required("expert_feed_forward_length");
  config.first_k_dense_replace = reader.integer("leading_dense_block_count").value_or(0);
  const double scale = reader.number("expert_weights_scale").value_or(0);
  config.routed_scaling_factor = scale == 0 ? 1 : scale;
  config.norm_topk_prob = reader.boolean("expert_weights_norm").value_or(false);
  const auto groups = reader.integer("expert_group_count").value_or(0);
  const auto groups_used = reader.integer("expert_group_used_count").value_or(0);
  const auto gating = reader.integer("expert_gating_func").value_or(0);
  const auto layers_behind = reader.integer("nextn_predict_layers").value_or(0);
  if (layers_behind < 0 || layers_behind >= config.num_hidden_layers) {
    file.refuse(reader.key("nextn_predict_layers"), "fewer than all layers",
                std::to_string(layers_behind));
  }
  config.num_hidden_layers -= layers_behind;
  config.num_nextn_predict_layers = layers_behind;
  if (groups > 1) {
    config.n_group = groups;
    config.topk_group = groups_used;
    config.topk_method = TopkMethod::noaux_tc;
  }
  if (gating != 0 && gating != static_cast<int64_t>(Gating::softmax) &&
      gating != static_cast<int64_t>(Gating::sigmoid)) {
    file.refuse(reader.key("expert_gating_func"), "1 (softmax) or 2 (sigmoid)",
                std::to_string(gating));
  }
  if (gating == static_cast<int64_t>(Gating::sigmoid)) config.scoring_func = ScoringFunc::sigmoid;
}

// What llama.cpp's own code takes for granted in each architecture.
void read_architecture(const File& file, std::string_view architecture, ArchReader& reader,
                       ModelConfig& config) {
  const auto has = [&](const char* tensor) { return file.find_tensor(tensor) != nullptr; };
  if (architecture == kGlm4MoeArch) {
    config.topk_method = TopkMethod::noaux_tc;
    if (reader.integer("expert_gating_func").value_or(0) == 0) {
      config.scoring_func = ScoringFunc::sigmoid;
    }
    config.attention_bias = has("blk.0.attn_q.bias");
    config.attention_out_bias = !config.attention_bias;
    config.use_qk_norm = has("blk.0.attn_q_norm.weight");
    return;
  }
  if (architecture == kQwen3MoeArch) {
    config.norm_topk_prob = config.use_qk_norm = true;
    const bool is_as_it_says = config.scoring_func == ScoringFunc::softmax &&
                               config.topk_method == TopkMethod::greedy &&
                               config.n_shared_experts == 0 && config.first_k_dense_replace == 0;
    if (is_as_it_says) return;
    fail(
        ErrorKind::input,
        "{}: a model of the architecture \"{}\" has softmax scores and experts in every layer, and "
        "neither groups nor shared experts; its metadata says otherwise",
        file.what(), architecture);
  }
  const bool is_as_it_says = config.scoring_func == ScoringFunc::softmax &&
                             !config.norm_topk_prob && config.topk_method == TopkMethod::greedy;
  if (!is_as_it_says) {
    fail(ErrorKind::input,
         "{}: a model of the architecture \"{}\" has softmax scores, gates that are not normalised "
         "and no groups of experts; its metadata says otherwise",
         file.what(), architecture);
  }
}

// F32 or F16 where all matrices are; else BF16, the type that numbers from blocks are computed in.
tensor::DType type_of(const File& file) {
  const auto all_are = [&](TensorType type) {
    return std::ranges::all_of(file.tensors(), [&](const TensorEntry& entry) {
      return entry.type == type || entry.shape.rank() == 1 ||
             entry.name.ends_with("ffn_gate_inp.weight");
    });
  };
  if (all_are(TensorType::F32)) return tensor::DType::F32;
  return all_are(TensorType::F16) ? tensor::DType::F16 : tensor::DType::BF16;
}

void read_token_ids(const File& file, ModelConfig& config) {
  config.bos_token_id = file.integer("tokenizer.ggml.bos_token_id");
  config.pad_token_id = file.integer("tokenizer.ggml.padding_token_id");
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                          "tokenizer.ggml.eom_token_id"}) {
    const auto id = file.integer(key);
    if (id && std::ranges::count(config.eos_token_ids, *id) == 0) {
      config.eos_token_ids.push_back(*id);
    }
  }
}

bool selection_biases_are_zero(const File& file) {
  return std::ranges::all_of(file.tensors(), [&](const TensorEntry& entry) {
    return !entry.name.ends_with(kGgufSelectionBias) || store::gguf::is_zero(file, entry);
  });
}

// What the format has no key for.
void read_our_config(const File& file, ModelConfig& config) {
  const auto text = file.text(kOurConfig);
  if (!text) return;
  const std::string what = file.what() + ": " + std::string(kOurConfig);
  if (text->size() > kMaxConfigBytes) {
    fail(ErrorKind::input, "{}: {} bytes, at most {} are read", what, text->size(),
         kMaxConfigBytes);
  }
  Json json = parse_json(*text, what);
  if (!json.is_object()) {
    fail(ErrorKind::input, "{}: expected a JSON object, found {}", what, json.type_name());
  }
  const auto take = [&](const char* key) -> std::optional<Json> {
    if (!json.contains(key)) return std::nullopt;
    Json value = json[key];
    json.erase(key);
    return value;
  };
  const auto refuse = [&](const char* key, const char* expected) {
    fail(ErrorKind::input, "{}: {} must be {}", what, key, expected);
  };
  if (const auto value = take("aux_loss_alpha")) {
    if (!value->is_number()) refuse("aux_loss_alpha", "a number");
    config.aux_loss_alpha = value->get<double>();
  }
  if (const auto value = take("initializer_range")) {
    if (!value->is_number()) refuse("initializer_range", "a number");
    config.initializer_range = value->get<double>();
  }
  if (const auto value = take("seq_aux")) {
    if (!value->is_boolean()) refuse("seq_aux", "true or false");
    config.seq_aux = value->get<bool>();
  }
  if (const auto value = take("topk_method")) {
    const bool chooses_alike = config.n_group == 1 && selection_biases_are_zero(file);
    if (*value == name_of(TopkMethod::greedy) && chooses_alike) {
      config.topk_method = TopkMethod::greedy;
    }
  }
  config.extra = json.dump();
}

std::string our_config(const ModelConfig& config) {
  Json json = Json::parse(config.extra);
  json["aux_loss_alpha"] = config.aux_loss_alpha;
  json["initializer_range"] = config.initializer_range;
  json["seq_aux"] = config.seq_aux;
  json["topk_method"] = name_of(config.topk_method);
  return json.dump();
}

bool turns_whole_heads(const ModelConfig& config) {
  return config.rotary_width() == config.head_dim;
}

// One gate is never normalised.
bool normalises(const ModelConfig& config) {
  return config.norm_topk_prob && config.num_experts_per_tok > 1;
}

bool is_plain_softmax(const ModelConfig& config) {
  return config.scoring_func == ScoringFunc::softmax && config.topk_method == TopkMethod::greedy;
}

// What the architectures take for granted.
bool is_released(const ModelConfig& config) {
  return is_plain_softmax(config) && !normalises(config) && !config.use_qk_norm &&
         !config.attention_bias && turns_whole_heads(config) && config.n_shared_experts > 0 &&
         config.num_attention_heads * config.head_dim == config.hidden_size;
}
bool is_qwen3(const ModelConfig& config) {
  return is_plain_softmax(config) && normalises(config) && config.use_qk_norm &&
         !config.attention_bias && turns_whole_heads(config) && config.n_shared_experts == 0 &&
         config.first_k_dense_replace == 0;
}

// What no architecture that dsmoe writes can say; nullptr: nothing.
const char* unspeakable(const ModelConfig& config) {
  const bool has_groups =
      config.topk_method != TopkMethod::greedy && config.topk_group < config.n_group;
  const auto is_expected = [&](int64_t layer) {
    return config.is_moe_layer(layer) == (layer >= config.first_k_dense_replace);
  };
  bool dense_layers_lead = true;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    dense_layers_lead = dense_layers_lead && is_expected(layer);
  }
  if (config.quantization)
    return "weights that are integers: convert the model they were made from";
  if (config.num_moe_layers() == 0) return "a model without experts";
  if (!dense_layers_lead) return "dense layers behind layers of experts (moe_layer_freq)";
  if (config.kv_lora_rank > 0) return "latent attention";
  if (config.rope_interleave) return "a rotation of neighbours";
  if (config.attention_bias && config.attention_out_bias) {
    return "attention_bias on the output projection";
  }
  if (config.n_shared_experts == 0 && !is_qwen3(config)) {
    return "layers without shared experts, but for those of qwen3_moe";
  }
  if (config.shared_expert_gate || config.shared_expert_intermediate_size > 0) {
    return "shared experts with a gate or a width of their own";
  }
  if (config.rope_kind != RopeKind::plain && config.rope_kind != RopeKind::linear) {
    return "rope_scaling other than linear";
  }
  if (has_groups && config.topk_method == TopkMethod::group_limited_greedy) {
    return "topk_method group_limited_greedy, which takes the best expert's score for a group's";
  }
  if (config.eos_token_ids.size() > 3) return "more than three eos_token_id";
  return nullptr;
}

// A part of a model that the architecture has no tensor for.
void check_names(const GgufModel& model, std::string_view what) {
  for (const Stack& stack : stacks(model.config, share_of(model.config))) {
    for (const Stack::Part& part : stack.parts) {
      const NameMap names = model.config.file_names;
      if (std::ranges::find(names, part.role, &RoleName::role) != names.end()) continue;
      fail(ErrorKind::input, "{}: GGUF's architecture \"{}\" has no tensor for {}", what,
           model.architecture, name_of(kDeepseekNames, part.role, stack.layer, -1));
    }
  }
}

}  // namespace

ModelConfig config_of_gguf(const File& file) {
  refuse_other_files(file);
  const auto name = file.text("general.architecture");
  if (!name) file.refuse_absent("general.architecture");
  const GgufArchitecture* architecture = find_architecture(*name);
  if (architecture == nullptr) {
    file.refuse("general.architecture", names_of_architectures(), in_quotes(*name));
  }
  const TensorEntry* embedding = file.find_tensor("token_embd.weight");
  if (embedding == nullptr || embedding->shape.rank() != 2) {
    fail(ErrorKind::input, "{}: has no token_embd.weight of two dimensions", file.what());
  }
  ArchReader reader(file, architecture->name);
  ModelConfig config;
  config.vocab_size = embedding->shape[0];
  config.hidden_size = reader.required("embedding_length");
  config.num_hidden_layers = reader.required("block_count");
  config.max_position_embeddings = reader.required("context_length");
  config.intermediate_size = reader.of_all_layers("feed_forward_length").value_or(0);
  config.tie_word_embeddings = file.find_tensor("output.weight") == nullptr;
  config.torch_dtype = type_of(file);
  if (const auto size = reader.integer("vocab_size"); size && *size != config.vocab_size) {
    file.refuse(reader.key("vocab_size"),
                fmt::format("the rows of token_embd.weight ({})", config.vocab_size),
                std::to_string(*size));
  }
  read_attention(file, reader, config);
  read_experts(file, reader, config);
  read_architecture(file, architecture->name, reader, config);
  reader.refuse_rest();
  read_token_ids(file, config);
  read_our_config(file, config);
  config.check(file.what());
  // As its own config.json would be read: what cannot be there is refused here.
  ModelConfig checked = parse_config(config.to_json().dump(), file.what());
  checked.file_names = architecture->names;
  checked.num_nextn_predict_layers = config.num_nextn_predict_layers;
  return checked;
}

GgufModel gguf_model(const ModelConfig& config, std::string_view what) {
  if (const char* cannot = unspeakable(config)) {
    fail(ErrorKind::input, "{}: GGUF has no way that dsmoe writes to say {}", what, cannot);
  }
  GgufModel model{.architecture = is_released(config) ? kDeepseekArch
                                  : is_qwen3(config)  ? kQwen3MoeArch
                                                      : kGlm4MoeArch,
                  .config = config};
  const bool has_bias = config.topk_method == TopkMethod::noaux_tc;
  model.config.norm_topk_prob = normalises(config);
  // Without a bias, gates that are normalised are not scaled.
  if (!has_bias && normalises(config)) model.config.routed_scaling_factor = 1;
  if (model.architecture == kGlm4MoeArch) {
    if (!has_bias) model.config.n_group = model.config.topk_group = 1;
    model.config.topk_method = TopkMethod::noaux_tc;
  }
  model.config.file_names = find_architecture(model.architecture)->names;
  check_names(model, what);
  return model;
}

void add_config(const GgufModel& model, const ModelConfig& original, Metadata& metadata) {
  const ModelConfig& config = model.config;
  const auto key = [&](std::string_view name) {
    return fmt::format("{}.{}", model.architecture, name);
  };
  metadata.text("general.architecture", model.architecture);
  metadata.text("general.type", "model");
  metadata.integer(key("block_count"), config.num_hidden_layers);
  metadata.integer(key("context_length"), config.max_position_embeddings);
  metadata.integer(key("embedding_length"), config.hidden_size);
  if (config.intermediate_size > 0) {
    metadata.integer(key("feed_forward_length"), config.intermediate_size);
  }
  metadata.integer(key("vocab_size"), config.vocab_size);
  metadata.integer(key("attention.head_count"), config.num_attention_heads);
  metadata.integer(key("attention.head_count_kv"), config.num_key_value_heads);
  if (model.architecture != kDeepseekArch) {
    metadata.integer(key("attention.key_length"), config.head_dim);
    metadata.integer(key("attention.value_length"), config.head_dim);
  }
  metadata.number(key("attention.layer_norm_rms_epsilon"), config.rms_norm_eps);
  metadata.integer(key("rope.dimension_count"), config.rotary_width());
  metadata.number(key("rope.freq_base"), config.rope_theta);
  const bool is_linear = config.rope_kind == RopeKind::linear;
  metadata.text(key("rope.scaling.type"), is_linear ? "linear" : "none");
  if (is_linear) metadata.number(key("rope.scaling.factor"), config.rope_factor);
  metadata.integer(key("leading_dense_block_count"),
                   std::min(config.first_k_dense_replace, config.num_hidden_layers));
  metadata.integer(key("expert_count"), config.n_routed_experts);
  metadata.integer(key("expert_used_count"), config.num_experts_per_tok);
  if (config.n_shared_experts > 0) {
    metadata.integer(key("expert_shared_count"), config.n_shared_experts);
  }
  metadata.integer(key("expert_feed_forward_length"), config.moe_intermediate_size);
  metadata.number(key("expert_weights_scale"), config.routed_scaling_factor);
  if (model.architecture == kGlm4MoeArch) {
    metadata.boolean(key("expert_weights_norm"), config.norm_topk_prob);
    metadata.integer(
        key("expert_gating_func"),
        static_cast<int64_t>(config.scoring_func == ScoringFunc::softmax ? Gating::softmax
                                                                         : Gating::sigmoid));
    if (config.topk_group < config.n_group) {
      metadata.integer(key("expert_group_count"), config.n_group);
      metadata.integer(key("expert_group_used_count"), config.topk_group);
    }
  }
  metadata.text(kOurConfig, our_config(original));
  const auto id = [&](const char* name, int64_t value) {
    metadata.integer(fmt::format("tokenizer.ggml.{}_token_id", name), value);
  };
  if (config.bos_token_id) id("bos", *config.bos_token_id);
  const char* ends[] = {"eos", "eot", "eom"};
  for (std::size_t i = 0; i < config.eos_token_ids.size(); ++i)
    id(ends[i], config.eos_token_ids[i]);
  if (config.pad_token_id) id("padding", *config.pad_token_id);
}

}  // namespace dsmoe::model

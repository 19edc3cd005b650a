// dsmoe info: what a model is and costs, from its config.json alone; weights are described if
// there.
#include <filesystem>
#include <sstream>

#include "base/atomic_file.h"
#include "base/cpu_count.h"
#include "base/cpu_features.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/readable.h"
#include "commands/command.h"
#include "commands/options.h"
#include "kernels/table.h"
#include "model/file_layout.h"
#include "model/inventory.h"
#include "store/gguf/gguf_file.h"
#include "store/hf_folder.h"
#include "terminal/output.h"
#include "text/text_files.h"
#include "text/tokenizer/tokenizer.h"

namespace dsmoe::app {
namespace {

using model::ModelConfig;

struct Costs {
  int64_t parameters = 0, active = 0;
  int64_t kv_bytes = 0;  // per token, in the model's compute type
  double forward_flops = 0, forward_flops_first = 0, training_flops = 0;
};

// The paper's count for a step on T tokens, per token: 6 (4 + 8 r) L d^2 + 12 L d T + 6 V d, with r
// the activated standard FFNs of 8 d^2 numbers each. Its 4 d^2 of attention are d (2 q + 2 kv)
// where the heads together are not as wide as the model, and its 12 L d T are 12 L q T.
double training_flops_per_token(const ModelConfig& config, int64_t sequence) {
  int64_t weights = 0;
  for (const model::Stack& stack : stacks(config, share_of(config))) {
    const model::Kind kind = kind_of(stack.role);
    if (kind == model::Kind::projection || kind == model::Kind::head) {
      weights += elements_per_token(config, stack);
    }
  }
  const attention::Shape shape =
      config.attention_shape(tensor::DType::F32, attention::LatentForm::expanded);
  const auto scores_and_values =
      static_cast<double>(config.num_hidden_layers * (shape.q_width() + shape.out_width()));
  return 6 * static_cast<double>(weights) + 6 * scores_and_values * static_cast<double>(sequence);
}

Costs costs_of(const ModelConfig& config) {
  const tensor::DType operand = infer::default_operand(config);
  return {.parameters = config.num_parameters(),
          .active = config.num_active_parameters(),
          .kv_bytes = config.kv_bytes_per_token(operand),
          .forward_flops = config.forward_flops_per_token(config.max_position_embeddings),
          .forward_flops_first = config.forward_flops_per_token(1),
          .training_flops = training_flops_per_token(config, config.max_position_embeddings)};
}

// Consecutive layers of one kind.
struct LayerRun {
  int64_t first = 0, last = 0;
  bool is_moe = false;
};

std::vector<LayerRun> layer_runs(const ModelConfig& config) {
  std::vector<LayerRun> runs;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const bool is_moe = config.is_moe_layer(layer);
    if (runs.empty() || runs.back().is_moe != is_moe) runs.push_back({layer, layer, is_moe});
    runs.back().last = layer;
  }
  return runs;
}

// What the folder calls itself; a model of no folder, what it would be called.
std::string type_of(const ModelConfig& config) {
  return config.read_as.empty() ? std::string(config.model_type()) : config.read_as;
}

std::string describe_router(const ModelConfig& config) {
  if (config.num_moe_layers() == 0) return "none: every layer is dense";
  std::string text = fmt::format("{} scores, best {} of {}", name_of(config.scoring_func),
                                 config.num_experts_per_tok, config.n_routed_experts);
  if (config.topk_group < config.n_group) {
    text += fmt::format(" in the best {} of {} groups", config.topk_group, config.n_group);
  }
  if (config.topk_method == model::TopkMethod::noaux_tc) text += ", chosen by score + bias";
  text += config.norm_topk_prob ? ", gates normalised" : ", gates as scored";
  if (config.routed_scaling_factor != 1.0) {
    text += fmt::format(", scaled by {}", config.routed_scaling_factor);
  }
  return text;
}

std::string describe_heads(const ModelConfig& config) {
  if (config.kv_lora_rank > 0) {
    const std::string queries =
        config.q_lora_rank > 0 ? fmt::format(", queries from {}", config.q_lora_rank) : "";
    return fmt::format("{} heads of {} + {} turned, values of {}, from a latent of {}{}",
                       config.num_attention_heads, config.qk_nope_head_dim, config.qk_rope_head_dim,
                       config.v_head_dim, config.kv_lora_rank, queries);
  }
  std::string text = fmt::format(
      "{} heads of {}, {} for keys and values{}", config.num_attention_heads, config.head_dim,
      config.num_key_value_heads, config.attention_bias ? ", with bias" : "");
  if (config.use_qk_norm) text += ", queries and keys normalised";
  if (config.rotary_width() < config.head_dim)
    text += fmt::format(", {} of each turned", config.rotary_width());
  return text;
}

std::string describe_attention(const ModelConfig& config) {
  return fmt::format(
      "{}; rope theta {}{}", describe_heads(config), config.rope_theta,
      config.rope_kind == model::RopeKind::plain
          ? ""
          : fmt::format(", {} scaling by {}", name_of(config.rope_kind), config.rope_factor));
}

// Weight files as they lie in the folder.
struct Weights {
  bool present = false;
  std::string dtypes;
  int64_t files = 0, tensors = 0, bytes = 0;
};

std::string joined_keys(const std::map<std::string, int64_t>& map) {
  std::string keys;
  for (const auto& [key, value] : map) keys += (keys.empty() ? "" : ", ") + key;
  return keys;
}

// A tensor that does not fit the configuration was refused when the model was opened.
Weights weights_of_gguf(const std::filesystem::path& path) {
  const auto file = store::gguf::File::open(path);
  Weights weights{.present = true, .files = 1};
  std::map<std::string, int64_t> by_type;
  for (const store::gguf::TensorEntry& entry : file.tensors()) {
    by_type[store::gguf::name_of(entry.type)] += static_cast<int64_t>(entry.num_bytes);
    weights.bytes += static_cast<int64_t>(entry.num_bytes);
    ++weights.tensors;
  }
  weights.dtypes = joined_keys(by_type);
  return weights;
}

Weights weights_of(const std::filesystem::path& folder, const ModelConfig& config) {
  Weights weights;
  if (store::gguf::is_gguf(folder)) return weights_of_gguf(folder);
  weights.present = store::has_weights(folder);
  if (!weights.present) return weights;
  const store::HfFolder opened = store::HfFolder::open(folder);
  opened.check(model::expected_tensors(config));
  std::map<std::string, int64_t> by_type;
  for (const std::string_view name : opened.names()) {
    const store::TensorEntry& entry = opened.at(name);
    by_type[std::string(tensor::name_of(entry.dtype))] += static_cast<int64_t>(entry.num_bytes);
    weights.bytes += static_cast<int64_t>(entry.num_bytes);
    ++weights.tensors;
  }
  weights.dtypes = joined_keys(by_type);
  weights.files = static_cast<int64_t>(opened.files().size());
  return weights;
}

// What stands around a text, as the folder's tokenizer says.
struct AroundTexts {
  std::string words;  // empty: no tokenizer
  OrderedJson json;
};

AroundTexts around_texts(const std::filesystem::path& folder) {
  if (!text::has_tokenizer(folder)) return {};
  try {
    const text::Tokenizer tokenizer = text::Tokenizer::from_file(folder.string());
    const text::TextFrame& frame = tokenizer.frame();
    return {.words = fmt::format("{}, as {} says", describe_frame(tokenizer), frame.said_by),
            .json = {{"before", frame.before}, {"after", frame.after}, {"said_by", frame.said_by}}};
  } catch (const Error& error) {  // what a model costs can be told all the same
    return {.words = error.what(), .json = {{"error", error.what()}}};
  }
}

struct MemoryLine {
  const char* type;
  double bytes;
};

// What `dsmoe quantize` would write: embedding, router and norms in bf16, the head in int8.
double quantised_bytes(ModelConfig config, tensor::WeightCoding coding) {
  config.torch_dtype = tensor::DType::BF16;
  config.quantization = {.projections = coding, .head = tensor::WeightCoding::int8};
  if (config.tie_word_embeddings) config.quantization.head = tensor::WeightCoding::plain;
  double bytes = 0;
  for (const tensor::TensorSpec& spec : model::written_tensors(config)) {
    bytes += static_cast<double>(store::num_bytes_of(spec));
  }
  return bytes;
}

std::vector<MemoryLine> memory_by_type(const ModelConfig& config, const Costs& costs) {
  const auto n = static_cast<double>(costs.parameters);
  return {{"bf16", 2 * n},
          {"fp32", 4 * n},
          {"int8", quantised_bytes(config, tensor::WeightCoding::int8)},
          {"int4", quantised_bytes(config, tensor::WeightCoding::int4)}};
}

// What killed processes left in the folder and beside it: hidden, and as large as a model.
struct Leftover {
  std::filesystem::path path;
  int64_t bytes = 0;
};

int64_t bytes_of(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::is_directory(path, error)) return static_cast<int64_t>(fs::file_size(path, error));
  int64_t bytes = 0;
  for (fs::recursive_directory_iterator at(path, error), end; !error && at != end;
       at.increment(error)) {
    if (at->is_regular_file(error)) bytes += static_cast<int64_t>(at->file_size(error));
  }
  return bytes;
}

std::vector<Leftover> leftovers_of(const std::filesystem::path& folder) {
  const std::filesystem::path inside = std::filesystem::absolute(folder).lexically_normal() / "";
  std::vector<Leftover> leftovers;
  for (const auto& place : {inside.parent_path().parent_path(), inside.parent_path()}) {
    for (const std::filesystem::path& path : leftovers_in(place)) {
      leftovers.push_back({.path = path, .bytes = bytes_of(path)});
    }
  }
  return leftovers;
}

OrderedJson json_of(const ModelConfig& config, const Costs& costs, const Weights& weights,
                    const AroundTexts& around, const std::vector<Leftover>& leftovers) {
  OrderedJson layers = OrderedJson::array();
  for (const LayerRun& run : layer_runs(config)) {
    layers.push_back(
        {{"first", run.first}, {"last", run.last}, {"kind", run.is_moe ? "moe" : "dense"}});
  }
  OrderedJson memory;
  for (const MemoryLine& line : memory_by_type(config, costs)) {
    memory[line.type] = static_cast<int64_t>(line.bytes);
  }
  OrderedJson cpu = OrderedJson::array();
  for (const kernels::Candidate& candidate : kernels::cpu_candidates()) {
    cpu.push_back({{"tier", candidate.name}, {"declined", candidate.declined}});
  }
  OrderedJson json{{"model_type", type_of(config)},
                   {"parameters", costs.parameters},
                   {"active_parameters", costs.active},
                   {"tensors", config.num_tensors()},
                   {"layers", layers},
                   {"hidden_size", config.hidden_size},
                   {"vocab_size", config.vocab_size},
                   {"context", config.max_position_embeddings},
                   {"dtype", tensor::name_of(config.torch_dtype)},
                   {"routed_experts", config.n_routed_experts},
                   {"shared_experts", config.n_shared_experts},
                   {"experts_per_token", config.num_experts_per_tok},
                   {"router", describe_router(config)},
                   {"kv_bytes_per_token", costs.kv_bytes},
                   {"forward_flops_per_token", costs.forward_flops},
                   {"training_flops_per_token", costs.training_flops},
                   {"memory_bytes", memory},
                   {"cpu_tiers", cpu},
                   {"cpu_tier", kernels::select_cpu_table().name},
                   {"threads", available_physical_cores()}};
  if (weights.present) {
    json["weights"] = {{"dtypes", weights.dtypes},
                       {"files", weights.files},
                       {"tensors", weights.tensors},
                       {"bytes", weights.bytes}};
  } else {
    json["weights"] = nullptr;
  }
  json["around_text"] = around.json;
  json["leftovers"] = OrderedJson::array();
  for (const Leftover& leftover : leftovers) {
    json["leftovers"].push_back({{"path", leftover.path.string()}, {"bytes", leftover.bytes}});
  }
  return json;
}

void print_leftovers(const std::vector<Leftover>& leftovers) {
  if (leftovers.empty()) return;
  print("\nleft by processes that were killed; their next run removes it, or rm -r\n");
  for (const Leftover& leftover : leftovers) {
    print("  {}  {}\n", for_terminal(leftover.path.string()),
          human_bytes(static_cast<double>(leftover.bytes)));
  }
}

void print_layers(const ModelConfig& config) {
  print("\nlayers\n");
  for (const LayerRun& run : layer_runs(config)) {
    const std::string range = run.first == run.last ? fmt::format("{}", run.first)
                                                    : fmt::format("{}-{}", run.first, run.last);
    if (run.is_moe) {
      const std::string shared =
          config.n_shared_experts > 0
              ? fmt::format("{} shared x {}", config.n_shared_experts, config.moe_intermediate_size)
              : "no shared experts";
      print("  {:<8}MoE    {} routed x {} ({} per token), {}\n", range, config.n_routed_experts,
            config.moe_intermediate_size, config.num_experts_per_tok, shared);
    } else {
      print("  {:<8}dense  width {}\n", range, config.intermediate_size);
    }
  }
  print("  router    {}\n", describe_router(config));
  print("  attention {}\n", describe_attention(config));
}

void print_cpu() {
  print("\nthis machine\n");
  std::istringstream words(describe(cpu_features()));
  std::string line = " ";
  for (std::string word; words >> word; line += ' ' + word) {
    if (line.size() + 1 + word.size() <= 80) continue;
    print("{}\n", line);
    line = "   ";
  }
  print("{}\n", line);
  const std::string_view chosen = kernels::select_cpu_table().name;
  for (const kernels::Candidate& candidate : kernels::cpu_candidates()) {
    std::string verdict = candidate.declined;
    if (candidate.name == chosen) {
      verdict = "runs";
    } else if (verdict.empty()) {
      verdict = "could run here; DSMOE_ISA chooses it";
    }
    print("  {:<8}{}\n", candidate.name, verdict);
  }
  print("  threads {}\n", available_physical_cores());
}

void print_text(const ModelConfig& config, const Costs& costs, const Weights& weights,
                const AroundTexts& around, const std::vector<Leftover>& leftovers) {
  const auto row = [](const char* name, const std::string& value) {
    print("{:<26}{}\n", name, value);
  };
  const std::string_view operand = tensor::name_of(infer::default_operand(config));
  row("model type", type_of(config));
  row("parameters", with_commas(costs.parameters));
  row("active per token", with_commas(costs.active));
  row("hidden, vocabulary", fmt::format("{}, {}", config.hidden_size, config.vocab_size));
  row("context", with_commas(config.max_position_embeddings));
  if (!around.words.empty()) row("a text", for_terminal(around.words));
  row("KV cache per token", fmt::format("{} bytes ({})", with_commas(costs.kv_bytes), operand));
  row("  of a full context", human_bytes(static_cast<double>(costs.kv_bytes) *
                                         static_cast<double>(config.max_position_embeddings)));
  row("FLOPs per token, forward",
      fmt::format("{} at the start, {} at a full context", human_number(costs.forward_flops_first),
                  human_number(costs.forward_flops)));
  row("FLOPs per token, training",
      fmt::format("{} in sequences of {}", human_number(costs.training_flops),
                  config.max_position_embeddings));
  for (const MemoryLine& line : memory_by_type(config, costs)) {
    row(fmt::format("weights in {}", line.type).c_str(), human_bytes(line.bytes));
  }
  if (weights.present) {
    row("weights here", fmt::format("{}, {} tensors in {} file{}, {} bytes", weights.dtypes,
                                    with_commas(weights.tensors), weights.files,
                                    weights.files == 1 ? "" : "s", with_commas(weights.bytes)));
  } else {
    row("weights here", "none (config only)");
  }
  print_layers(config);
  print_leftovers(leftovers);
  print_cpu();
}

int run_info(const CommonOptions& options) {
  if (options.quiet) set_log_level(LogLevel::quiet);
  kernels::select_cpu_table();  // a wrong DSMOE_ISA is refused before anything is printed
  const std::filesystem::path path = options.model;
  std::error_code ignored;
  const bool is_gguf = store::gguf::is_gguf(path);
  const bool is_config = !is_gguf && std::filesystem::is_regular_file(path, ignored);
  const ModelConfig config = model::read_config(path);
  const Weights weights = is_config ? Weights{} : weights_of(path, config);
  const AroundTexts around = is_config ? AroundTexts{} : around_texts(path);
  const Costs costs = costs_of(config);
  const std::vector<Leftover> leftovers =
      is_config || is_gguf ? std::vector<Leftover>{} : leftovers_of(path);
  if (options.json) {
    print_json(json_of(config, costs, weights, around, leftovers));
  } else {
    print_text(config, costs, weights, around, leftovers);
  }
  return kDone;
}

}  // namespace

void add_info(CommandLine& app) {
  auto options = std::make_shared<CommonOptions>();
  CommandLine command = app.command("info", "What a model is and costs; needs config.json only");
  add_model_argument(command, *options, "model folder, a GGUF file, or a config.json");
  add_output_flags(command, *options);
  command.footer(
      "Weights in int8 and int4 as dsmoe quantize writes them, scales included. Hidden files\n"
      "that killed processes left in the folder and beside it are listed with their sizes.\n\n"
      "Examples:\n  dsmoe info my-model/\n  dsmoe info configs/deepseek-moe-16b.json --json");
  command.runs([options] { return run_info(*options); });
}

}  // namespace dsmoe::app

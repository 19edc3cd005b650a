// dsmoe demo: writes a small model of random weights to look at.
#include "base/log.h"
#include "base/progress.h"
#include "command.h"
#include "model/initialise.h"
#include "options.h"
#include "output.h"
#include "store/folder_writer.h"
#include "store/mapped_file.h"

namespace dsmoe::app {
namespace {

// One dense and three MoE layers. initializer_range is far above what training starts from, so that
// untrained routers already have preferences to show.
constexpr std::string_view kDemoConfig = R"({
  "architectures": ["DeepseekForCausalLM"],
  "model_type": "deepseek",
  "vocab_size": 512,
  "hidden_size": 64,
  "num_hidden_layers": 4,
  "num_attention_heads": 4,
  "num_key_value_heads": 4,
  "intermediate_size": 176,
  "moe_intermediate_size": 32,
  "n_routed_experts": 16,
  "n_shared_experts": 2,
  "num_experts_per_tok": 4,
  "first_k_dense_replace": 1,
  "moe_layer_freq": 1,
  "norm_topk_prob": false,
  "scoring_func": "softmax",
  "hidden_act": "silu",
  "max_position_embeddings": 1024,
  "initializer_range": 0.2,
  "rms_norm_eps": 1e-06,
  "rope_theta": 10000.0,
  "rope_scaling": null,
  "attention_bias": false,
  "tie_word_embeddings": false,
  "bos_token_id": 0,
  "eos_token_id": 1,
  "torch_dtype": "bfloat16"
})";

struct DemoOptions {
  std::string out, config;
  uint64_t seed = 1;
  bool quiet = false;
};

int run_demo(const DemoOptions& options) {
  if (options.quiet) set_log_level(LogLevel::quiet);
  const std::string text = options.config.empty()
                               ? std::string(kDemoConfig)
                               : store::read_small_file(options.config, model::kMaxConfigBytes);
  const model::ModelConfig config =
      model::parse_config(text, options.config.empty() ? "demo config" : options.config);
  model::InitialWeights weights(config, options.seed);
  store::FolderWriter writer(options.out, weights.specs());
  Progress progress({.label = "weights",
                     .total = static_cast<int64_t>(weights.specs().size()),
                     .unit = "tensors"});
  int64_t done = 0;
  for (const tensor::TensorSpec& spec : weights.specs()) {
    writer.write(spec.name, weights.tensor(spec.name));
    weights.release(spec.name);
    progress.update(++done);
  }
  progress.finish();
  writer.add_file("config.json", config.to_json().dump(2) + "\n");
  writer.commit();
  print("{}: a model of {} random parameters (seed {})\n", options.out,
        with_commas(config.num_parameters()), options.seed);
  return kDone;
}

}  // namespace

void add_demo(CLI::App& app, Action& action) {
  auto options = std::make_shared<DemoOptions>();
  CLI::App* command = app.add_subcommand("demo", "Write a small model of random weights");
  command->add_option("-o,--out", options->out, "folder to write; must not exist")
      ->required()
      ->type_name("DIR");
  command
      ->add_option("--config", options->config, "config.json of another shape; default: built in")
      ->type_name("FILE");
  command->add_option("--seed", options->seed, "same seed, same weights; default: 1")
      ->type_name("N");
  command->add_flag("-q,--quiet", options->quiet, "no messages on stderr but errors");
  command->footer(
      "The model is not trained: it answers noise, quickly.\n\n"
      "Example:\n  dsmoe demo -o demo-out/model && dsmoe info demo-out/model");
  command->callback([options, &action] { action = [options] { return run_demo(*options); }; });
}

}  // namespace dsmoe::app

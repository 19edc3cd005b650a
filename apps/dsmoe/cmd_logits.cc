// dsmoe logits: the door for anyone who wants to compare numbers.
#include "base/log.h"
#include "command.h"
#include "infer/trace.h"
#include "interrupt.h"
#include "options.h"
#include "store/safetensors.h"
#include "token_list.h"

namespace dsmoe::app {
namespace {

struct LogitsOptions {
  CommonOptions common;
  std::string tokens, tokens_file, out;
  int64_t top_k = 0;
};

std::string layer_name(int64_t layer, std::string_view what) {
  return fmt::format("layers.{}.{}", layer, what);
}

std::vector<tensor::TensorSpec> result_tensors(const model::ModelConfig& config, int64_t num_tokens,
                                               int64_t top_k) {
  std::vector<tensor::TensorSpec> specs{
      {"logits", tensor::DType::F32, {num_tokens, config.vocab_size}}};
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (!config.is_moe_layer(layer)) continue;
    const tensor::Shape shape{num_tokens, top_k};
    specs.push_back({layer_name(layer, "topk_index"), tensor::DType::I32, shape});
    specs.push_back({layer_name(layer, "topk_weight"), tensor::DType::F32, shape});
  }
  return specs;
}

int run_logits(const LogitsOptions& options) {
  if (options.common.quiet) set_log_level(LogLevel::quiet);
  const std::vector<int32_t> tokens = options.tokens_file.empty()
                                          ? parse_token_list(options.tokens, "--tokens")
                                          : read_token_file(options.tokens_file);
  const Engine engine(options.common);
  const auto model = engine.load(options.common);
  const int64_t top_k = infer::checked_top_k(model->config, options.top_k);
  infer::check_tokens(model->config, tokens,
                      options.tokens_file.empty() ? "--tokens" : options.tokens_file);
  const InterruptScope interrupt;
  store::SafetensorsWriter writer(
      options.out, result_tensors(model->config, static_cast<int64_t>(tokens.size()), top_k));
  const auto take_logits = [&](std::span<const float> values) {
    writer.write("logits", std::as_bytes(values));
  };
  const auto take_routing = [&](int64_t layer, std::span<const int32_t> index,
                                std::span<const float> gate) {
    writer.write(layer_name(layer, "topk_index"), std::as_bytes(index));
    writer.write(layer_name(layer, "topk_weight"), std::as_bytes(gate));
  };
  const infer::Outcome outcome =
      infer::trace_sequence(engine.context(), *model, tokens,
                            {.top_k = options.top_k, .cancelled = &InterruptScope::flag()},
                            {.logits = take_logits, .routing = take_routing});
  if (outcome == infer::Outcome::cancelled) return kInterrupted;
  writer.finish();
  log_info("{}: logits of {} tokens", options.out, tokens.size());
  return kDone;
}

}  // namespace

void add_logits(CLI::App& app, Action& action) {
  auto options = std::make_shared<LogitsOptions>();
  CLI::App* command = app.add_subcommand("logits", "Write logits and routing of given tokens");
  add_model_argument(*command, options->common);
  CLI::Option_group* input = command->add_option_group("input");
  input->add_option("--tokens", options->tokens, "token ids, e.g. 1,2,3")->type_name("IDS");
  input->add_option("--tokens-file", options->tokens_file, "file of token ids")->type_name("FILE");
  input->require_option(1);
  command->add_option("-o,--out", options->out, "safetensors file to write")
      ->required()
      ->type_name("FILE");
  command
      ->add_option("--num-experts-per-tok", options->top_k,
                   "routed experts per token; default: config")
      ->check(CLI::PositiveNumber)
      ->type_name("K");
  command->add_flag("-q,--quiet", options->common.quiet, "no messages on stderr but errors");
  add_run_flags(*command, options->common);
  command->footer(
      "Writes logits [tokens, vocabulary] (F32) and, for each MoE layer N, layers.N.topk_index "
      "(I32)\n"
      "and layers.N.topk_weight (F32) [tokens, K].\n\n"
      "Example:\n  dsmoe logits my-model/ --tokens 1,2,3 -o out.safetensors");
  command->callback([options, &action] { action = [options] { return run_logits(*options); }; });
}

}  // namespace dsmoe::app

// dsmoe logits: the door for anyone who wants to compare numbers.
#include <algorithm>
#include <numeric>

#include "base/log.h"
#include "commands/command.h"
#include "commands/options.h"
#include "commands/token_list.h"
#include "infer/sequence/trace.h"
#include "report/expert_table.h"
#include "store/safetensors.h"
#include "terminal/interrupt.h"
#include "terminal/output.h"

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

infer::Outcome write_file(const LogitsOptions& options, const Engine& engine,
                          const model::Model& model, std::span<const int32_t> tokens,
                          const infer::TraceOptions& trace) {
  store::SafetensorsWriter writer(
      options.out, result_tensors(model.config, static_cast<int64_t>(tokens.size()),
                                  infer::checked_top_k(model.config, options.top_k)));
  const auto take_logits = [&](std::span<const float> values) {
    writer.write("logits", std::as_bytes(values));
  };
  const std::vector<int64_t> layers = infer::moe_layers(model.config);
  const auto take_routes = [&](const infer::RoutesView& routes) {
    for (int64_t l = 0; l < routes.num_layers; ++l) {
      infer::Routes of_layer{.num_layers = 1, .top_k = routes.top_k};
      for (int64_t t = 0; t < routes.num_tokens; ++t) of_layer.append(routes.slots(t, l));
      const int64_t layer = layers[static_cast<std::size_t>(l)];
      writer.write(layer_name(layer, "topk_index"), std::as_bytes(std::span(of_layer.index)));
      writer.write(layer_name(layer, "topk_weight"), std::as_bytes(std::span(of_layer.gate)));
    }
  };
  const infer::Outcome outcome = infer::trace_sequence(
      engine.context(), model, tokens, trace, {.logits = take_logits, .routes = take_routes});
  if (outcome == infer::Outcome::cancelled) return outcome;
  writer.finish();
  log_info("{}: logits of {} tokens", options.out, tokens.size());
  return outcome;
}

// "412 3.21  17 3.02  8 2.97": the best next tokens with their logits.
std::string best_tokens(std::span<const float> logits) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const std::size_t count = std::min<std::size_t>(3, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
                    [&](int32_t a, int32_t b) {
                      return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
                    });
  std::string text;
  for (std::size_t i = 0; i < count; ++i) {
    text += fmt::format("{:>7} {:<6.2f}", order[i], logits[order[i]]);
  }
  return text;
}

infer::Outcome print_tables(const LogitsOptions& options, const Engine& engine,
                            const model::Model& model, std::span<const int32_t> tokens,
                            const infer::TraceOptions& trace) {
  report::ExpertTable table;
  for (const int32_t token : tokens) table.labels.push_back(std::to_string(token));
  std::vector<std::string> best;
  const auto vocabulary = static_cast<std::size_t>(model.config.vocab_size);
  const auto take_logits = [&](std::span<const float> values) {
    for (std::size_t at = 0; at < values.size(); at += vocabulary) {
      best.push_back(best_tokens(values.subspan(at, vocabulary)));
    }
  };
  const int64_t top_k = infer::checked_top_k(model.config, options.top_k);
  table.layers = infer::moe_layers(model.config);
  table.routes = {.num_layers = model.config.num_moe_layers(), .top_k = top_k};
  const auto take_routes = [&](const infer::RoutesView& routes) { table.routes.append(routes); };
  const infer::Outcome outcome = infer::trace_sequence(
      engine.context(), model, tokens, trace, {.logits = take_logits, .routes = take_routes});
  if (outcome == infer::Outcome::cancelled) return outcome;
  print("position  token   best next tokens, each with its logit\n");
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    std::string line = fmt::format("{:>8}{:>7} {}", i, tokens[i], best[i]);
    line.erase(line.find_last_not_of(' ') + 1);
    print("{}\n", line);
  }
  if (table.layers.empty()) return outcome;
  print("\nexperts of each token, the strongest first, each with its gate\n{}",
        report::format_expert_table(
            table, {.experts_per_cell = std::min<int64_t>(3, top_k),
                    .columns = terminal_columns(),
                    .colour = stdout_has_colour() ? report::Colour::yes : report::Colour::no}));
  return outcome;
}

int run_logits(const LogitsOptions& options) {
  if (options.common.quiet) set_log_level(LogLevel::quiet);
  const std::vector<int32_t> tokens = options.tokens_file.empty()
                                          ? parse_token_list(options.tokens, "--tokens")
                                          : read_token_file(options.tokens_file);
  const Engine engine(options.common);
  const auto model = engine.load(options.common);
  infer::check_tokens(model->config, tokens,
                      options.tokens_file.empty() ? "--tokens" : options.tokens_file);
  const InterruptScope interrupt;
  const infer::TraceOptions trace{.top_k = options.top_k, .cancelled = &InterruptScope::flag()};
  const infer::Outcome outcome = options.out.empty()
                                     ? print_tables(options, engine, *model, tokens, trace)
                                     : write_file(options, engine, *model, tokens, trace);
  return outcome == infer::Outcome::cancelled ? kInterrupted : kDone;
}

}  // namespace

void add_logits(CommandLine& app) {
  auto options = std::make_shared<LogitsOptions>();
  CommandLine command = app.command("logits", "Write logits and routing of given tokens");
  add_model_argument(command, options->common);
  CommandLine input = command.exactly_one("Input");
  input.option("--tokens", options->tokens, "token ids, e.g. 1,2,3").type("IDS");
  input.option("--tokens-file", options->tokens_file, "file of token ids").type("FILE");
  command.option("-o,--out", options->out, "safetensors file to write; default: print tables")
      .type("FILE");
  command
      .option("--num-experts-per-tok", options->top_k, "routed experts per token; default: config")
      .at_least(1)
      .type("K");
  command.flag("-q,--quiet", options->common.quiet, "no messages on stderr but errors");
  add_run_flags(command, options->common);
  command.footer(
      "-o writes logits [tokens, vocabulary] (F32) and, for each MoE layer N, layers.N.topk_index "
      "(I32)\n"
      "and layers.N.topk_weight (F32) [tokens, K].\n\n"
      "Example:\n  dsmoe logits my-model/ --tokens 1,2,3 -o out.safetensors");
  command.runs([options] { return run_logits(*options); });
}

}  // namespace dsmoe::app

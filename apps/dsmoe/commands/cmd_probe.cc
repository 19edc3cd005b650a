// dsmoe probe: what a model loses without the experts it wants.
#include <filesystem>

#include "base/log.h"
#include "base/progress.h"
#include "base/readable.h"
#include "commands/command.h"
#include "commands/options.h"
#include "infer/measure/probe.h"
#include "report/run_text.h"
#include "terminal/interrupt.h"
#include "terminal/output.h"
#include "train/run_data.h"

namespace dsmoe::app {
namespace {

namespace fs = std::filesystem;

struct ProbeCommand {
  CommonOptions common;
  std::vector<std::string> data;
  int64_t max_tokens = 20000;
};

std::string title_of(const infer::ProbeVariant& variant, const model::ModelConfig& config) {
  const int64_t routed = config.n_routed_experts;
  switch (variant.kind) {
    case infer::ProbeKind::whole:
      return fmt::format("the model itself: {} of {} routed, {} shared", variant.top_k, routed,
                         config.n_shared_experts);
    case infer::ProbeKind::masked:
      return fmt::format(
          "without the best {} of {} ({:.0f} %)", variant.ablation.skip_best, routed,
          100.0 * static_cast<double>(variant.ablation.skip_best) / static_cast<double>(routed));
    case infer::ProbeKind::fewer_active:
      return fmt::format("{} active instead of {}", variant.top_k, config.num_experts_per_tok);
    case infer::ProbeKind::shared_replaced:
      return fmt::format("{} more routed instead of the shared", config.n_shared_experts);
  }
  return "";
}

void report(const ProbeCommand& options, const model::ModelConfig& config,
            const report::LabelledText& text, const std::vector<infer::ProbeResult>& results) {
  if (options.common.json) {
    OrderedJson variants = OrderedJson::array();
    for (const infer::ProbeResult& result : results) {
      const infer::ProbeVariant& variant = result.variant;
      variants.push_back(
          {{"kind", infer::name_of(variant.kind)},
           {"title", title_of(variant, config)},
           {"masked", variant.ablation.skip_best},
           {"active_routed", variant.top_k},
           {"shared",
            variant.ablation.shared == model::SharedExperts::used ? config.n_shared_experts : 0},
           {"loss", result.loss},
           {"minus_whole", result.loss - results.front().loss}});
    }
    return print_json({{"model", options.common.model},
                       {"text", text.title},
                       {"documents", text.documents.size()},
                       {"tokens", text.num_tokens()},
                       {"routed_experts", config.n_routed_experts},
                       {"variants", variants}});
  }
  print("model  {}\ntext   {}: {} documents, {} tokens\n\n  {:<44}{:>9}{:>12}\n",
        options.common.model, for_terminal(text.title),
        with_commas(static_cast<int64_t>(text.documents.size())), with_commas(text.num_tokens()),
        "nats per token", "loss", "difference");
  for (const infer::ProbeResult& result : results) {
    const bool is_whole = result.variant.kind == infer::ProbeKind::whole;
    print("  {:<44}{:>9.4f}{:>12}\n", title_of(result.variant, config), result.loss,
          is_whole ? "" : fmt::format("{:+.4f}", result.loss - results.front().loss));
  }
}

// What was given; else what the run has read that the model is of; else the embedded corpus.
report::LabelledText text_for(const ProbeCommand& options, const data::Encoder& encoder,
                              const report::TextLimits& limits) {
  if (!options.data.empty()) return report::text_of_files(options.data, encoder, limits);
  const fs::path checkpoint = options.common.model;
  if (auto read = report::text_of_run(checkpoint / "..", checkpoint, encoder, limits)) {
    return std::move(read->text);
  }
  return report::embedded_text(encoder, limits);
}

int run_probe_command(const ProbeCommand& options) {
  if (options.common.quiet) set_log_level(LogLevel::quiet);
  Engine engine(options.common);
  const auto model = engine.load(options.common);
  const std::vector<infer::ProbeVariant> variants = infer::probe_variants(model->config);
  const train::RunTokenizer tokenizer =
      train::prepare_tokenizer({.given = options.common.model}, model->config, engine.pool());
  const data::Encoder encoder = train::encoder_of(tokenizer, model->config);
  const report::TextLimits limits{.max_tokens = options.max_tokens, .context = model->context};
  const report::LabelledText text = text_for(options, encoder, limits);
  std::vector<infer::ScoredDocument> documents;
  for (const report::LabelledText::Document& document : text.documents) {
    documents.push_back({.tokens = document.tokens});
  }
  const auto per_variant = static_cast<int64_t>(documents.size());
  Progress progress({.label = "probe",
                     .total = per_variant * static_cast<int64_t>(variants.size()),
                     .unit = "documents"});
  const InterruptScope interrupt;
  const auto results = infer::run_probe(
      engine.context(), *model, variants, documents,
      {.cancelled = &InterruptScope::flag(), .progress = [&](int64_t variant, int64_t document) {
         progress.update(variant * per_variant + document + 1);
       }});
  if (results.size() < variants.size()) return kInterrupted;
  progress.finish();
  report(options, model->config, text, results);
  return kDone;
}

}  // namespace

void add_probe(CommandLine& app) {
  auto options = std::make_shared<ProbeCommand>();
  CommandLine command =
      app.command("probe", "What a model loses without its best, some, or its shared experts");
  add_model_argument(command, options->common);
  command
      .option("--data", options->data,
              "text, JSONL, either as .zst, or folders of these; default: what the model's run was "
              "trained on, else the embedded corpus")
      .type("FILE");
  command.option("--max-tokens", options->max_tokens, "read so many of the text")
      .range(int64_t{2}, int64_t{1} << 26)
      .show_default();
  add_output_flags(command, options->common);
  add_run_flags(command, options->common);
  command.footer(
      "The paper's tests of specialisation. Without the best experts of each token a model with\n"
      "little redundancy suffers most; a shared expert that routed ones cannot replace holds what\n"
      "they have in common.\n\n"
      "Examples:\n  dsmoe probe demo-out/step-00001500\n"
      "  dsmoe probe my-model --data valid.txt --max-tokens 100000 --json");
  command.runs([options] { return run_probe_command(*options); });
}

}  // namespace dsmoe::app

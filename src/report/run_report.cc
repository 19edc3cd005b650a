// Metrics, and what the newest checkpoint says of itself.
#include "report/run_report.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/log.h"
#include "base/readable.h"
#include "data/demo_tokens.h"
#include "infer/load_model.h"
#include "infer/measure/specialisation.h"
#include "infer/sequence/generate.h"
#include "report/labelled_text.h"
#include "report/report_page.h"
#include "report/run_card.h"
#include "report/run_text.h"
#include "store/checkpoint.h"
#include "train/run_data.h"

namespace dsmoe::report {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kPromptTokens = 16;
constexpr int64_t kSampleTokens = 120;
constexpr uint64_t kSampleSeed = 1;
constexpr double kSampleTemperature = 0.7;
constexpr uint64_t kFloorDocuments = 1000;

// The checkpoint, loaded.
struct Subject {
  fs::path folder;
  std::unique_ptr<model::Model> model;
  train::RunTokenizer tokenizer;
};

Subject load_subject(const kernels::Context& context, const fs::path& folder) {
  auto model = infer::load_model(context, folder, {});
  train::RunTokenizer tokenizer =
      train::prepare_tokenizer({.given = folder.string()}, model->config, *context.pool);
  return {.folder = folder, .model = std::move(model), .tokenizer = std::move(tokenizer)};
}

struct ReportText {
  LabelledText text;
  std::optional<double> floor;
  bool is_embedded = false;
};

std::optional<ReportText> choose_text(const RunReportRequest& request, const Subject& subject) {
  const model::Model& model = *subject.model;
  const data::Encoder encoder = train::encoder_of(subject.tokenizer, model.config);
  const TextLimits limits{.max_tokens = request.max_tokens, .context = model.context};
  if (!request.data.empty()) {
    return ReportText{.text = text_of_files(request.data, encoder, limits)};
  }
  if (auto read = text_of_run(request.run, subject.folder, encoder, limits)) {
    ReportText found{.text = std::move(read->text), .is_embedded = read->is_embedded};
    if (found.is_embedded) {
      const data::DemoTokens tokens = data::encode_demo(
          data::DemoCorpus(1), {.first = data::kDemoValidation, .count = kFloorDocuments}, encoder);
      found.floor = tokens.floor();
    }
    return found;
  }
  log_info("{}: no text of the run was found; --data FILE... gives one", request.run.string());
  return std::nullopt;
}

// The share of every label in each expert's tokens, labels weighted equally: [label][expert].
OrderedJson shares_of(const infer::DomainCounts& counts) {
  std::vector<std::vector<double>> weight(counts.size());
  std::vector<double> column(counts.front().size(), 0);
  for (std::size_t k = 0; k < counts.size(); ++k) {
    const auto total = static_cast<double>(
        std::max<int64_t>(1, std::accumulate(counts[k].begin(), counts[k].end(), int64_t{0})));
    for (std::size_t e = 0; e < counts[k].size(); ++e) {
      weight[k].push_back(static_cast<double>(counts[k][e]) / total);
      column[e] += weight[k].back();
    }
  }
  OrderedJson shares = OrderedJson::array();
  for (const std::vector<double>& row : weight) {
    OrderedJson values = OrderedJson::array();
    for (std::size_t e = 0; e < row.size(); ++e) {
      values.push_back(column[e] > 0 ? std::round(row[e] / column[e] * 1e4) / 1e4 : 0.0);
    }
    shares.push_back(values);
  }
  return shares;
}

OrderedJson specialisation_json(const kernels::Context& context, const Subject& subject,
                                const LabelledText& text, const std::atomic<bool>* cancelled) {
  std::vector<infer::DomainDocument> documents;
  for (const LabelledText::Document& document : text.documents) {
    documents.push_back({.tokens = document.tokens, .domain = document.label});
  }
  const auto routing = infer::count_routing(
      context, *subject.model, documents,
      {.num_domains = static_cast<int64_t>(text.labels.size()), .cancelled = cancelled});
  OrderedJson layers = OrderedJson::array();
  for (const infer::LayerRouting& layer : routing) {
    layers.push_back({{"layer", layer.layer},
                      {"bits", infer::mutual_information(layer.first)},
                      {"share", shares_of(layer.first)}});
  }
  return {{"title", fmt::format("{}, {} tokens", text.title, with_commas(text.num_tokens()))},
          {"labels", text.labels},
          {"layers", layers}};
}

struct Prompt {
  std::string label;
  std::vector<int32_t> tokens;
};

// The beginnings of documents, label after label in turn.
std::vector<Prompt> make_prompts(const RunReportRequest& request, const Subject& subject,
                                 const ReportText& source) {
  std::vector<Prompt> prompts;
  if (source.is_embedded) {
    for (const data::DemoDomain domain : data::kDemoDomains) {
      prompts.push_back({std::string(data::to_string(domain)),
                         subject.tokenizer.tokenizer.encode(data::demo_prompt(domain))});
    }
  } else {
    const LabelledText& text = source.text;
    std::vector<std::vector<const LabelledText::Document*>> of_label(text.labels.size());
    for (const LabelledText::Document& document : text.documents) {
      of_label[static_cast<std::size_t>(document.label)].push_back(&document);
    }
    for (std::size_t i = 0; i < text.documents.size(); ++i) {
      for (std::size_t k = 0; k < of_label.size(); ++k) {
        if (i >= of_label[k].size()) continue;
        const std::vector<int32_t>& tokens = of_label[k][i]->tokens;
        const auto count =
            static_cast<std::ptrdiff_t>(std::min<std::size_t>(tokens.size(), kPromptTokens));
        prompts.push_back({text.labels[k], {tokens.begin(), tokens.begin() + count}});
      }
      if (static_cast<int64_t>(prompts.size()) >= request.num_samples) break;
    }
  }
  prompts.resize(std::min(prompts.size(),
                          static_cast<std::size_t>(std::max<int64_t>(0, request.num_samples))));
  return prompts;
}

OrderedJson samples_json(const kernels::Context& context, const Subject& subject,
                         const std::vector<Prompt>& prompts, const std::atomic<bool>* cancelled) {
  OrderedJson samples = OrderedJson::array();
  if (prompts.empty()) return samples;
  infer::Session session(context, *subject.model, {});
  infer::GenerateOptions options;
  options.sampler.temperature = kSampleTemperature;
  options.seed = kSampleSeed;
  options.max_tokens = kSampleTokens;
  options.cancelled = cancelled;
  for (const int64_t id : subject.model->config.eos_token_ids) {
    options.stop_ids.push_back(static_cast<int32_t>(id));
  }
  const text::DecodeOptions readable{.skip_special = text::SkipSpecial::yes,
                                     .ill_formed = text::IllFormed::replace};
  for (const Prompt& prompt : prompts) {
    const infer::Generation generation =
        infer::generate(session, prompt.tokens, options, [](int32_t) { return infer::Next::more; });
    samples.push_back(
        {{"label", prompt.label},
         {"prompt", subject.tokenizer.tokenizer.decode(prompt.tokens, readable)},
         {"answer", subject.tokenizer.tokenizer.decode(generation.tokens, readable)}});
  }
  return samples;
}

OrderedJson tile(const std::string& name, const std::string& value, const std::string& detail) {
  return {{"name", name}, {"value", value}, {"detail", detail}};
}

OrderedJson metric_tiles(const std::vector<train::LoggedStep>& log) {
  int64_t tokens = 0;
  double seconds = 0;
  std::optional<double> validation, bits_per_byte;
  for (const train::LoggedStep& step : log) {
    tokens += step.tokens;
    seconds += step.wall_seconds;
    if (step.validation_loss) validation = step.validation_loss;
    if (step.validation_bits_per_byte) bits_per_byte = step.validation_bits_per_byte;
  }
  OrderedJson tiles = OrderedJson::array();
  if (validation) {
    tiles.push_back(tile("validation loss", fmt::format("{:.4f}", *validation),
                         fmt::format("perplexity {:.3g}", std::exp(*validation))));
  }
  if (bits_per_byte) {
    tiles.push_back(
        tile("bits per byte", fmt::format("{:.4f}", *bits_per_byte), "of the validation text"));
  }
  tiles.push_back(tile("training loss", fmt::format("{:.4f}", log.back().loss), "last step"));
  tiles.push_back(tile("steps", with_commas(log.back().step),
                       fmt::format("{} tokens", human_number(static_cast<double>(tokens)))));
  if (seconds > 0) {
    tiles.push_back(tile("tokens per second",
                         with_commas(static_cast<int64_t>(static_cast<double>(tokens) / seconds)),
                         fmt::format("{:.0f} s by the wall clock", seconds)));
  }
  return tiles;
}

void add_model_tiles(OrderedJson& tiles, const model::ModelConfig& config) {
  tiles.push_back(tile("parameters", human_number(static_cast<double>(config.num_parameters())),
                       fmt::format("{} per token", human_number(static_cast<double>(
                                                       config.num_active_parameters())))));
  if (config.num_moe_layers() == 0) return;
  tiles.push_back(
      tile("experts per layer",
           config.n_shared_experts > 0
               ? fmt::format("{} + {}", config.n_shared_experts, config.n_routed_experts)
               : std::to_string(config.n_routed_experts),
           fmt::format("{}{} per token", config.n_shared_experts > 0 ? "shared + routed; " : "",
                       config.num_experts_per_tok)));
}

}  // namespace

std::string run_title(const fs::path& run) { return fs::weakly_canonical(run).filename().string(); }

OrderedJson run_report(const kernels::Context& context, const RunReportRequest& request) {
  const std::vector<train::LoggedStep> log = train::read_metrics(request.run / "metrics.jsonl");
  if (log.empty()) fail(ErrorKind::input, "{}: no step was logged yet", request.run.string());
  OrderedJson report{{"kind", "run"},
                     {"title", fmt::format("Training run {}", run_title(request.run))},
                     {"subtitle", ""},
                     {"footer", "Written by dsmoe report. One file, no outside requests."}};
  report.update(metrics_json(log, {}));
  OrderedJson tiles = metric_tiles(log);
  report["card"] = run_card(request.run);
  report["floor"] = nullptr;
  report["specialisation"] = nullptr;
  report["samples"] = OrderedJson::array();
  report["sampling"] = {{"temperature", kSampleTemperature}, {"seed", kSampleSeed}};
  const store::NewestCheckpoint newest = store::newest_checkpoint(request.run);
  if (!newest.folder) {
    report["subtitle"] = "no checkpoint yet";
  } else {
    const Subject subject = load_subject(context, *newest.folder);
    report["subtitle"] = fmt::format("newest checkpoint {}", newest.folder->filename().string());
    add_model_tiles(tiles, subject.model->config);
    if (const std::optional<ReportText> source = choose_text(request, subject)) {
      if (source->floor) report["floor"] = *source->floor;
      if (subject.model->config.num_moe_layers() > 0 && source->text.labels.size() > 1) {
        report["specialisation"] =
            specialisation_json(context, subject, source->text, request.cancelled);
      }
      report["samples"] = samples_json(context, subject, make_prompts(request, subject, *source),
                                       request.cancelled);
    }
  }
  report["tiles"] = tiles;
  return report;
}

fs::path report_path(const fs::path& folder) { return folder / "report.html"; }

void write_report(const fs::path& file, const OrderedJson& data) {
  atomic_write_file(file, report_page(data));
}

}  // namespace dsmoe::report

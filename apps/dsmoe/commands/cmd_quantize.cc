// dsmoe quantize: weights to int8 or int4, and what that costs in quality.
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "base/functions.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/readable.h"
#include "commands/command.h"
#include "commands/options.h"
#include "commands/text_side.h"
#include "commands/token_list.h"
#include "data/demo_corpus.h"
#include "data/record_reader.h"
#include "infer/measure/divergence.h"
#include "infer/quantise.h"
#include "terminal/interrupt.h"
#include "terminal/output.h"

namespace dsmoe::app {
namespace {

struct QuantizeOptions {
  CommonOptions common;
  std::string to, head = "int8", out;
  std::optional<std::string> text, tokens;  // at most one
  bool no_compare = false;
};

tensor::WeightCoding parse_coding(const std::string& name) {
  return name == "int8"   ? tensor::WeightCoding::int8
         : name == "int4" ? tensor::WeightCoding::int4
                          : tensor::WeightCoding::plain;
}

// Tokens to compare on: documents apart, each within the context.
struct Sample {
  std::string what;
  std::vector<std::vector<int32_t>> streams;
  std::vector<infer::ScoredDocument> documents;
};

constexpr std::size_t kBuiltInTokens = 8192;
constexpr std::size_t kMaxReferenceBytes = std::size_t{512} << 20;

void add_stream(Sample& sample, std::vector<int32_t> tokens) {
  sample.streams.push_back(std::move(tokens));
}

// Validation documents of the embedded corpus, each behind the token that stands for "nothing
// before".
void add_built_in(Sample& sample, std::optional<int32_t> prefix, const TextSide& text) {
  sample.what = "the built-in text";
  const data::DemoCorpus corpus(1);
  std::size_t total = 0;
  for (uint64_t i = 0; total < kBuiltInTokens; ++i) {
    std::vector<int32_t> tokens;
    if (prefix) tokens.push_back(*prefix);
    const std::string document = corpus.document(data::kDemoValidation + i).text;
    const std::vector<int32_t> encoded = text.encode(document, AroundText::nothing);
    if (encoded.empty()) fail(ErrorKind::input, "the tokenizer makes no tokens of {}", sample.what);
    tokens.insert(tokens.end(), encoded.begin(), encoded.end());
    total += tokens.size();
    if (tokens.size() > 1) add_stream(sample, std::move(tokens));
  }
}

Sample make_sample(const QuantizeOptions& options, const model::ModelConfig& config) {
  Sample sample;
  if (options.tokens) {
    sample.what = *options.tokens;
    add_stream(sample, read_token_file(*options.tokens));
  } else {
    const TextSide text(options.common.model);
    const std::optional<int32_t> prefix = text.prefix_token(config);
    if (options.text) {
      sample.what = *options.text;
      const std::string bytes = read_text_file(*options.text);
      data::check_utf8(bytes, {}, *options.text);
      std::vector<int32_t> tokens = text.encode(bytes, AroundText::nothing);
      if (prefix) tokens.insert(tokens.begin(), *prefix);
      add_stream(sample, std::move(tokens));
    } else if (text.has_tokenizer()) {
      add_built_in(sample, prefix, text);
    }
  }
  const int64_t context =
      options.common.context > 0 ? options.common.context : config.max_position_embeddings;
  for (const std::vector<int32_t>& stream : sample.streams) {
    infer::check_tokens(config, stream, sample.what);
    for (const infer::ScoredDocument& window : infer::cut_windows(stream, context, {})) {
      sample.documents.push_back(window);
    }
  }
  return sample;
}

// Experts of a layer share a line: "model.layers.3.mlp.experts.*.up_proj.weight".
struct ErrorLine {
  std::string name;
  std::string_view coding;
  int64_t count = 0;
  double squares = 0, largest = 0;
};

void print_errors(const std::vector<infer::QuantisedTensor>& tensors) {
  std::vector<ErrorLine> lines;
  std::map<std::pair<int64_t, model::Role>, std::size_t> line_of;
  for (const infer::QuantisedTensor& tensor : tensors) {
    const auto [found, added] = line_of.try_emplace({tensor.layer, tensor.role}, lines.size());
    if (added) {
      lines.push_back({name_of(model::kDeepseekNames, tensor.role, tensor.layer, -1),
                       tensor::name_of(tensor.coding)});
    }
    ErrorLine& line = lines[found->second];
    ++line.count;
    line.squares += tensor.error * tensor.error;
    line.largest = std::max(line.largest, tensor.error);
  }
  print("{:<52} {:<4} {:>6} {:>7} {:>7}\n", "relative error of tensors", "", "number", "mean",
        "largest");
  for (const ErrorLine& line : lines) {
    print("{:<52} {:<4} {:>6} {:>6.3f}% {:>6.3f}%\n", line.name, line.coding, line.count,
          100 * std::sqrt(line.squares / static_cast<double>(line.count)), 100 * line.largest);
  }
}

struct Quality {
  double reference_perplexity = 0, perplexity = 0, kl = 0, same_choice = 0;
  int64_t num_targets = 0;
};

Quality quality_of(const infer::Divergence& divergence) {
  const auto count = static_cast<double>(divergence.num_targets);
  return {.reference_perplexity = exp_f64(divergence.reference_nats / count),
          .perplexity = exp_f64(divergence.nats / count),
          .kl = divergence.kl / count,
          .same_choice = static_cast<double>(divergence.same_choice) / count,
          .num_targets = divergence.num_targets};
}

int64_t num_targets(std::span<const infer::ScoredDocument> documents) {
  int64_t sum = 0;
  for (const infer::ScoredDocument& document : documents) sum += document.num_targets();
  return sum;
}

// One model after the other, so that memory holds one.
infer::Outcome compare(const QuantizeOptions& options, const Engine& engine, const Sample& sample,
                       infer::Divergence& divergence) {
  const std::atomic<bool>* cancelled = &InterruptScope::flag();
  infer::ReferenceLogits reference;
  {
    log_info("{}: logits of the original", sample.what);
    const auto original = engine.load(options.common);
    reference = infer::reference_logits(engine.context(), *original, sample.documents,
                                        kMaxReferenceBytes, cancelled);
  }
  if (reference.outcome == infer::Outcome::cancelled) return reference.outcome;
  if (const int64_t all = num_targets(sample.documents), some = num_targets(reference.documents);
      some < all) {
    log_info("{}: the first {} of {} tokens are compared", sample.what, with_commas(some),
             with_commas(all));
  }
  log_info("{}: logits of the quantised model", sample.what);
  CommonOptions quantised = options.common;
  quantised.model = options.out;
  quantised.dtype.clear();
  return infer::compare_with(engine.context(), *engine.load(quantised), reference, cancelled,
                             divergence);
}

void print_quality(const Sample& sample, const Quality& quality) {
  print("\n{} tokens of {}\n", with_commas(quality.num_targets), sample.what);
  print("perplexity, original   {:.4f}\n", quality.reference_perplexity);
  print("perplexity, quantised  {:.4f} ({:+.3f} %)\n", quality.perplexity,
        100 * (quality.perplexity / quality.reference_perplexity - 1));
  print("KL divergence          {:.6f} nats per token\n", quality.kl);
  print("same most likely token {:.2f} %\n", 100 * quality.same_choice);
}

OrderedJson json_of(const std::vector<infer::QuantisedTensor>& tensors) {
  OrderedJson list = OrderedJson::array();
  for (const infer::QuantisedTensor& tensor : tensors) {
    list.push_back({{"name", tensor.name},
                    {"format", tensor::name_of(tensor.coding)},
                    {"elements", tensor.shape.num_elements()},
                    {"relative_error", tensor.error}});
  }
  return list;
}

infer::Outcome quantise(const QuantizeOptions& options, const Engine& engine,
                        const model::ModelConfig& config,
                        std::vector<infer::QuantisedTensor>& tensors) {
  const model::Quantization wanted{.projections = parse_coding(options.to),
                                   .head = parse_coding(options.head)};
  model::ModelConfig quantised = config;
  quantised.quantization = wanted;
  const auto total = std::ranges::count_if(
      model::inventory(quantised).parameters,
      [](const auto& parameter) { return parameter.coding != tensor::WeightCoding::plain; });
  Progress progress({.label = "quantize", .total = total, .unit = "tensors"});
  return infer::quantise_folder(engine.context(), options.common.model, options.out,
                                {.quantization = wanted, .cancelled = &InterruptScope::flag()},
                                [&](const infer::QuantisedTensor& tensor) {
                                  tensors.push_back(tensor);
                                  progress.update(static_cast<int64_t>(tensors.size()));
                                });
}

int run_quantize(const QuantizeOptions& options) {
  if (options.common.quiet) set_log_level(LogLevel::quiet);
  outlive_readers();
  const Engine engine(options.common);
  const model::ModelConfig config = model::read_config(options.common.model);
  const Sample sample = options.no_compare ? Sample{} : make_sample(options, config);
  const InterruptScope interrupt;
  std::vector<infer::QuantisedTensor> tensors;
  if (quantise(options, engine, config, tensors) == infer::Outcome::cancelled) return kInterrupted;
  infer::Divergence divergence;
  if (sample.documents.empty()) {
    if (!options.no_compare) {
      log_info("{}: no tokenizer.json: give --tokens FILE to compare the models",
               options.common.model);
    }
  } else if (compare(options, engine, sample, divergence) == infer::Outcome::cancelled) {
    return kInterrupted;
  }
  const bool compared = divergence.num_targets > 0;
  const Quality quality = compared ? quality_of(divergence) : Quality{};
  if (options.common.json) {
    OrderedJson json{
        {"folder", options.out}, {"format", options.to}, {"tensors", json_of(tensors)}};
    if (compared) {
      json["text"] = sample.what;
      json["tokens"] = quality.num_targets;
      json["perplexity_original"] = quality.reference_perplexity;
      json["perplexity"] = quality.perplexity;
      json["kl_divergence"] = quality.kl;
      json["same_choice"] = quality.same_choice;
    }
    print_json(json);
    return kDone;
  }
  print_errors(tensors);
  if (compared) print_quality(sample, quality);
  return kDone;
}

}  // namespace

void add_quantize(CommandLine& app) {
  auto options = std::make_shared<QuantizeOptions>();
  CommandLine command =
      app.command("quantize", "Weights to int8 or int4, with what it costs in quality");
  add_model_argument(command, options->common);
  command.option("--to", options->to, "int8 or int4")
      .required()
      .one_of({"int8", "int4"})
      .type("FORMAT");
  command.option("-o,--out", options->out, "folder to write").required().type("DIR");
  command.option("--head", options->head, "the head: int8, int4, or stored (unchanged)")
      .one_of({"int8", "int4", "stored"})
      .show_default()
      .type("FORMAT");
  CommandLine input = command.at_most_one("Comparison");
  input.option("--text", options->text, "text file to compare on; default: built in").type("FILE");
  input.option("--tokens", options->tokens, "file of token ids to compare on").type("FILE");
  input.flag("--no-compare", options->no_compare, "only write the folder");
  add_output_flags(command, options->common);
  add_run_flags(command, options->common);
  command.footer(
      "Integers in groups of 32 with a common scale, chosen for the least squared error.\n"
      "Embedding, router, norms and biases stay as they are. A quantised model gives bit for bit\n"
      "the logits of a bf16 model whose weights are round(scale * integer).\n\n"
      "Example:\n  dsmoe quantize my-model/ --to int4 -o my-model-int4/");
  command.runs([options] { return run_quantize(*options); });
}

}  // namespace dsmoe::app

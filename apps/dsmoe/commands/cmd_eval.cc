// dsmoe eval: loss of a stream of tokens, and log-likelihoods of pairs.
#include <filesystem>
#include <optional>

#include "base/json.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/readable.h"
#include "commands/command.h"
#include "commands/eval_pairs.h"
#include "commands/eval_stream.h"
#include "commands/options.h"
#include "commands/text_side.h"
#include "commands/token_list.h"
#include "infer/measure/evaluate.h"
#include "terminal/interrupt.h"
#include "terminal/output.h"

namespace dsmoe::app {
namespace {

struct EvalOptions {
  CommonOptions common;
  std::string tokens, text, pairs;
  std::string bos = "auto";
  int64_t window = 0, stride = 0, top_k = 0;
};

infer::ScorerOptions scorer_options(const EvalOptions& options) {
  return {.top_k = options.top_k, .cancelled = &InterruptScope::flag()};
}

// The tokens to score: of a file of ids, or of text.
TokenStream read_stream(const EvalOptions& options, const model::ModelConfig& config) {
  if (!options.text.empty()) {
    return text_stream(TextSide(options.common.model), config, read_text_file(options.text),
                       options.text);
  }
  if (std::error_code ignored; !std::filesystem::exists(options.tokens, ignored)) {
    fail(ErrorKind::io, "--tokens: no such file: {}; expected a file of token ids", options.tokens);
  }
  TokenStream stream{.tokens = read_token_file(options.tokens)};
  infer::check_tokens(config, stream.tokens, options.tokens);
  return stream;
}

// What computes and the model: loaded only when the input has been read and found good.
struct Loaded {
  std::unique_ptr<Engine> engine;
  std::unique_ptr<model::Model> model;
};

Loaded load(const EvalOptions& options) {
  Loaded loaded{.engine = std::make_unique<Engine>(options.common)};
  loaded.model = loaded.engine->load(options.common);
  infer::checked_top_k(loaded.model->config, options.top_k);
  return loaded;
}

void report(const EvalOptions& options, const TokenStream& stream, const StreamScore& score) {
  const StreamFigures figures = figures_of(stream, score);
  const auto num_tokens = static_cast<int64_t>(stream.tokens.size());
  if (options.common.json) {
    OrderedJson json{{"tokens", num_tokens},
                     {"scored", score.scored},
                     {"windows", score.windows},
                     {"nats", score.nats},
                     {"nats_per_token", figures.nats_per_token},
                     {"perplexity", figures.perplexity}};
    if (stream.num_bytes > 0) {
      json["bytes"] = stream.num_bytes;
      json["bits_per_byte"] = figures.bits_per_byte;
    }
    return print_json(json);
  }
  print("tokens          {}\n", with_commas(num_tokens));
  print("scored          {}\n", with_commas(score.scored));
  print("nats per token  {:.6f}\n", figures.nats_per_token);
  print("perplexity      {:.4f}\n", figures.perplexity);
  if (stream.num_bytes > 0) {
    print("bytes           {}\n", with_commas(stream.num_bytes));
    print("bits per byte   {:.6f}\n", figures.bits_per_byte);
  }
}

int eval_stream(const EvalOptions& options) {
  const TokenStream stream = read_stream(options, model::read_config(options.common.model));
  const auto [engine, model] = load(options);
  std::optional<Progress> progress;
  const InterruptScope interrupt;
  StreamScore score;
  const infer::Outcome outcome = score_stream(
      engine->context(), *model, stream,
      {.window = {.window = options.window, .stride = options.stride},
       .scorer = scorer_options(options)},
      [&](int64_t done, int64_t total) {
        if (!progress) {
          progress.emplace(ProgressOptions{.label = "eval", .total = total, .unit = "windows"});
        }
        progress->update(done);
      },
      score);
  if (outcome == infer::Outcome::cancelled) return kInterrupted;
  if (progress) progress->finish();
  report(options, stream, score);
  return kDone;
}

std::vector<infer::JoinedPair> join_pairs(const EvalPairs& pairs, const model::Model& model) {
  std::vector<infer::JoinedPair> joined;
  for (const EvalPairs::Line& line : pairs.lines) {
    joined.push_back(infer::join_pair(line.pair, model.context, pairs.prefix, line.what));
    infer::check_tokens(model.config, joined.back().tokens, line.what);
  }
  return joined;
}

int eval_pairs(const EvalOptions& options) {
  const EvalPairs read =
      read_pairs(options.pairs, TextSide(options.common.model),
                 model::read_config(options.common.model), parse_pair_bos(options.bos));
  const auto [engine, model] = load(options);
  const std::vector<infer::JoinedPair> pairs = join_pairs(read, *model);
  std::vector<infer::ScoredDocument> documents;
  for (const infer::JoinedPair& pair : pairs) documents.push_back({pair.tokens, pair.first_target});
  const InterruptScope interrupt;
  const infer::Outcome outcome = infer::score_documents(
      engine->context(), *model, documents, scorer_options(options),
      [&](int64_t, const infer::TokenScores& scores) {
        const infer::PairScore score = infer::sum_scores(scores);
        if (options.common.json) {
          print_json_line({{"loglikelihood", score.log_likelihood},
                           {"greedy", score.greedy},
                           {"tokens", score.num_tokens}});
        } else {
          print("{:.6f}\t{}\n", score.log_likelihood, score.greedy ? "greedy" : "-");
        }
        flush_output();
      });
  return outcome == infer::Outcome::cancelled ? kInterrupted : kDone;
}

int run_eval(const EvalOptions& options) {
  if (options.common.quiet) set_log_level(LogLevel::quiet);
  if (options.pairs.empty() && options.bos != "auto") {
    fail(ErrorKind::usage, "--bos {}: it goes with --pairs; --text always begins with BOS",
         options.bos);
  }
  return options.pairs.empty() ? eval_stream(options) : eval_pairs(options);
}

}  // namespace

void add_eval(CommandLine& app) {
  auto options = std::make_shared<EvalOptions>();
  CommandLine command =
      app.command("eval", "Loss of a text or of tokens; log-likelihoods of pairs");
  add_model_argument(command, options->common);
  CommandLine input = command.exactly_one("Input");
  input.option("--tokens", options->tokens, "file of token ids").type("FILE");
  input.option("--text", options->text, "text file").type("FILE");
  input
      .option("--pairs", options->pairs,
              "JSON lines with context and continuation (or context_ids, continuation_ids)")
      .type("FILE");
  command
      .option("--bos", options->bos,
              "BOS before the texts of --pairs: as the tokenizer adds it, yes or no")
      .one_of({"auto", "yes", "no"})
      .show_default();
  command.option("--window", options->window, "inputs per window; default: the context")
      .at_least(1)
      .type("W");
  command.option("--stride", options->stride, "tokens between windows; default: the window")
      .at_least(1)
      .type("S");
  command
      .option("--num-experts-per-tok", options->top_k, "routed experts per token; default: config")
      .at_least(1)
      .type("K");
  add_output_flags(command, options->common);
  add_run_flags(command, options->common);
  command.footer(
      "Each token but the first is scored once: in windows of W inputs every S tokens, a window\n"
      "scores what no earlier one did. --pairs prints, per line, the log-likelihood of the\n"
      "continuation and whether greedy decoding would give it, as lm-evaluation-harness defines\n"
      "them: with --bos auto as its backend hf, with --bos no as its API backends do by default.\n"
      "With --json an object per line.\n\n"
      "Examples:\n  dsmoe eval my-model/ --text novel.txt\n"
      "  dsmoe eval my-model/ --tokens ids.txt --window 1024 --stride 512");
  command.runs([options] { return run_eval(*options); });
}

}  // namespace dsmoe::app

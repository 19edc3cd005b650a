// dsmoe eval: loss of a stream of tokens, and log-likelihoods of pairs.
#include <filesystem>
#include <optional>

#include "base/functions.h"
#include "base/json.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/readable.h"
#include "commands/command.h"
#include "commands/eval_pairs.h"
#include "commands/options.h"
#include "commands/text_side.h"
#include "commands/token_list.h"
#include "data/record_reader.h"
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

// The tokens to score, and the bytes of text they stand for (0: not text).
struct Stream {
  std::vector<int32_t> tokens;
  int64_t num_bytes = 0;
};

Stream read_stream(const EvalOptions& options, const model::ModelConfig& config) {
  Stream stream;
  if (options.text.empty()) {
    if (std::error_code ignored; !std::filesystem::exists(options.tokens, ignored)) {
      fail(ErrorKind::io, "--tokens: no such file: {}; expected a file of token ids",
           options.tokens);
    }
    stream.tokens = read_token_file(options.tokens);
    infer::check_tokens(config, stream.tokens, options.tokens);
    return stream;
  }
  const TextSide text(options.common.model);
  const std::string bytes = read_text_file(options.text);
  data::check_utf8(bytes, {}, options.text);
  stream.tokens = text.encode(bytes, AroundText::nothing);
  if (stream.tokens.empty()) fail(ErrorKind::input, "{}: the text has no tokens", options.text);
  stream.num_bytes = static_cast<int64_t>(bytes.size());
  // Behind a prefix every byte is predicted; without one, those of the first token are not.
  if (const auto prefix = text.prefix_token(config)) {
    stream.tokens.insert(stream.tokens.begin(), *prefix);
  } else {
    stream.num_bytes -= static_cast<int64_t>(text.token_text(stream.tokens.front()).size());
  }
  infer::check_tokens(config, stream.tokens, options.text);
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

struct StreamScore {
  double nats = 0;
  int64_t scored = 0;
  std::size_t windows = 0;
};

void report(const EvalOptions& options, const Stream& stream, const StreamScore& score) {
  constexpr double kLn2 = 0x1.62e42fefa39efp-1;
  const double per_token = score.nats / static_cast<double>(score.scored);
  const double perplexity = exp_f64(per_token);
  const double bits_per_byte =
      stream.num_bytes > 0 ? score.nats / kLn2 / static_cast<double>(stream.num_bytes) : 0;
  const auto num_tokens = static_cast<int64_t>(stream.tokens.size());
  if (options.common.json) {
    OrderedJson json{{"tokens", num_tokens},        {"scored", score.scored},
                     {"windows", score.windows},    {"nats", score.nats},
                     {"nats_per_token", per_token}, {"perplexity", perplexity}};
    if (stream.num_bytes > 0) {
      json["bytes"] = stream.num_bytes;
      json["bits_per_byte"] = bits_per_byte;
    }
    return print_json(json);
  }
  print("tokens          {}\n", with_commas(num_tokens));
  print("scored          {}\n", with_commas(score.scored));
  print("nats per token  {:.6f}\n", per_token);
  print("perplexity      {:.4f}\n", perplexity);
  if (stream.num_bytes > 0) {
    print("bytes           {}\n", with_commas(stream.num_bytes));
    print("bits per byte   {:.6f}\n", bits_per_byte);
  }
}

int eval_stream(const EvalOptions& options) {
  const Stream stream = read_stream(options, model::read_config(options.common.model));
  const auto [engine, model] = load(options);
  const std::vector<infer::ScoredDocument> windows = infer::cut_windows(
      stream.tokens, model->context, {.window = options.window, .stride = options.stride});
  StreamScore score{.windows = windows.size()};
  Progress progress(
      {.label = "eval", .total = static_cast<int64_t>(windows.size()), .unit = "windows"});
  const InterruptScope interrupt;
  const infer::Outcome outcome =
      infer::score_documents(engine->context(), *model, windows, scorer_options(options),
                             [&](int64_t window, const infer::TokenScores& scores) {
                               for (const float log_prob : scores.log_prob) score.nats -= log_prob;
                               score.scored += static_cast<int64_t>(scores.log_prob.size());
                               progress.update(window + 1);
                             });
  if (outcome == infer::Outcome::cancelled) return kInterrupted;
  progress.finish();
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

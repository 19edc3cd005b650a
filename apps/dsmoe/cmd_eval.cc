// dsmoe eval: loss of a stream of tokens, and log-likelihoods of pairs.
#include <filesystem>
#include <limits>
#include <optional>

#include "base/functions.h"
#include "base/json.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/utf8.h"
#include "command.h"
#include "infer/evaluate.h"
#include "interrupt.h"
#include "options.h"
#include "output.h"
#include "text/unicode.h"
#include "text_side.h"
#include "token_list.h"

namespace dsmoe::app {
namespace {

struct EvalOptions {
  CommonOptions common;
  std::string tokens, text, pairs;
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
  stream.tokens = text.encode(bytes, AroundText::nothing);
  if (stream.tokens.empty()) fail(ErrorKind::input, "{}: the text has no tokens", options.text);
  stream.num_bytes = static_cast<int64_t>(bytes.size());
  // Behind a prefix every byte is predicted; without one, those of the first token are not.
  if (const auto prefix = infer::prefix_token(config)) {
    stream.tokens.insert(stream.tokens.begin(), static_cast<int32_t>(*prefix));
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

std::vector<int32_t> token_array(const Json& line, const char* key, const std::string& what) {
  const auto found = line.find(key);
  if (found == line.end() || !found->is_array()) {
    fail(ErrorKind::input, "{}: expected \"{}\", an array of token ids", what, key);
  }
  std::vector<int32_t> ids;
  for (const Json& id : *found) {
    if (!id.is_number_integer() || id < 0 || id > std::numeric_limits<int32_t>::max()) {
      fail(ErrorKind::input, "{}: \"{}\" holds {}, expected token ids", what, key,
           in_quotes(id.dump()));
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

std::string text_field(const Json& line, const char* key, const std::string& what) {
  const auto found = line.find(key);
  if (found == line.end() || !found->is_string()) {
    fail(ErrorKind::input, "{}: expected \"{}\", a string", what, key);
  }
  return found->get<std::string>();
}

// str.isspace() of Python: the white space of Unicode and four separators of ASCII.
bool is_python_space(std::uint32_t code_point) {
  return text::is_white_space(code_point) || (code_point >= 0x1C && code_point <= 0x1F);
}

// As lm-evaluation-harness splits them: white space at the end of the context belongs to the
// continuation, and the continuation is what the joined text has beyond the context's tokens.
infer::TokenPair encode_pair(std::string context, std::string continuation, const TextSide& text) {
  if (context.empty()) {
    return {.context = {}, .continuation = text.encode(continuation, AroundText::nothing)};
  }
  std::size_t end = context.size();
  while (end > 0) {
    const std::size_t start = previous_char(context, end);
    std::size_t at = start;
    if (!is_python_space(next_code_point(context, at))) break;
    end = start;
  }
  continuation = context.substr(end) + continuation;
  context.resize(end);
  infer::TokenPair pair{.context = text.encode(context, AroundText::nothing)};
  const std::vector<int32_t> whole = text.encode(context + continuation, AroundText::nothing);
  const std::size_t split = std::min(pair.context.size(), whole.size());
  pair.continuation.assign(whole.begin() + static_cast<std::ptrdiff_t>(split), whole.end());
  return pair;
}

infer::TokenPair parse_pair(std::string_view bytes, const std::string& what, const TextSide& text) {
  const Json line = parse_json(bytes, what);
  if (!line.is_object()) fail(ErrorKind::input, "{}: expected a JSON object", what);
  if (line.contains("context_ids") || line.contains("continuation_ids")) {
    return {.context = token_array(line, "context_ids", what),
            .continuation = token_array(line, "continuation_ids", what)};
  }
  return encode_pair(text_field(line, "context", what), text_field(line, "continuation", what),
                     text);
}

struct PairLine {
  infer::TokenPair pair;
  std::string what;  // FILE:LINE
};

std::vector<PairLine> read_pairs(const EvalOptions& options) {
  const std::string text = read_text_file(options.pairs);
  const TextSide side(options.common.model);
  std::vector<PairLine> pairs;
  int64_t line_number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line(text.data() + begin, end - begin);
    begin = end + 1;
    ++line_number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string what = fmt::format("{}:{}", options.pairs, line_number);
    pairs.push_back({.pair = parse_pair(line, what, side), .what = what});
  }
  if (pairs.empty()) {
    fail(ErrorKind::input, "{}: no pairs; expected one JSON object per line", options.pairs);
  }
  return pairs;
}

std::vector<infer::JoinedPair> join_pairs(const std::vector<PairLine>& lines,
                                          const model::Model& model) {
  const std::optional<int64_t> prefix = infer::prefix_token(model.config);
  std::vector<infer::JoinedPair> joined;
  for (const PairLine& line : lines) {
    joined.push_back(infer::join_pair(line.pair, model.context, prefix, line.what));
    infer::check_tokens(model.config, joined.back().tokens, line.what);
  }
  return joined;
}

int eval_pairs(const EvalOptions& options) {
  const std::vector<PairLine> lines = read_pairs(options);
  const auto [engine, model] = load(options);
  const std::vector<infer::JoinedPair> pairs = join_pairs(lines, *model);
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
      "continuation and whether greedy decoding would give it, as lm-evaluation-harness defines "
      "them; with --json an object per line.\n\n"
      "Examples:\n  dsmoe eval my-model/ --text novel.txt\n"
      "  dsmoe eval my-model/ --tokens ids.txt --window 1024 --stride 512");
  command.runs([options] { return run_eval(*options); });
}

}  // namespace dsmoe::app

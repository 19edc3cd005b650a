// Text to a stream, a stream to windows, windows to figures.
#include "commands/eval_stream.h"

#include "base/error.h"
#include "base/functions.h"
#include "data/record_reader.h"

namespace dsmoe::app {

TokenStream text_stream(const TextSide& text, const model::ModelConfig& config,
                        std::string_view bytes, const std::string& what) {
  data::check_utf8(bytes, {}, what);
  TokenStream stream{.tokens = text.encode(bytes, AroundText::nothing)};
  if (stream.tokens.empty()) fail(ErrorKind::input, "{}: the text has no tokens", what);
  stream.num_bytes = static_cast<int64_t>(bytes.size());
  // Behind a prefix every byte is predicted; without one, those of the first token are not.
  if (const auto prefix = text.prefix_token(config)) {
    stream.tokens.insert(stream.tokens.begin(), *prefix);
  } else {
    stream.num_bytes -= static_cast<int64_t>(text.token_text(stream.tokens.front()).size());
  }
  infer::check_tokens(config, stream.tokens, what);
  return stream;
}

infer::Outcome score_stream(const kernels::Context& context, const model::Model& model,
                            const TokenStream& stream, const StreamOptions& options,
                            FunctionRef<void(int64_t done, int64_t total)> on_window,
                            StreamScore& score) {
  const std::vector<infer::ScoredDocument> windows =
      infer::cut_windows(stream.tokens, model.context, options.window);
  const auto total = static_cast<int64_t>(windows.size());
  score.windows += total;
  return infer::score_documents(context, model, windows, options.scorer,
                                [&](int64_t window, const infer::TokenScores& scores) {
                                  for (const float log_prob : scores.log_prob)
                                    score.nats -= log_prob;
                                  score.scored += static_cast<int64_t>(scores.log_prob.size());
                                  on_window(window + 1, total);
                                });
}

StreamFigures figures_of(const TokenStream& stream, const StreamScore& score) {
  constexpr double kLn2 = 0x1.62e42fefa39efp-1;
  StreamFigures figures{.nats_per_token = score.nats / static_cast<double>(score.scored)};
  figures.perplexity = exp_f64(figures.nats_per_token);
  if (stream.num_bytes > 0) {
    figures.bits_per_byte = score.nats / kLn2 / static_cast<double>(stream.num_bytes);
  }
  return figures;
}

}  // namespace dsmoe::app

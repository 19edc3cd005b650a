// The loss of one stream of tokens, window by window.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "commands/text_side.h"
#include "infer/measure/evaluate.h"
#include "model/config.h"

namespace dsmoe::app {

// The tokens to score, and the bytes of text they stand for (0: not text).
struct TokenStream {
  std::vector<int32_t> tokens;
  int64_t num_bytes = 0;
};

// Of a text, behind the token that stands for "nothing before". Throws Error(input) that starts
// with `what`.
TokenStream text_stream(const TextSide& text, const model::ModelConfig& config,
                        std::string_view bytes, const std::string& what);

struct StreamScore {
  double nats = 0;
  int64_t scored = 0;
  int64_t windows = 0;
};

struct StreamOptions {
  infer::WindowOptions window;
  infer::ScorerOptions scorer;
};
// Adds to `score`; `on_window` hears of every window.
infer::Outcome score_stream(const kernels::Context& context, const model::Model& model,
                            const TokenStream& stream, const StreamOptions& options,
                            FunctionRef<void(int64_t done, int64_t total)> on_window,
                            StreamScore& score);

struct StreamFigures {
  double nats_per_token = 0, perplexity = 0;
  double bits_per_byte = 0;  // 0: not text
};
StreamFigures figures_of(const TokenStream& stream, const StreamScore& score);

}  // namespace dsmoe::app

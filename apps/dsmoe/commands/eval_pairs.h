// Pairs of context and continuation from JSON lines, as lm-evaluation-harness splits them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "commands/text_side.h"
#include "infer/measure/evaluate.h"
#include "model/config.h"

namespace dsmoe::app {

// Whether a text gets BOS before it. as_tokenizer: what the tokenizer puts around a text, unless
// the text begins with BOS already: the harness's backend hf. no: its API backends.
enum class PairBos { as_tokenizer, yes, no };
PairBos parse_pair_bos(const std::string& word);  // auto, yes, no

struct EvalPairs {
  struct Line {
    infer::TokenPair pair;
    std::string what;  // FILE:LINE
  };
  std::vector<Line> lines;
  std::optional<int64_t> prefix;  // stands for an empty context
};
// Each line has texts, or ids, which are taken as they are. Throws Error(input).
EvalPairs read_pairs(const std::string& file, const TextSide& text,
                     const model::ModelConfig& config, PairBos bos);

}  // namespace dsmoe::app

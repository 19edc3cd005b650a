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

// Texts to tokens in the harness's way. `text` must outlive it.
class PairEncoder {
 public:
  PairEncoder(const TextSide& text, const model::ModelConfig& config, PairBos bos);

  // White space at the end of the context belongs to the continuation, and the continuation is what
  // the joined text has beyond the context's tokens.
  infer::TokenPair encode(std::string context, std::string continuation) const;
  // Stands for an empty context.
  std::optional<int32_t> prefix() const { return prefix_; }

 private:
  infer::TokenPair without_context(const std::string& continuation) const;
  std::vector<int32_t> tokens(const std::string& text) const;

  const TextSide& text_;
  std::optional<int32_t> prefix_;
  std::string prefix_text_;
  PairBos bos_;
};

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

// Pre-tokenizers of tokenizer.json: cut a text into the pieces that the model encodes one by one.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "text/pattern/pattern.h"
#include "text/tokenizer/normalizer.h"

namespace dsmoe::text {

enum class SplitBehavior {
  removed,
  isolated,
  merged_with_previous,
  merged_with_next,
  contiguous,
};

struct SplitStep {
  Pattern pattern;
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;  // what lies between the matches is the delimiter
};

// ByteLevel's add_prefix_space: a space in front of every piece that does not start with one.
struct PrefixSpaceStep {};

enum class PrependScheme { always, first, never };

struct MetaspaceStep {
  std::string replacement;  // one character, stands for a space
  PrependScheme scheme = PrependScheme::always;
  bool split = true;
};

using PreTokenizerStep = std::variant<SplitStep, PrefixSpaceStep, MetaspaceStep>;

class PieceSink {
 public:
  virtual void piece(std::string_view text) = 0;  // never empty

 protected:
  ~PieceSink() = default;
};

class PreTokenizer {
 public:
  struct Level {
    std::string text;
    std::vector<std::pair<Span, bool>> matches;
  };
  struct Scratch {
    RegexScratch regex;
    std::vector<Level> levels;  // one per step
  };

  PreTokenizer() = default;
  explicit PreTokenizer(std::vector<PreTokenizerStep> steps) : steps_(std::move(steps)) {}

  // Every piece goes through all steps before the next one begins, so memory does not grow with the
  // text.
  void run(std::string_view text, PieceStart start, Scratch& scratch, PieceSink& sink) const;

 private:
  struct Run;
  void run_step(std::size_t step_idx, std::string_view text, PieceStart start, Run& run) const;
  void split(const SplitStep& step, std::size_t step_idx, std::string_view text, PieceStart start,
             Run& run) const;
  void split_merged(const SplitStep& step, std::size_t step_idx, std::string_view text,
                    PieceStart start, Run& run) const;
  void metaspace(const MetaspaceStep& step, std::size_t step_idx, std::string_view text,
                 PieceStart start, Run& run) const;

  std::vector<PreTokenizerStep> steps_;
};

}  // namespace dsmoe::text

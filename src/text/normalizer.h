// Normalizers of tokenizer.json: Prepend, Replace and Strip, in sequence.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/pattern.h"

namespace dsmoe::text {

// Where a piece of text stands. A continuation follows broken bytes: it gets no prefix, so that
// decoding gives the input back.
enum class PieceStart { of_text, of_section, continuation };

struct PrependStep {
  std::string prefix;
};
struct ReplaceStep {
  Pattern pattern;
  std::string content;
};
struct StripStep {
  bool left = false;
  bool right = false;
};
using NormalizerStep = std::variant<PrependStep, ReplaceStep, StripStep>;

// Appends `text` with every match of the pattern replaced.
void append_replaced(const ReplaceStep& step, std::string_view text, RegexScratch& scratch,
                     std::string& out);

class Normalizer {
 public:
  struct Scratch {
    std::string current;
    std::string next;
  };

  Normalizer() = default;
  explicit Normalizer(std::vector<NormalizerStep> steps) : steps_(std::move(steps)) {}

  // Valid UTF-8 in, valid UTF-8 out. The result lives in `text` or in `scratch`.
  std::string_view apply(std::string_view text, PieceStart start, Scratch& scratch,
                         RegexScratch& regex_scratch) const;

 private:
  std::vector<NormalizerStep> steps_;
};

}  // namespace dsmoe::text

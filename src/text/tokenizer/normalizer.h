// Normalizers of tokenizer.json: NFC, Prepend, Replace and Strip, in sequence.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/pattern/pattern.h"

namespace dsmoe::text {

// Where a piece of text stands.
struct PieceStart {
  // So many bytes at its front come from the first character of the whole text, and none where it
  // stands elsewhere: Metaspace's "first" asks for that, behind whatever a normalizer did.
  std::size_t num_first = 0;
  bool begins_text = false;  // although nothing of the first character may be left
  // It follows broken bytes: it gets no prefix, so that decoding gives the input back.
  bool is_continuation = false;
};
PieceStart start_of_text(std::string_view text);
// Of the part that begins at `begin`.
inline PieceStart start_of_part(PieceStart whole, std::size_t begin) {
  return {.num_first = whole.num_first > begin ? whole.num_first - begin : 0,
          .begins_text = whole.begins_text && begin == 0,
          .is_continuation = whole.is_continuation};
}

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
struct NfcStep {};
using NormalizerStep = std::variant<PrependStep, ReplaceStep, StripStep, NfcStep>;

// Appends `text` with every match of the pattern replaced; `start` becomes that of the result.
void append_replaced(const ReplaceStep& step, std::string_view text, RegexScratch& scratch,
                     std::string& out, PieceStart& start);

class Normalizer {
 public:
  struct Scratch {
    std::string current;
    std::string next;
  };

  Normalizer() = default;
  explicit Normalizer(std::vector<NormalizerStep> steps) : steps_(std::move(steps)) {}

  // Valid UTF-8 in, valid UTF-8 out. The result lives in `text` or in `scratch`; `start` becomes
  // that of the result.
  std::string_view apply(std::string_view text, PieceStart& start, Scratch& scratch,
                         RegexScratch& regex_scratch) const;

 private:
  std::vector<NormalizerStep> steps_;
};

}  // namespace dsmoe::text

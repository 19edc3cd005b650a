// Each step writes the next of two buffers; a text that no step touches is never copied.
#include "text/normalizer.h"

#include "base/error.h"
#include "base/utf8.h"
#include "text/unicode.h"

namespace dsmoe::text {
namespace {

// Replacements can multiply; a file that grows text beyond this is not a tokenizer.
constexpr std::size_t kMaxGrowth = 64;
constexpr std::size_t kMaxGrowthBase = 1 << 20;

std::string_view stripped(const StripStep& step, std::string_view text) {
  std::size_t begin = 0;
  std::size_t end = text.size();
  while (step.left && begin < end) {
    std::size_t at = begin;
    if (!is_white_space(next_code_point(text, at))) break;
    begin = at;
  }
  while (step.right && end > begin) {
    const std::size_t start = previous_char(text, end);
    std::size_t at = start;
    if (!is_white_space(next_code_point(text, at))) break;
    end = start;
  }
  return text.substr(begin, end - begin);
}

}  // namespace

void append_replaced(const ReplaceStep& step, std::string_view text, RegexScratch& scratch,
                     std::string& out) {
  MatchIterator matches(step.pattern, text, scratch);
  std::size_t done = 0;
  for (Span match; matches.next(match);) {
    out.append(text.substr(done, match.begin - done));
    out.append(step.content);
    done = match.end;
  }
  out.append(text.substr(done));
}

std::string_view Normalizer::apply(std::string_view text, PieceStart start, Scratch& scratch,
                                   RegexScratch& regex_scratch) const {
  const std::size_t limit = text.size() * kMaxGrowth + kMaxGrowthBase;
  for (const NormalizerStep& step : steps_) {
    if (const auto* strip = std::get_if<StripStep>(&step)) {
      text = stripped(*strip, text);
      continue;
    }
    scratch.next.clear();
    if (const auto* prepend = std::get_if<PrependStep>(&step)) {
      if (text.empty() || start == PieceStart::continuation) continue;
      scratch.next.append(prepend->prefix).append(text);
    } else {
      append_replaced(std::get<ReplaceStep>(step), text, regex_scratch, scratch.next);
    }
    if (scratch.next.size() > limit) {
      fail(ErrorKind::input,
           "the tokenizer's normalizer makes {} bytes out of a text, more than {}",
           scratch.next.size(), limit);
    }
    std::swap(scratch.current, scratch.next);
    text = scratch.current;
  }
  return text;
}

}  // namespace dsmoe::text

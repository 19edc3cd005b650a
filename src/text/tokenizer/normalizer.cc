// Each step writes the next of two buffers; a text that no step touches is never copied.
#include "text/tokenizer/normalizer.h"

#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"
#include "text/unicode.h"
#include "text/unicode_normal.h"

namespace dsmoe::text {
namespace {

// Replacements can multiply; a file that grows text beyond this is not a tokenizer.
constexpr std::size_t kMaxGrowth = 64;
constexpr std::size_t kMaxGrowthBase = 1 << 20;

std::string_view stripped(const StripStep& step, std::string_view text, PieceStart& start) {
  std::size_t begin = 0;
  std::size_t end = text.size();
  while (step.left && begin < end) {
    std::size_t at = begin;
    if (!is_white_space(next_code_point(text, at))) break;
    begin = at;
  }
  while (step.right && end > begin) {
    const std::size_t last = previous_char(text, end);
    std::size_t at = last;
    if (!is_white_space(next_code_point(text, at))) break;
    end = last;
  }
  start.num_first = start_of_part(start, begin).num_first;
  return text.substr(begin, end - begin);
}

// The oracle's alignment of a replacement is that of the last character it replaces; without one,
// that of the character before. So the bytes that come from the first character stay in front.
class FirstBytes {
 public:
  explicit FirstBytes(PieceStart start)
      : num_first_(start.num_first), begins_text_(start.begins_text) {}

  void kept(Span span) {
    if (!ended_) num_out_ += std::min(std::max(num_first_, span.begin), span.end) - span.begin;
    ended_ = ended_ || span.end > num_first_;
  }
  void replaced(Span match, std::size_t num_bytes) {
    const bool is_first = match.end == 0 ? begins_text_ : match.end <= num_first_;
    ended_ = ended_ || (num_bytes > 0 && !is_first);
    if (!ended_) num_out_ += num_bytes;
  }
  std::size_t num_out() const { return num_out_; }

 private:
  std::size_t num_first_;
  bool begins_text_;
  std::size_t num_out_ = 0;
  bool ended_ = false;
};

// The bytes that come from the first character: what it joins is part of it.
std::size_t first_bytes_after_nfc(std::string_view text, std::size_t num_first) {
  if (num_first == 0) return 0;
  std::string first;
  append_nfc(text.substr(0, num_first), first);
  return first.size();
}

}  // namespace

PieceStart start_of_text(std::string_view text) {
  return {.num_first = text.empty() ? 0 : utf8_length(static_cast<unsigned char>(text.front())),
          .begins_text = true};
}

void append_replaced(const ReplaceStep& step, std::string_view text, RegexScratch& scratch,
                     std::string& out, PieceStart& start) {
  MatchIterator matches(step.pattern, text, scratch);
  FirstBytes first(start);
  std::size_t done = 0;
  for (Span match; matches.next(match);) {
    out.append(text.substr(done, match.begin - done));
    first.kept({.begin = done, .end = match.begin});
    out.append(step.content);
    first.replaced(match, step.content.size());
    done = match.end;
  }
  out.append(text.substr(done));
  first.kept({.begin = done, .end = text.size()});
  start.num_first = first.num_out();
}

std::string_view Normalizer::apply(std::string_view text, PieceStart& start, Scratch& scratch,
                                   RegexScratch& regex_scratch) const {
  const std::size_t limit = text.size() * kMaxGrowth + kMaxGrowthBase;
  for (const NormalizerStep& step : steps_) {
    if (const auto* strip = std::get_if<StripStep>(&step)) {
      text = stripped(*strip, text, start);
      continue;
    }
    if (std::holds_alternative<NfcStep>(step)) {
      if (is_surely_nfc(text)) continue;
      scratch.next.clear();
      append_nfc(text, scratch.next);
      start.num_first = first_bytes_after_nfc(text, start.num_first);
      std::swap(scratch.current, scratch.next);
      text = scratch.current;
      continue;
    }
    scratch.next.clear();
    if (const auto* prepend = std::get_if<PrependStep>(&step)) {
      if (text.empty() || start.is_continuation) continue;
      scratch.next.append(prepend->prefix).append(text);
      if (start.num_first > 0) start.num_first += prepend->prefix.size();
    } else {
      append_replaced(std::get<ReplaceStep>(step), text, regex_scratch, scratch.next, start);
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

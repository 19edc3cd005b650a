// A Split or Replace pattern: literal text or a regular expression, and the matches of it in a
// text.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/utf8.h"
#include "text/pattern/regex.h"

namespace dsmoe::text {

class Pattern {
 public:
  // `literal` must not be empty.
  static Pattern from_literal(std::string literal) { return Pattern(std::move(literal)); }
  static Pattern from_regex(std::string_view regex, std::string_view what) {
    return Pattern(Regex(regex, what));
  }

  bool find(std::string_view text, std::size_t from, RegexScratch& scratch, Span& match) const {
    if (regex_) return regex_->find(text, from, scratch, match);
    const std::size_t begin = text.find(literal_, from);
    if (begin == std::string_view::npos) return false;
    match = {.begin = begin, .end = begin + literal_.size()};
    return true;
  }

 private:
  explicit Pattern(std::string literal) : literal_(std::move(literal)) {}
  explicit Pattern(Regex regex) : regex_(std::move(regex)) {}

  std::string literal_;
  std::optional<Regex> regex_;
};

// Iterates as Oniguruma's callers do: an empty match right behind the previous match is not one.
class MatchIterator {
 public:
  MatchIterator(const Pattern& pattern, std::string_view text, RegexScratch& scratch)
      : pattern_(pattern), text_(text), scratch_(scratch) {}

  bool next(Span& match) {
    while (at_ <= text_.size() && !text_.empty()) {
      if (!pattern_.find(text_, at_, scratch_, match)) return false;
      if (!match.empty() || !has_last_ || match.end != last_end_) {
        at_ = match.end;
        last_end_ = match.end;
        has_last_ = true;
        return true;
      }
      at_ += at_ < text_.size() ? utf8_length(static_cast<unsigned char>(text_[at_])) : 1;
    }
    return false;
  }

 private:
  const Pattern& pattern_;
  std::string_view text_;
  RegexScratch& scratch_;
  std::size_t at_ = 0;
  std::size_t last_end_ = 0;
  bool has_last_ = false;
};

}  // namespace dsmoe::text

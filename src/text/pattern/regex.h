// A compiled pattern over valid UTF-8, searched with limits: PCRE2 with JIT, fed through
// translate_oniguruma().
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace dsmoe::text {

struct Span {
  std::size_t begin = 0;
  std::size_t end = 0;
  bool empty() const { return begin == end; }
};

// What one thread needs to run any number of patterns. Not shared between threads.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

  // True while the text being searched holds a code point that is_recent(): selects the second
  // compiled form.
  bool has_recent = false;

 private:
  friend class Regex;
  struct State;
  std::unique_ptr<State> state_;
};

class Regex {
 public:
  // Throws Error(input), starting with `what`, for patterns that are wrong, too large or not
  // supported.
  Regex(std::string_view oniguruma_pattern, std::string_view what);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // Leftmost match that starts at `from` or later, in Perl's order of alternatives. `text` is valid
  // UTF-8. Throws Error(input) when the pattern needs more steps or memory on this text than the
  // limits allow.
  bool find(std::string_view text, std::size_t from, RegexScratch& scratch, Span& match) const;

 private:
  struct Code;
  std::string what_;
  std::unique_ptr<Code> code_;
  std::unique_ptr<Code> code_recent_;
};

}  // namespace dsmoe::text

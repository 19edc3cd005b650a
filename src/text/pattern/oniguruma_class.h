// Character classes of Oniguruma patterns: [...], \p{...}, \s and their kin, as PCRE2 class items.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/pattern/oniguruma.h"

namespace dsmoe::text {

// A cursor over the pattern. next() and peek() refuse to run past the end.
struct PatternReader {
  std::string_view pattern;  // valid UTF-8
  std::string_view what;
  UnicodeRange range = UnicodeRange::pcre2;
  std::size_t at = 0;
  bool ignores_case = false;  // under (?i)

  bool at_end() const { return at >= pattern.size(); }
  char peek() const;
  std::uint32_t next();
  bool take(char c);
  [[noreturn]] void refuse(const std::string& construct) const;
};

// The characters of `items` (PCRE2 class items), or all others.
struct CharSet {
  std::string items;
  bool negated = false;
  std::uint32_t code_point = 0;  // meaningful when is_single
  bool is_single = false;
  std::string as_atom() const;
};

// A bracket expression: the union of `items` and of the complements of each of `complements`, all
// of it negated or not.
struct CharClass {
  std::string items;
  std::vector<std::string> complements;
  bool negated = false;
  std::string as_atom(const PatternReader& in) const;
};

std::string literal(std::uint32_t code_point);

// \w differs from itself in Oniguruma: superscripts and fractions of Latin-1 are words outside of
// brackets only.
enum class WordPlace { in_brackets, alone };
std::string word_items(UnicodeRange range, WordPlace place);

// After the opening '['; reads through the closing ']'.
CharClass parse_class(PatternReader& in, int depth);

// After a backslash: a literal character or a set. Refuses what is neither.
CharSet parse_class_escape(PatternReader& in, WordPlace place);

}  // namespace dsmoe::text

// Regular expressions as rules: a subset that means the same in JavaScript and in Python.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "constrain/nfa.h"

namespace dsmoe::constrain {

// Classes, groups, alternatives, repetitions (lazy ones are the same texts), ^ and $ at the ends of
// alternatives, \d \w \s and their opposites, escapes of characters. A character is a code point.
// Where the two languages differ only what both accept is written: \d \w \s are ASCII, their
// opposites leave out what is one of them in either, . is no end of a line.
class RegexPattern {
 public:
  // Throws Error(input) that begins with `place` and names the byte and what is not supported.
  RegexPattern(std::string_view pattern, std::string place);

  enum class Ends { whole, anywhere };      // what a match is: all of the text, or a part of it
  enum class Written { plainly, in_json };  // in_json: inside of quotes that are not written
  struct Manner {
    Ends ends = Ends::whole;
    Written written = Written::plainly;
  };
  void write(Nfa& nfa, int32_t from, Manner manner, int32_t to) const;

 private:
  friend class RegexParser;
  friend class RegexWriter;
  enum class Kind : uint8_t { characters, sequence, alternatives, repeat, begin, end };
  struct Item {
    Kind kind = Kind::sequence;
    std::vector<CodePoints> characters = {};
    std::vector<int32_t> children = {};
    Bounds times = {};
  };
  const Item& item(int32_t index) const { return items_[static_cast<std::size_t>(index)]; }

  std::string place_;
  std::vector<Item> items_;
  int32_t root_ = 0;
};

}  // namespace dsmoe::constrain

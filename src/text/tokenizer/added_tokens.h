// Added tokens: found in the text before anything else, longest first, with their strip and word
// rules.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/pattern/regex.h"

namespace dsmoe::text {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
  bool normalized = false;
  bool special = false;
};

// A stretch of text that is an added token (id >= 0) or is not (id = kPlainText).
struct Section {
  static constexpr std::int32_t kPlainText = -1;
  Span span;
  std::int32_t id = kPlainText;
};

enum class ParseSpecial { yes, no };

class AddedTokenMatcher {
 public:
  AddedTokenMatcher();

  // `pattern` is what to look for: the token's content, or its normalized form. Must not be empty.
  void add(const AddedToken& token, std::string_view pattern);

  // Leftmost, longest, not overlapping. With ParseSpecial::no a special token found in the text
  // stays text. Sections cover `text` (valid UTF-8) in order; the white space that lstrip and
  // rstrip take belongs to the token.
  void split(std::string_view text, ParseSpecial parse_special, RegexScratch& scratch,
             std::vector<Section>& sections) const;

 private:
  struct Found {
    std::size_t end = 0;
    int token_idx = -1;
  };
  Found longest_at(std::string_view text, std::size_t at) const;
  bool stands_alone(std::string_view text, Span span, RegexScratch& scratch) const;

  std::vector<AddedToken> tokens_;
  std::vector<int> token_of_node_{-1};                      // node 0 is the root of the trie
  std::unordered_map<std::uint64_t, std::uint32_t> edges_;  // node * 256 + byte -> node
  std::array<bool, 256> starts_{};
  Regex word_character_;
};

}  // namespace dsmoe::text

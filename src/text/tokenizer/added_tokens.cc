// A trie over bytes, entered only at bytes that start a token.
#include "text/tokenizer/added_tokens.h"

#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"
#include "text/unicode.h"

namespace dsmoe::text {
namespace {

// The word rule of added tokens is Rust's \w: Oniguruma's in brackets, with the joiners.
constexpr std::string_view kWordPattern = "[\\w\\x{200c}\\x{200d}]";

std::size_t skip_space(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    std::size_t next = at;
    if (!is_white_space(next_code_point(text, next))) break;
    at = next;
  }
  return at;
}

// Not beyond `limit`.
std::size_t skip_space_back(std::string_view text, std::size_t at, std::size_t limit) {
  while (at > limit) {
    const std::size_t start = previous_char(text, at);
    std::size_t next = start;
    if (!is_white_space(next_code_point(text, next))) break;
    at = start;
  }
  return at;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher() : word_character_(kWordPattern, "added tokens") {}

void AddedTokenMatcher::add(const AddedToken& token, std::string_view pattern) {
  DSMOE_CHECK(!pattern.empty(), "added token {} has no text", token.id);
  std::uint32_t node = 0;
  for (const char c : pattern) {
    const std::uint64_t edge = std::uint64_t{node} * 256 + static_cast<unsigned char>(c);
    const auto [slot, inserted] =
        edges_.try_emplace(edge, static_cast<std::uint32_t>(token_of_node_.size()));
    if (inserted) token_of_node_.push_back(-1);
    node = slot->second;
  }
  token_of_node_[node] = static_cast<int>(tokens_.size());
  tokens_.push_back(token);
  starts_[static_cast<unsigned char>(pattern.front())] = true;
}

AddedTokenMatcher::Found AddedTokenMatcher::longest_at(std::string_view text,
                                                       std::size_t at) const {
  Found found;
  std::uint32_t node = 0;
  while (at < text.size()) {
    const auto edge = edges_.find(std::uint64_t{node} * 256 + static_cast<unsigned char>(text[at]));
    if (edge == edges_.end()) break;
    node = edge->second;
    ++at;
    if (token_of_node_[node] >= 0) found = {.end = at, .token_idx = token_of_node_[node]};
  }
  return found;
}

bool AddedTokenMatcher::stands_alone(std::string_view text, Span span,
                                     RegexScratch& scratch) const {
  const auto is_word = [&](std::size_t at) {
    const std::size_t length = utf8_length(static_cast<unsigned char>(text[at]));
    Span unused;
    return word_character_.find(text.substr(at, length), 0, scratch, unused);
  };
  const bool left = span.begin == 0 || !is_word(previous_char(text, span.begin));
  const bool right = span.end == text.size() || !is_word(span.end);
  return left && right;
}

void AddedTokenMatcher::split(std::string_view text, ParseSpecial parse_special,
                              RegexScratch& scratch, std::vector<Section>& sections) const {
  sections.clear();
  std::size_t done = 0;
  if (!tokens_.empty()) {
    for (std::size_t at = 0; at < text.size();) {
      if (!starts_[static_cast<unsigned char>(text[at])]) {
        ++at;
        continue;
      }
      const Found found = longest_at(text, at);
      if (found.token_idx < 0) {
        ++at;
        continue;
      }
      const AddedToken& token = tokens_[static_cast<std::size_t>(found.token_idx)];
      Span span{.begin = at, .end = found.end};
      at = found.end;
      if (token.special && parse_special == ParseSpecial::no) continue;
      if (token.single_word && !stands_alone(text, span, scratch)) continue;
      if (token.lstrip) span.begin = std::max(skip_space_back(text, span.begin, done), done);
      // A match inside white space that was stripped ends where that ends: each run is walked once.
      if (token.rstrip) span.end = span.end < done ? done : skip_space(text, span.end);
      if (span.empty()) continue;  // white space that the token before has taken
      if (done < span.begin) sections.push_back({.span = {.begin = done, .end = span.begin}});
      sections.push_back({.span = span, .id = token.id});
      done = span.end;
    }
  }
  if (done != text.size() || text.empty()) {
    sections.push_back({.span = {.begin = done, .end = text.size()}});
  }
}

}  // namespace dsmoe::text

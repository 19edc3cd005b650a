// Which tokens complete a text, by the trie of the vocabulary.
#include "constrain/restriction.h"

#include <algorithm>

#include "base/error.h"

namespace dsmoe::constrain {
namespace {

void clear_token(TokenBits& bits, int32_t token) {
  bits[static_cast<std::size_t>(token) / 64] &= ~(uint64_t{1} << (token % 64));
}

}  // namespace

Restriction::Restriction(RestrictionRules rules, std::shared_ptr<const Vocabulary> vocabulary)
    : vocabulary_(std::move(vocabulary)), always_(vocabulary_->num_words()) {
  const auto size = static_cast<int32_t>(vocabulary_->size());
  if (rules.only_tokens.empty()) {
    for (int32_t token = 0; token < size; ++token) set_token(always_, token);
  }
  for (const int32_t token : rules.only_tokens) {
    DSMOE_CHECK(token >= 0 && token < size, "token {} of {}", token, size);
    set_token(always_, token);
  }
  for (const std::string& text : rules.no_texts) {
    DSMOE_CHECK(!text.empty(), "a text without a byte");
    memory_ = std::max(memory_, text.size() - 1);
    for (int32_t token = 0; token < size; ++token) {
      const std::string_view bytes = vocabulary_->bytes(token);
      if (bytes.size() >= text.size() && bytes.find(text) != std::string_view::npos) {
        clear_token(always_, token);
      }
    }
    add_completions(text);
  }
  std::sort(completions_.begin(), completions_.end(),
            [](const Completion& a, const Completion& b) { return a.node < b.node; });
}

void Restriction::add_completions(const std::string& text) {
  for (std::size_t begun = 1; begun < text.size(); ++begun) {
    int64_t node = -1;
    for (std::size_t at = begun; at < text.size(); ++at) {
      node = vocabulary_->child(node, static_cast<uint8_t>(text[at]));
      if (node < 0) break;
    }
    if (node < 0) continue;
    completions_.push_back({static_cast<std::size_t>(node), text.substr(0, begun)});
  }
}

void Restriction::allowed(std::string_view end, TokenBits& bits) const {
  bits = always_;
  for (std::size_t i = 0; i < completions_.size(); ++i) {
    const std::size_t node = completions_[i].node;
    if (!end.ends_with(completions_[i].begun)) continue;
    for (const int32_t token : vocabulary_->tokens_below(node)) clear_token(bits, token);
    while (i + 1 < completions_.size() && completions_[i + 1].node == node) ++i;
  }
}

void Restrained::take(int32_t token) {
  end_ += restriction_->vocabulary().bytes(token);
  const std::size_t memory = restriction_->memory();
  if (end_.size() > memory) end_.erase(0, end_.size() - memory);
}

}  // namespace dsmoe::constrain

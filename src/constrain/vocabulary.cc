// Sorted byte strings -> trie.
#include "constrain/vocabulary.h"

#include <algorithm>

namespace dsmoe::constrain {
namespace {

constexpr std::size_t kMaxTokenBytes = 512;  // longer ones are never written

}  // namespace

Vocabulary::Vocabulary(std::vector<std::string> bytes) : bytes_(std::move(bytes)) {
  for (std::size_t t = 0; t < bytes_.size(); ++t) {
    if (!bytes_[t].empty() && bytes_[t].size() <= kMaxTokenBytes) {
      tokens_.push_back(static_cast<int32_t>(t));
    }
  }
  std::sort(tokens_.begin(), tokens_.end(), [&](int32_t a, int32_t b) {
    const int order = this->bytes(a).compare(this->bytes(b));
    return order != 0 ? order < 0 : a < b;
  });
  std::vector<std::size_t> open;  // the nodes of the last token's bytes
  std::string_view last;
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const std::string_view text = this->bytes(tokens_[i]);
    const auto first_new = std::mismatch(text.begin(), text.end(), last.begin(), last.end()).first;
    const auto common = static_cast<std::size_t>(first_new - text.begin());
    for (; open.size() > common; open.pop_back()) {
      nodes_[open.back()].end = static_cast<uint32_t>(nodes_.size());
    }
    for (std::size_t at = common; at < text.size(); ++at) {
      open.push_back(nodes_.size());
      nodes_.push_back({.first_token = static_cast<uint32_t>(i),
                        .depth = static_cast<uint16_t>(at + 1),
                        .byte = static_cast<uint8_t>(text[at])});
    }
    max_depth_ = std::max(max_depth_, text.size());
    last = text;
  }
  for (const std::size_t node : open) nodes_[node].end = static_cast<uint32_t>(nodes_.size());
  root_child_.fill(-1);
  for (std::size_t node = 0; node < nodes_.size(); node = nodes_[node].end) {
    root_child_[nodes_[node].byte] = static_cast<int64_t>(node);
  }
  nodes_.push_back({.end = static_cast<uint32_t>(nodes_.size() + 1),
                    .first_token = static_cast<uint32_t>(tokens_.size())});
}

int64_t Vocabulary::child(int64_t node, uint8_t byte) const {
  if (node < 0) return root_child_[byte];
  const auto parent = static_cast<std::size_t>(node);
  for (std::size_t next = parent + 1; next < nodes_[parent].end; next = nodes_[next].end) {
    if (nodes_[next].byte == byte) return static_cast<int64_t>(next);
  }
  return -1;
}

bool Vocabulary::has_byte(uint8_t byte) const {
  const int64_t node = root_child_[byte];
  return node >= 0 && !tokens_at(static_cast<std::size_t>(node)).empty();
}

std::shared_ptr<const Vocabulary> vocabulary_of(const text::Tokenizer& tokenizer, int64_t num_ids,
                                                std::string_view markers) {
  std::vector<std::string> bytes(static_cast<std::size_t>(num_ids));
  const int64_t known = std::min<int64_t>(num_ids, tokenizer.vocab_size());
  for (int32_t token = 0; token < known; ++token) {
    const std::string text = tokenizer.id_to_bytes(token).value_or("");
    const bool is_marker = !text.empty() && markers.find(text) != std::string_view::npos;
    if (!tokenizer.is_special(token) || is_marker) bytes[static_cast<std::size_t>(token)] = text;
  }
  return std::make_shared<const Vocabulary>(std::move(bytes));
}

}  // namespace dsmoe::constrain

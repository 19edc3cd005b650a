// A merge touches only the words that hold the pair; a queue with stale entries finds the next one.
#include "text/tokenizer/bpe_pairs.h"

#include <algorithm>

namespace dsmoe::text {

std::uint64_t BpePairs::key_of(std::int32_t left, std::int32_t right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}

BpePairs::BpePairs(const std::vector<std::pair<std::string, std::int64_t>>& words) {
  words_.reserve(words.size());
  for (const auto& [bytes, count] : words) {
    Word word{.symbols = {}, .count = count};
    word.symbols.reserve(bytes.size());
    for (const char c : bytes) word.symbols.push_back(static_cast<unsigned char>(c));
    const auto word_idx = static_cast<std::uint32_t>(words_.size());
    for (std::size_t i = 0; i + 1 < word.symbols.size(); ++i) {
      Occurrences& pair = pairs_[key_of(word.symbols[i], word.symbols[i + 1])];
      pair.count += count;
      if (pair.words.empty() || pair.words.back() != word_idx) pair.words.push_back(word_idx);
    }
    words_.push_back(std::move(word));
  }
  for (const auto& [key, pair] : pairs_) {
    queue_.push({.left = static_cast<std::int32_t>(key >> 32),
                 .right = static_cast<std::int32_t>(key & 0xFFFFFFFF),
                 .count = pair.count});
  }
}

std::optional<BpePairs::Pair> BpePairs::best() {
  while (!queue_.empty()) {
    Pair top = queue_.top();
    const auto found = pairs_.find(key_of(top.left, top.right));
    const bool usable =
        found != pairs_.end() && !found->second.forbidden && found->second.count > 0;
    if (usable && found->second.count == top.count) return top;
    queue_.pop();
    if (!usable) continue;
    top.count = found->second.count;
    queue_.push(top);
  }
  return std::nullopt;
}

void BpePairs::merge(const Pair& pair, std::int32_t product) {
  const auto found = pairs_.find(key_of(pair.left, pair.right));
  if (found == pairs_.end()) return;
  const std::vector<std::uint32_t> affected = std::move(found->second.words);
  std::vector<std::uint64_t> grown;
  std::vector<std::int32_t> merged;
  for (const std::uint32_t word_idx : affected) {
    Word& word = words_[word_idx];
    merged.clear();
    for (std::size_t i = 0; i < word.symbols.size(); ++i) {
      const bool is_pair = word.symbols[i] == pair.left && i + 1 < word.symbols.size() &&
                           word.symbols[i + 1] == pair.right;
      merged.push_back(is_pair ? product : word.symbols[i]);
      i += is_pair ? 1 : 0;
    }
    if (merged.size() == word.symbols.size()) continue;  // lost the pair earlier
    for (std::size_t i = 0; i + 1 < word.symbols.size(); ++i) {
      pairs_[key_of(word.symbols[i], word.symbols[i + 1])].count -= word.count;
    }
    word.symbols = merged;
    for (std::size_t i = 0; i + 1 < merged.size(); ++i) {
      const std::uint64_t key = key_of(merged[i], merged[i + 1]);
      Occurrences& now = pairs_[key];
      now.count += word.count;
      if (merged[i] != product && merged[i + 1] != product) continue;
      if (now.words.empty() || now.words.back() != word_idx) now.words.push_back(word_idx);
      grown.push_back(key);
    }
  }
  pairs_.erase(key_of(pair.left, pair.right));
  std::sort(grown.begin(), grown.end());
  grown.erase(std::unique(grown.begin(), grown.end()), grown.end());
  for (const std::uint64_t key : grown) {
    const auto now = pairs_.find(key);
    if (now == pairs_.end()) continue;
    queue_.push({.left = static_cast<std::int32_t>(key >> 32),
                 .right = static_cast<std::int32_t>(key & 0xFFFFFFFF),
                 .count = now->second.count});
  }
}

void BpePairs::forbid(const Pair& pair) { pairs_[key_of(pair.left, pair.right)].forbidden = true; }

}  // namespace dsmoe::text

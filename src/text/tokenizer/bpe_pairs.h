// The pairs of neighbouring symbols in a set of counted words, kept up to date while pairs are
// merged.
#pragma once

#include <cstdint>
#include <optional>
#include <queue>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace dsmoe::text {

class BpePairs {
 public:
  struct Pair {
    std::int32_t left = 0;
    std::int32_t right = 0;
    std::int64_t count = 0;
  };

  // Symbols 0..255 are the bytes.
  explicit BpePairs(const std::vector<std::pair<std::string, std::int64_t>>& words);

  // The most frequent pair; among equals the one of smallest (left, right). Nothing when none is
  // left.
  std::optional<Pair> best();

  // Replaces the pair by `product` in every word.
  void merge(const Pair& pair, std::int32_t product);

  // The pair stays two symbols for good.
  void forbid(const Pair& pair);

 private:
  struct Word {
    std::vector<std::int32_t> symbols;
    std::int64_t count = 0;
  };
  struct Occurrences {
    std::int64_t count = 0;
    std::vector<std::uint32_t> words;  // may name words that lost the pair since
    bool forbidden = false;
  };
  struct LessUrgent {
    bool operator()(const Pair& a, const Pair& b) const {
      if (a.count != b.count) return a.count < b.count;
      return a.left != b.left ? a.left > b.left : a.right > b.right;
    }
  };
  static std::uint64_t key_of(std::int32_t left, std::int32_t right);

  std::vector<Word> words_;
  std::unordered_map<std::uint64_t, Occurrences> pairs_;
  std::priority_queue<Pair, std::vector<Pair>, LessUrgent>
      queue_;  // counts may be too high: checked when taken
};

}  // namespace dsmoe::text

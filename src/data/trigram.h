// An interpolated trigram model of token ids: the baseline that a trained model must beat.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "data/token_corpus.h"

namespace dsmoe::data {

// p(w | u v) = l3 f(w | u v) + l2 f(w | v) + l1 f(w) + l0 / V with relative frequencies f of the
// training documents. The weights depend on how often the context u v was seen (one set per power
// of two) and are fitted on held-out documents by expectation maximisation (deleted interpolation).
class TrigramModel {
 public:
  explicit TrigramModel(int64_t vocab_size);

  // Counts the tokens of one document after its first, which is given, not predicted. Before tune()
  // only.
  void add(std::span<const int32_t> document);

  // `held_out`: documents that add() never saw. Without any, fixed weights stay in place.
  void tune(std::span<const std::vector<int32_t>> held_out);

  struct Score {
    double nats = 0;
    int64_t num_tokens = 0;  // predicted: all but the first
    double nats_per_token() const {
      return num_tokens > 0 ? nats / static_cast<double>(num_tokens) : 0;
    }
  };
  Score score(std::span<const int32_t> document) const;
  Score score(std::span<const std::vector<int32_t>> documents) const;

  // Probability of `token` after the two before it; `before_last` is vocab_size when there is none.
  double probability(int32_t before_last, int32_t last, int32_t token) const;

 private:
  static constexpr size_t kBuckets = 16;
  using Weights = std::array<double, 4>;  // of uniform, unigram, bigram, trigram; they sum to 1
  struct Terms {
    Weights frequency;
    size_t bucket;
  };
  Terms terms(int32_t before_last, int32_t last, int32_t token) const;

  uint64_t key(int32_t a, int32_t b) const;

  int64_t vocab_size_;
  uint64_t total_ = 0;
  std::vector<uint64_t> unigrams_;                           // per token
  std::vector<uint64_t> bigram_contexts_;                    // per last token
  std::unordered_map<uint64_t, uint64_t> bigrams_;           // (last, token)
  std::unordered_map<uint64_t, uint64_t> trigram_contexts_;  // (before_last, last)
  std::unordered_map<uint64_t, uint64_t> trigrams_;          // index of (before_last, last), token
  std::unordered_map<uint64_t, uint64_t> context_idx_;       // dense numbers for trigram contexts
  std::array<Weights, kBuckets> weights_;
};

// Counts nine documents of ten and tunes on the tenth.
TrigramModel fit_trigram(const TokenCorpus& corpus);
// The score of all documents.
TrigramModel::Score score(const TrigramModel& trigram, const TokenCorpus& corpus);

}  // namespace dsmoe::data

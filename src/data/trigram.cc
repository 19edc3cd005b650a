// Counting, and EM for the interpolation weights.
#include "data/trigram.h"

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "base/functions.h"

namespace dsmoe::data {

TrigramModel::TrigramModel(int64_t vocab_size)
    : vocab_size_(vocab_size),
      unigrams_(static_cast<size_t>(vocab_size)),
      bigram_contexts_(static_cast<size_t>(vocab_size)) {
  DSMOE_CHECK(vocab_size > 0 && vocab_size < int64_t{1} << 31, "vocabulary of {}", vocab_size);
  // Bucket 0 is a context never seen: its trigram term is always 0.
  weights_.fill({0.02, 0.08, 0.3, 0.6});
}

uint64_t TrigramModel::key(int32_t a, int32_t b) const {
  return static_cast<uint64_t>(a) << 32 | static_cast<uint32_t>(b);
}

namespace {

// Calls f(before_last, last, token) for every token of the document after its first.
template <class F>
void for_each_trigram(std::span<const int32_t> document, int64_t vocab_size, F f) {
  for (const int32_t id : document) {
    DSMOE_CHECK(id >= 0 && id < vocab_size, "token id {} is outside the vocabulary of {}", id,
                vocab_size);
  }
  for (size_t i = 1; i < document.size(); ++i) {
    f(i >= 2 ? document[i - 2] : static_cast<int32_t>(vocab_size), document[i - 1], document[i]);
  }
}

uint64_t count_of(const std::unordered_map<uint64_t, uint64_t>& counts, uint64_t key) {
  const auto at = counts.find(key);
  return at == counts.end() ? 0 : at->second;
}

}  // namespace

void TrigramModel::add(std::span<const int32_t> document) {
  for_each_trigram(document, vocab_size_, [&](int32_t before_last, int32_t last, int32_t token) {
    const uint64_t context = key(before_last, last);
    const uint64_t idx = context_idx_.try_emplace(context, context_idx_.size()).first->second;
    DSMOE_CHECK(idx < uint64_t{1} << 32, "more than 2^32 trigram contexts");
    ++total_;
    ++unigrams_[static_cast<size_t>(token)];
    ++bigram_contexts_[static_cast<size_t>(last)];
    ++bigrams_[key(last, token)];
    ++trigram_contexts_[context];
    ++trigrams_[idx << 32 | static_cast<uint32_t>(token)];
  });
}

TrigramModel::Terms TrigramModel::terms(int32_t before_last, int32_t last, int32_t token) const {
  const auto ratio = [](uint64_t count, uint64_t of) {
    return of == 0 ? 0.0 : static_cast<double>(count) / static_cast<double>(of);
  };
  const uint64_t context = key(before_last, last);
  const uint64_t seen = count_of(trigram_contexts_, context);
  const uint64_t together =
      seen == 0
          ? 0
          : count_of(trigrams_, context_idx_.at(context) << 32 | static_cast<uint32_t>(token));
  return {.frequency = {1.0 / static_cast<double>(vocab_size_),
                        ratio(unigrams_[static_cast<size_t>(token)], total_),
                        ratio(count_of(bigrams_, key(last, token)),
                              bigram_contexts_[static_cast<size_t>(last)]),
                        ratio(together, seen)},
          .bucket = std::min<size_t>(static_cast<size_t>(std::bit_width(seen)), kBuckets - 1)};
}

void TrigramModel::tune(std::span<const std::vector<int32_t>> held_out) {
  std::vector<Terms> seen;
  for (const std::vector<int32_t>& document : held_out) {
    for_each_trigram(document, vocab_size_,
                     [&](int32_t u, int32_t v, int32_t w) { seen.push_back(terms(u, v, w)); });
  }
  constexpr int kIterations = 30;
  constexpr double kPrior = 0.1;  // keeps every weight positive: no token ever gets probability 0
  for (int iteration = 0; iteration < kIterations; ++iteration) {
    std::array<Weights, kBuckets> shares{};
    for (const Terms& term : seen) {
      Weights parts{};
      double sum = 0;
      for (size_t i = 0; i < parts.size(); ++i) {
        parts[i] = weights_[term.bucket][i] * term.frequency[i];
        sum += parts[i];
      }
      for (size_t i = 0; i < parts.size(); ++i) shares[term.bucket][i] += parts[i] / sum;
    }
    for (size_t bucket = 0; bucket < kBuckets; ++bucket) {
      double sum = 0;
      for (double& share : shares[bucket]) sum += share += kPrior;
      // A bucket that the held-out documents never reached keeps its fixed weights.
      if (sum < 1 + 4 * kPrior) continue;
      for (size_t i = 0; i < 4; ++i) weights_[bucket][i] = shares[bucket][i] / sum;
    }
  }
}

double TrigramModel::probability(int32_t before_last, int32_t last, int32_t token) const {
  const Terms found = terms(before_last, last, token);
  // A context that was never seen has no frequencies: its weight goes to the shorter ones.
  const bool no_trigram = found.bucket == 0;
  const bool no_bigram = bigram_contexts_[static_cast<size_t>(last)] == 0;
  double sum = 0, weight = 0;
  for (size_t i = 0; i < 4; ++i) {
    if ((i == 3 && no_trigram) || (i == 2 && no_bigram) || (i == 1 && total_ == 0)) continue;
    sum += weights_[found.bucket][i] * found.frequency[i];
    weight += weights_[found.bucket][i];
  }
  return sum / weight;
}

TrigramModel::Score TrigramModel::score(std::span<const int32_t> document) const {
  Score out;
  for_each_trigram(document, vocab_size_, [&](int32_t u, int32_t v, int32_t w) {
    out.nats -= log_f64(probability(u, v, w));
    ++out.num_tokens;
  });
  return out;
}

TrigramModel::Score TrigramModel::score(std::span<const std::vector<int32_t>> documents) const {
  Score sum;
  for (const std::vector<int32_t>& document : documents) {
    const Score one = score(document);
    sum.nats += one.nats;
    sum.num_tokens += one.num_tokens;
  }
  return sum;
}

TrigramModel fit_trigram(const TokenCorpus& corpus) {
  TrigramModel trigram(corpus.vocab_size());
  std::vector<std::vector<int32_t>> held_out;
  for (int64_t d = 0; d < corpus.num_documents(); ++d) {
    std::vector<int32_t> tokens = all_tokens(corpus, d);
    if (d % 10 == 0) {
      held_out.push_back(std::move(tokens));
    } else {
      trigram.add(tokens);
    }
  }
  trigram.tune(held_out);
  return trigram;
}

TrigramModel::Score score(const TrigramModel& trigram, const TokenCorpus& corpus) {
  TrigramModel::Score sum;
  for (int64_t d = 0; d < corpus.num_documents(); ++d) {
    const TrigramModel::Score one = trigram.score(all_tokens(corpus, d));
    sum.nats += one.nats;
    sum.num_tokens += one.num_tokens;
  }
  return sum;
}

}  // namespace dsmoe::data

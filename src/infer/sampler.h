// Chooses the next token: penalties and bias, temperature, truncation, one counter-based draw.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace dsmoe::infer {

struct LogitBias {
  int32_t token = 0;
  double bias = 0;
};

// Applied in the order of the fields that change logits, then temperature, then top-k, top-p,
// min-p, each on what the one before it left. Defaults: plain sampling from the model's
// distribution.
struct SamplerOptions {
  double repetition_penalty =
      1;                        // > 0; tokens of prompt and answer: logit / r if positive, else * r
  double presence_penalty = 0;  // subtracted from every token of the answer
  double frequency_penalty = 0;      // subtracted once per occurrence in the answer
  std::vector<LogitBias> bias = {};  // added; each token at most once
  double temperature = 1;            // 0: the most likely token
  int64_t top_k = 0;                 // 0: all
  double top_p = 1;  // the shortest prefix of the tokens by probability that holds this much
  double min_p = 0;  // only tokens at least this likely, relative to the most likely one
};

// The most likely token, whatever came before: nothing but the logits decides.
bool takes_most_likely(const SamplerOptions& options);

// Throws Error(input) that names the field and its range.
void check(const SamplerOptions& options, int64_t vocabulary);

struct SampleInput {
  std::span<const float> logits;    // [vocabulary]
  std::span<const int32_t> prompt;  // tokens before the answer
  std::span<const int32_t> answer;  // tokens chosen so far
  uint64_t seed = 0;
  uint32_t choice = 0;   // which of several answers to one prompt
  int64_t position = 0;  // of the token to choose, counted from the start of the document
};

// A pure function of its arguments. Sums run in double, over ids ascending (all tokens) or by
// descending weight, ties by lower id (what truncation left). Throws Error(input) when a logit is
// not finite.
class Sampler {
 public:
  Sampler(SamplerOptions options, int64_t vocabulary);

  int32_t sample(const SampleInput& input);
  const SamplerOptions& options() const { return options_; }

 private:
  struct Weighted {
    double weight;  // relative to the best, which has 1
    int32_t token;
  };
  void adjust(const SampleInput& input);
  void sort_prefix(std::size_t count);
  std::vector<Weighted>::iterator gather_heavy(std::size_t count);
  std::size_t shortest_prefix(double mass, std::size_t available);
  double sum_prefix(std::size_t count) const;

  SamplerOptions options_;
  // Scratch; nothing of it outlives a call.
  std::vector<double> logits_;  // then weights
  std::vector<int32_t> counts_;
  std::vector<Weighted> weighted_;
  std::vector<double> looked_at_;
  std::size_t num_sorted_ = 0;
};

}  // namespace dsmoe::infer

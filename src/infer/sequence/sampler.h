// Chooses the next token: penalties and bias, temperature, truncation, one counter-based draw.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/sample.h"

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

// Nothing but the logits and the draw decides: the device that has the logits can choose.
bool needs_logits_alone(const SamplerOptions& options);

// Throws Error(input) that names the field and its range.
void check(const SamplerOptions& options, int64_t vocabulary);

// What the draw of one token depends on.
struct DrawKey {
  uint64_t seed = 0;
  uint32_t choice = 0;   // which of several answers to one prompt
  int64_t position = 0;  // of the token to choose, counted from the start of the document
};

// All that the options say besides penalties and bias (kernels/sample.h).
kernels::SampleRule sample_rule(const SamplerOptions& options, const DrawKey& key);

struct SampleInput {
  std::span<const float> logits;    // [vocabulary]
  std::span<const int32_t> prompt;  // tokens before the answer
  std::span<const int32_t> answer;  // tokens chosen so far
  DrawKey key;
  // One bit per token; the others have no weight, whatever penalties and bias say. Empty: all.
  std::span<const uint64_t> allowed = {};
};

// A pure function of its arguments: each penalty and bias in double, rounded, then the rule. Throws
// Error(input) when a logit is not finite.
class Sampler {
 public:
  Sampler(SamplerOptions options, int64_t vocabulary);

  int32_t sample(const SampleInput& input);
  const SamplerOptions& options() const { return options_; }

 private:
  void adjust(const SampleInput& input);
  void hide(std::span<const uint64_t> allowed);

  SamplerOptions options_;
  // Scratch; nothing of it outlives a call.
  std::vector<float> logits_;
  std::vector<int32_t> counts_;
};

}  // namespace dsmoe::infer

// Answers: prefill the prompt, then sample, show, append, until something ends it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "constrain/constraint.h"
#include "infer/sequence/sampler.h"
#include "infer/sequence/session.h"

namespace dsmoe::infer {

enum class FinishReason {
  stop_token,  // one of stop_ids; it is not part of the answer
  stopped,     // the callback asked for it: a stop string
  complete,    // nothing can follow in the constraint
  closed,      // whole by the constraint, which would allow more in a longer answer
  length,      // max_tokens
  context,     // the context is full
  cancelled,
};
std::string_view name_of(FinishReason reason);  // "stop", "length", "context", "cancelled"

enum class Next { more, stop };

struct GenerateOptions {
  SamplerOptions sampler;
  uint64_t seed = 0;
  uint32_t choice = 0;
  int64_t max_tokens = 0;                                   // 0: as the context allows
  std::vector<int32_t> stop_ids;                            // end of text
  std::shared_ptr<const constrain::Constraint> constraint;  // what the answer must look like
  const std::atomic<bool>* cancelled = nullptr;
};

struct Generation {
  std::vector<int32_t> tokens;  // the answer
  FinishReason reason = FinishReason::length;
  int64_t prompt_tokens = 0;
  int64_t reused_tokens = 0;   // of the prompt, found in the cache
  int64_t decoded_tokens = 0;  // computed one by one: the first token needs the prompt only
  double prompt_seconds = 0;
  double answer_seconds = 0;

  double prompt_rate() const;  // tokens computed per second; 0 when nothing was
  double answer_rate() const;
};

// A function of (model, prompt, options): not of threads, chunks, or what the session held before.
// `on_token` gets each token of the answer as it is chosen. Afterwards the session holds the prompt
// and the answer, except its last token when nothing followed it.
Generation generate(Session& session, std::span<const int32_t> prompt,
                    const GenerateOptions& options, FunctionRef<Next(int32_t token)> on_token);

}  // namespace dsmoe::infer

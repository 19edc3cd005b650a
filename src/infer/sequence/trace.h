// Runs one sequence and hands out what a reader may want to compare: logits and routing.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/function_ref.h"
#include "infer/sequence/routes.h"
#include "model/language_model.h"

namespace dsmoe::infer {

// Rows [begin, begin + n) of one result, in host memory, valid during the call.
struct TraceSink {
  FunctionRef<void(std::span<const float> logits)> logits;  // [n, vocabulary]
  FunctionRef<void(const RoutesView& routes)> routes;       // of n tokens; not without MoE layers
  // [n, hidden], the normalised final states; null: not wanted.
  const FunctionRef<void(std::span<const float> states)>* hidden = nullptr;
};

struct TraceOptions {
  int64_t top_k = 0;         // 0: the model's
  int64_t chunk_tokens = 0;  // 0: kChunkTokens
  // [tokens, MoE layers, top_k]: the experts to take, -1 absent; empty: all choose.
  std::span<const int32_t> replayed = {};
  const std::atomic<bool>* cancelled = nullptr;
};

enum class Outcome { done, cancelled };

// Rows arrive in ascending order. Throws Error(input) on a token outside the vocabulary, a sequence
// longer than the context, experts to take that are not there, or logits that are not finite.
Outcome trace_sequence(const kernels::Context& context, const model::Model& model,
                       std::span<const int32_t> tokens, const TraceOptions& options,
                       const TraceSink& sink);

// Throws Error(input) that starts with `what` and names the first id outside the vocabulary and its
// place.
void check_tokens(const model::ModelConfig& config, std::span<const int32_t> tokens,
                  std::string_view what);

// The place of the first value that is not finite, or -1.
int64_t first_non_finite(std::span<const float> values);

}  // namespace dsmoe::infer

// The most likely answers to many prompts at once.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "base/function_ref.h"
#include "infer/sequence/trace.h"
#include "model/language_model.h"

namespace dsmoe::infer {

struct GreedyOptions {
  int64_t max_tokens = 0;         // of an answer; at least 1
  std::vector<int32_t> stop_ids;  // end an answer; not part of it
  int64_t max_prompts = 64;       // that run together
  const std::atomic<bool>* cancelled = nullptr;
};

// Calls `take(prompt_idx, answer)` for each prompt in order. Each answer is what generate() with
// temperature 0 gives for its prompt alone. Throws Error(input) on a prompt that is empty, outside
// the vocabulary, or too long for the context together with max_tokens.
Outcome answer_greedily(
    const kernels::Context& context, const model::Model& model,
    std::span<const std::vector<int32_t>> prompts, const GreedyOptions& options,
    FunctionRef<void(int64_t prompt_idx, std::span<const int32_t> answer)> take);

}  // namespace dsmoe::infer

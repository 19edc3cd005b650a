// What an engine can ever run: its own check of requests, and the numbers the API words refusals
// with.
#pragma once

#include <cstdint>

#include "infer/engine/engine_request.h"

namespace dsmoe::infer {

struct Limits {
  int64_t context = 0;     // tokens of a prompt and its answer
  int64_t vocabulary = 0;  // ids lie below
  int64_t num_moe_layers = 0;
  int64_t num_experts = 0;  // routed, of a layer
  int64_t usual_top_k = 0;  // the model's experts per token
  int64_t max_top_k = 0;    // most that a request may ask for
  int64_t max_answers = 0;  // that run and wait, of all requests together

  // The last token of an answer is never forwarded.
  bool fits(int64_t num_prompt, int64_t num_answer) const {
    return num_prompt <= context && num_answer <= context + 1 - num_prompt;
  }
  int64_t top_k_of(int64_t asked) const { return asked > 0 ? asked : usual_top_k; }
};

// Twice the model's K or 16, as far as the model and the kernels can choose.
int64_t default_max_top_k(const model::ModelConfig& config);

// Throws Error(input) on a request that could never run.
void check(const model::ModelConfig& config, const Limits& limits, const EngineRequest& request);

}  // namespace dsmoe::infer

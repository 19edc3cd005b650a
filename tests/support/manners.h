// Ways to run the same documents: in batches, in chunks, on several threads. The logits must not
// tell.
#pragma once

#include <cstdint>
#include <vector>

#include "model/language_model.h"

namespace dsmoe::testing {

using Tokens = std::vector<int32_t>;

// 50 random documents of 1 to 90 tokens: some span two blocks of 64 keys.
std::vector<Tokens> random_prompts(int64_t vocabulary);

struct Manner {
  int64_t batch = 1;    // documents per forward pass
  int64_t chunk = 0;    // new tokens of a document per forward pass; 0: all
  int num_threads = 1;  // of the pool that the caller makes
};

// Logits of every token of every prompt, [sum of lengths, vocabulary], in host memory.
std::vector<float> all_logits(const kernels::Context& context, const model::Model& model,
                              const std::vector<Tokens>& prompts, const Manner& manner);

}  // namespace dsmoe::testing

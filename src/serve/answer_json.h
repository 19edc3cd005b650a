// Pieces of answers as JSON: log-probabilities and routes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "serve/completion_job.h"

namespace dsmoe::serve {

// A token with its score; no score for the first token of a prompt.
struct ScoredToken {
  int32_t token = 0;
  const infer::TokenScore* score = nullptr;
  int64_t text_offset = 0;  // characters before it
};

// {"tokens", "token_logprobs", "top_logprobs", "text_offset"}; the token itself is always in its
// map.
Json completion_logprobs(const ServedModel& model, std::span<const ScoredToken> tokens);
// {"content": [{"token", "logprob", "bytes", "top_logprobs"}]}
Json chat_logprobs(const ServedModel& model, std::span<const ScoredToken> tokens);

struct RouteShape {
  int64_t num_layers = 0;
  int64_t top_k = 0;
};
enum class WithGates { no, yes };
// Adds routed_start, routed_experts and routed_gates (docs/serving.md).
void add_routes(Json& choice, const RouteRecord& routes, const RouteShape& shape, WithGates gates);

int64_t count_characters(const std::string& utf8);

}  // namespace dsmoe::serve

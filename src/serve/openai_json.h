// Pieces of answers as JSON: log-probabilities and routes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "serve/answer_choice.h"

namespace dsmoe::serve {

// A token with its score; no score for the first token of a prompt.
struct ScoredToken {
  int32_t token = 0;
  const infer::TokenScore* score = nullptr;
  int64_t text_offset = 0;  // characters before it
};

struct LogprobForm {
  int num_top = 0;             // of the likeliest; a score may hold more
  bool tokens_as_ids = false;  // "token_id:17" instead of a text
};
// {"tokens", "token_logprobs", "top_logprobs", "text_offset"}; the token itself is always in its
// map.
OrderedJson completion_logprobs(const ServedModel& model, std::span<const ScoredToken> tokens,
                                const LogprobForm& form);
// {"content": [{"token", "logprob", "bytes", "top_logprobs"}], "refusal": null}
OrderedJson chat_logprobs(const ServedModel& model, std::span<const ScoredToken> tokens,
                          const LogprobForm& form);
// [null, {"17": {"logprob", "rank", "decoded_token"}, ...}, ...]: each token of a prompt with the
// likeliest in its place, as vLLM has it.
OrderedJson prompt_logprobs(const ServedModel& model, std::span<const ScoredToken> tokens,
                            const LogprobForm& form);

struct RouteShape {
  int64_t num_layers = 0;
  int64_t top_k = 0;
};
enum class WithGates { no, yes };
// Adds routed_start, routed_experts and routed_gates (docs/api.md).
void add_routes(OrderedJson& choice, const RouteRecord& routes, const RouteShape& shape,
                WithGates gates);

int64_t count_characters(const std::string& utf8);

}  // namespace dsmoe::serve

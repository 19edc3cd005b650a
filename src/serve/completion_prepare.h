// From the bytes of a completion request to what the engine needs: all that takes time and changes
// nothing, on any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "serve/body_budget.h"
#include "serve/completion_request.h"
#include "serve/served_model.h"

namespace dsmoe::serve {

struct EncodedPrompt {
  std::vector<int32_t> tokens;
  std::string text;  // as given; decoded where ids were given; only for echo
};

struct PreparedCompletion {
  CompletionRequest request;  // without its prompts, messages, replay and rules: they are here
  std::vector<std::shared_ptr<const EncodedPrompt>> prompts;
  // [tokens, MoE layers, K], -1 where a token takes fewer; empty: none
  std::shared_ptr<const std::vector<int32_t>> replay;
  std::shared_ptr<const constrain::Constraint> constraint;    // null: none
  std::shared_ptr<const constrain::Restriction> restriction;  // the same
  int64_t top_k = 0;
  std::shared_ptr<BodyShare> share = {};  // of the budget for bodies, while the request lives
};

// Throws ApiError about whatever cannot be taken.
PreparedCompletion prepare_completion(std::string_view body, Endpoint endpoint,
                                      const ServedModel& model);

// What the prompts and the replay hold of memory, here and in the engine, where every answer has
// its own tokens.
std::size_t num_bytes(const PreparedCompletion& prepared);

// How many tokens the answer to such a prompt may have. Throws ApiError when both do not fit; the
// last token of an answer needs no place.
int64_t answer_length(const CompletionRequest& request, int64_t num_prompt,
                      const ServedModel& model);

}  // namespace dsmoe::serve

// One check per limit.
#include "infer/engine/limits.h"

#include <algorithm>

#include "constrain/restriction.h"
#include "infer/load_model.h"
#include "infer/sequence/trace.h"

namespace dsmoe::infer {
namespace {

constexpr int64_t kMostTopK = 32;  // slots per token that every table's router can choose

}  // namespace

int64_t default_max_top_k(const model::ModelConfig& config) {
  if (config.num_moe_layers() == 0) return config.num_experts_per_tok;
  const int64_t wanted = std::max<int64_t>(2 * config.num_experts_per_tok, 16);
  return std::max(config.num_experts_per_tok,
                  std::min({wanted, config.num_selectable_experts(), kMostTopK}));
}

void check(const model::ModelConfig& config, const Limits& limits, const EngineRequest& request) {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  check_tokens(config, request.prompt, "prompt");
  if (prompt == 0) fail(ErrorKind::input, "the prompt has no tokens");
  if (!limits.fits(prompt, request.max_tokens)) {
    fail(ErrorKind::input,
         "a prompt of {} tokens and an answer of {} do not fit into the context of {}", prompt,
         request.max_tokens, limits.context);
  }
  check(request.sampler, limits.vocabulary);
  DSMOE_CHECK(!request.constraint || request.constraint->vocabulary().size() == limits.vocabulary,
              "a constraint on {} tokens, the model has {}",
              request.constraint->vocabulary().size(), limits.vocabulary);
  DSMOE_CHECK(
      !request.restriction ||
          (!request.constraint && request.restriction->vocabulary().size() == limits.vocabulary),
      "a restriction beside a constraint, or of another vocabulary");
  const int64_t top_k = checked_top_k(config, request.experts_per_token);
  if (top_k > limits.max_top_k) {
    fail(ErrorKind::input, "num_experts_per_tok is {}; 1 to {} experts per token are possible here",
         top_k, limits.max_top_k);
  }
  if (!request.is_replayed()) return;
  const int64_t row = limits.num_moe_layers * top_k;
  DSMOE_CHECK(row > 0 && static_cast<int64_t>(request.replayed->size()) % row == 0,
              "{} replayed slots in rows of {}", request.replayed->size(), row);
}

}  // namespace dsmoe::infer

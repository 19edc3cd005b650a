// One sequence inside the batch engine: its tokens, pages and what was handed out of it so far.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "infer/engine_core.h"

namespace dsmoe::infer {

struct EngineCore::Sequence {
  Sequence(const model::Model& model, Id its_id, Id its_submission, EngineRequest its_request)
      : id(its_id),
        submission(its_submission),
        request(std::move(its_request)),
        tokens(request.prompt),
        top_k(request.experts_per_token > 0 ? request.experts_per_token
                                            : model.config.num_experts_per_tok),
        route_size(static_cast<std::size_t>(model.config.num_moe_layers() * top_k)) {}

  int64_t num_prompt() const { return static_cast<int64_t>(request.prompt.size()); }
  int64_t num_answer() const { return static_cast<int64_t>(tokens.size()) - num_prompt(); }
  // Tokens to forward before the next one can be chosen.
  int64_t num_pending() const { return static_cast<int64_t>(tokens.size()) - kv.length; }
  PrefixScope scope() const { return {.owner = request.owner, .top_k = top_k}; }

  // Hands out the routes of positions from `position` on, as far as they are new.
  void add_routes(int64_t position, std::span<const int32_t> index, std::span<const float> gate) {
    if (!request.wants_routes || route_size == 0) return;
    const auto count = static_cast<int64_t>(index.size() / route_size);
    const int64_t known = std::max<int64_t>(0, routes_given - position);
    if (known >= count) return;
    const std::size_t skipped = static_cast<std::size_t>(known) * route_size;
    request.sink->on_routes({.first_position = position + known,
                             .num_tokens = count - known,
                             .index = index.subspan(skipped),
                             .gate = gate.subspan(skipped)});
    routes_given = position + count;
  }

  Id id;
  Id submission;
  // When its owner, and its submission, last had a turn; when it came, if they had none since.
  uint64_t owner_turn = 0, submission_turn = 0;
  EngineRequest request;
  std::unique_ptr<Sampler> sampler;  // made when it first runs: its scratch is large
  std::vector<int32_t> tokens;       // prompt and answer
  model::KvSequence kv;              // its length: how many of `tokens` were forwarded
  int64_t top_k;
  std::size_t route_size;  // slots of one token: MoE layers * top_k

  bool was_preempted = false;
  bool writes_prefix = false;
  PrefixCache::NodeId node = PrefixCache::kRoot;  // of its last full block
  std::vector<int32_t> open_index;                // routes since that block
  std::vector<float> open_gate;

  int64_t num_reused = 0;
  int64_t routes_given = 0;   // positions handed out
  int64_t prompt_scored = 1;  // the first prompt position without a score; 0 never has one
};

}  // namespace dsmoe::infer

// One sequence inside the batch engine: its tokens, pages and what was handed out of it so far.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "infer/engine/engine_request.h"
#include "infer/engine/prefix_cache.h"
#include "infer/engine/scheduler.h"
#include "infer/sequence/guide.h"
#include "infer/sequence/sampler.h"

namespace dsmoe::infer {

struct EngineSequence : Scheduled {
  EngineSequence(const model::Model& model, uint64_t its_id, uint64_t its_submission,
                 EngineRequest its_request)
      : request(std::move(its_request)),
        tokens(std::exchange(request.prompt, {})),
        num_prompt(static_cast<int64_t>(tokens.size())),
        top_k(request.experts_per_token > 0 ? request.experts_per_token
                                            : model.config.num_experts_per_tok),
        open{.num_layers = model.config.num_moe_layers(), .top_k = top_k} {
    id = its_id;
    submission = its_submission;
    owner = request.owner;
    goes_on = request.max_tokens > 1;
    if (request.constraint) guide.emplace(request.constraint, request.stop_ids);
    if (request.restriction) guide.emplace(request.restriction, request.stop_ids);
    refresh();
  }

  // After every change of tokens or pages: the numbers that scheduling goes by.
  void refresh() {
    num_tokens = static_cast<int64_t>(tokens.size());
    num_forwarded = kv.length;
    num_pages = static_cast<int64_t>(kv.pages.size());
  }

  int64_t num_answer() const { return static_cast<int64_t>(tokens.size()) - num_prompt; }
  std::span<const int32_t> prompt() const {
    return std::span(tokens).first(static_cast<std::size_t>(num_prompt));
  }
  std::span<const int32_t> answer() const {
    return std::span(tokens).subspan(static_cast<std::size_t>(num_prompt));
  }
  // Tokens to forward before the next one can be chosen.
  int64_t num_pending() const { return static_cast<int64_t>(tokens.size()) - kv.length; }
  PrefixScope scope() const { return {.owner = request.owner, .top_k = top_k}; }

  // Hands out the routes of positions from `position` on, as far as they are new.
  void add_routes(int64_t position, const RoutesView& routes) {
    if (!request.wants_routes || routes.num_layers == 0) return;
    const int64_t known = std::max<int64_t>(0, routes_given - position);
    if (known >= routes.num_tokens) return;
    request.sink->on_routes({routes.tokens(known, routes.num_tokens), position + known});
    routes_given = position + routes.num_tokens;
  }

  EngineRequest request;             // its prompt is in `tokens`
  std::unique_ptr<Sampler> sampler;  // made when it first runs: its scratch is large
  std::optional<Guide> guide;        // of a constraint, or a restriction
  std::vector<int32_t> tokens;       // prompt and answer
  int64_t num_prompt;
  attention::KvSequence kv;  // its length: how many of `tokens` were forwarded
  int64_t top_k;

  bool writes_prefix = false;
  PrefixCache::NodeId node = PrefixCache::kRoot;  // of its last full block
  Routes open;                                    // since that block

  std::vector<double> pooled;  // sum of hidden states so far, or the last

  int64_t num_reused = 0;
  int64_t routes_given = 0;   // positions handed out
  int64_t prompt_scored = 1;  // the first prompt position without a score; 0 never has one
};

// Consecutive tokens of a sequence that one forward pass computes.
struct EnginePart {
  EngineSequence* sequence = nullptr;
  int64_t begin = 0;  // how many tokens were forwarded before
  int64_t num_tokens = 0;
};

}  // namespace dsmoe::infer

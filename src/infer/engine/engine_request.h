// What the batch engine is asked for, and how it answers.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "infer/sequence/generate.h"
#include "infer/sequence/routes.h"

namespace dsmoe::constrain {
class Restriction;
}

namespace dsmoe::infer {

// The log-probability of one token under the model (before temperature and penalties), and of the
// likeliest ones, descending, ties by lower id.
struct TokenScore {
  float log_prob = 0;
  int64_t rank = 0;  // 1: no token is likelier, nor as likely with a lower id
  std::vector<std::pair<int32_t, float>> top;
};

// The experts of consecutive tokens of one sequence.
struct RouteRows : RoutesView {
  int64_t first_position = 0;
};

struct Finish {
  FinishReason reason = FinishReason::length;
  int64_t reused_tokens = 0;  // of the prompt, found in the prefix cache
};

// Called by the engine's thread, in this order for each sequence: prompt scores and routes as they
// come, the routes of a token before the token that follows it, then one of the last two. Must not
// block and must not throw.
class RequestSink {
 public:
  virtual ~RequestSink() = default;
  // Score of prompt token `position`, ascending from 1.
  virtual void on_prompt_score(int64_t position, const TokenScore& score) = 0;
  // Once the prompt is read, where pooling was asked for.
  virtual void on_embedding(std::span<const float>) {}
  virtual void on_routes(const RouteRows& routes) = 0;
  // `score` is null when none was asked for. stop: the token is the answer's last.
  virtual Next on_token(int32_t token, const TokenScore* score) = 0;
  // A step with part of a prompt comes next, or the sequence has to wait for pages: what the sink
  // held back for the next token must not wait for it.
  virtual void flush() {}
  virtual void on_finish(const Finish& finish) = 0;
  virtual void on_error(ErrorKind kind, const std::string& message) = 0;
};

// The hidden states of a prompt as one vector: the mean over all tokens, or those of the last.
enum class Pooling : uint8_t { none, mean, last };

// One sequence: a prompt and one answer.
struct EngineRequest {
  bool is_replayed() const { return replayed && !replayed->empty(); }

  std::vector<int32_t> prompt;
  SamplerOptions sampler;
  uint64_t seed = 0;
  uint32_t choice = 0;
  int64_t max_tokens = 0;         // 0: none, the prompt is only scored or routed
  int64_t min_tokens = 0;         // before that many, no stop id is chosen
  std::vector<int32_t> stop_ids;  // end an answer; not part of it
  // What the answer must look like; null: anything. Of the model's vocabulary.
  std::shared_ptr<const constrain::Constraint> constraint;
  // What it may not hold; null: anything. Not beside a constraint.
  std::shared_ptr<const constrain::Restriction> restriction;
  int64_t experts_per_token = 0;  // 0: the model's
  int num_top_scores = -1;        // -1: no scores of the answer; else the likeliest so many
  bool scores_prompt = false;     // with num_top_scores >= 0
  bool wants_routes = false;
  Pooling pooling = Pooling::none;
  // [tokens, MoE layers, K]: tokens from the first on take these experts, -1 absent; later ones
  // choose. Shared by the choices of a prompt; null: none.
  std::shared_ptr<const std::vector<int32_t>> replayed;
  uint64_t owner = 0;  // sequences of different owners share no cache, and take turns
  std::shared_ptr<RequestSink> sink;
};

}  // namespace dsmoe::infer

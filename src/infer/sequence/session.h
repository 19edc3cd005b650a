// One sequence that grows and is cut back: what it has computed stays in the KV cache.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "infer/sequence/next_tokens.h"
#include "infer/sequence/routes.h"
#include "infer/sequence/trace.h"
#include "model/language_model.h"

namespace dsmoe::infer {

class Session {
 public:
  struct Options {
    int64_t max_positions = 0;      // 0: the model's context
    int64_t experts_per_token = 0;  // 0: the model's
    int64_t chunk_tokens = 0;       // 0: kChunkTokens
    bool record_routing = false;
  };
  Session(const kernels::Context& context, const model::Model& model, const Options& options);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Makes the sequence exactly `tokens` and computes the logits after the last. What it has in
  // common with the sequence before is not computed again. Throws Error(input) when a token is
  // outside the vocabulary or too many were given, and then holds a prefix of `tokens`. Cancelled:
  // holds a prefix, and there are no logits. A router whose scores are not finite shows when the
  // logits are asked for, at the latest (ForwardPass::read); the session then holds a prefix that
  // is sound.
  Outcome assign(std::span<const int32_t> tokens, const std::atomic<bool>* cancelled = nullptr);
  // One more token.
  void append(int32_t token);

  // [vocabulary], after the last token; empty when there are none.
  std::span<const float> logits();
  // The id that the rule chooses, found on the device; -1 when a logit is not finite.
  int32_t choose(const kernels::SampleRule& rule);
  const std::vector<int32_t>& tokens() const { return tokens_; }
  int64_t max_positions() const { return max_positions_; }
  int64_t num_reused() const { return num_reused_; }  // by the last assign()
  // Of every token, with record_routing; where a pass failed, of fewer.
  const Routes& routes() const { return routes_; }
  const model::Model& model() const { return model_; }

 private:
  void run(std::span<const int32_t> tokens);
  void compute_logits();
  template <class F>
  void keep_sound(F&& f);
  void truncate(int64_t length);

  kernels::Context context_;
  const model::Model& model_;
  int64_t max_positions_;
  int64_t chunk_tokens_;
  bool record_routing_;
  attention::KvCache cache_;
  model::ForwardPass pass_;
  attention::KvSequence sequence_;
  NextTokens next_;
  tensor::TensorView last_hidden_;  // [1, hidden], valid after run()
  bool has_logits_ = false;
  std::vector<float> logits_;  // copied when asked for
  std::vector<int32_t> tokens_;
  int64_t num_sound_ = 0;  // of them: no router failed
  int64_t num_reused_ = 0;
  Routes routes_, new_routes_;
};

}  // namespace dsmoe::infer

// Continuous batching, one step at a time: which sequences run, on which pages, and what each step
// gave them.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "infer/engine_request.h"
#include "infer/expert_load.h"
#include "infer/prefix_cache.h"
#include "infer/sampler.h"
#include "model/language_model.h"

namespace dsmoe::infer {

struct EngineOptions {
  int64_t max_batch = 16;      // sequences that run together
  int64_t max_queue = 256;     // sequences that wait while max_batch run
  int64_t chunk_tokens = 256;  // of one forward pass: at least max_batch
  int64_t num_pages = 0;       // at least one full context; 0: default_num_pages
  int64_t max_top_k = 0;       // most experts per token a request may ask for; 0: default_max_top_k
  double stall_seconds = 2;    // a thread silent for longer is not healthy
  // While others decode, a step reads as much of prompts as lately fitted into the longer of so
  // many seconds and so many times a step that only decodes: at least 32 tokens, at most
  // chunk_tokens.
  double patience_seconds = 0.02;
  double patience_steps = 8;
};

// Twice the model's K or 16, as far as the model and the kernels can choose.
int64_t default_max_top_k(const model::ModelConfig& config);

// Bytes of one page of the KV cache, all layers together.
int64_t kv_page_bytes(const model::Model& model);
// `max_batch` full contexts, but no more than 4 GiB, but at least one context.
int64_t default_num_pages(const model::Model& model, int64_t max_batch);

struct EngineStats {
  int64_t running = 0, waiting = 0;
  int64_t pages = 0, free_pages = 0, cached_pages = 0;  // cached: held by the prefix cache
  int64_t steps = 0, preemptions = 0;
  int64_t prompt_tokens = 0;  // of requests that were admitted
  int64_t reused_tokens = 0;  // of them, found in the prefix cache
  int64_t forwarded_tokens = 0, answer_tokens = 0;
  double longest_step_seconds = 0;  // what a stream may have to wait for its next token
};

// Not thread-safe: Engine (engine.h) gives it a thread. An answer is a function of the model and
// its request alone: not of the batch, the order, the pool or what was cached.
class EngineCore {
 public:
  using Id = uint64_t;

  // `beat` is called at least once per layer of a step, on a GPU once per step.
  EngineCore(const kernels::Context& context, const model::Model& model,
             const EngineOptions& options, ExpertLoad& load, std::function<void()> beat);
  ~EngineCore();

  // Throws Error(input) on a request that could never run.
  static void check(const model::Model& model, const EngineOptions& options,
                    const EngineRequest& request);

  // Checked before. Sequences of one submission take turns with those of others.
  void add(Id id, Id submission, EngineRequest request);
  void cancel(Id id);  // frees its pages at once; unknown ids are ignored
  // One forward pass and what follows from it. False: there was nothing to do.
  bool step();
  // Tells everyone, and touches nothing else: the device may be what has failed. The last call.
  void fail_all(ErrorKind kind, const std::string& message);

  EngineStats stats() const;

 private:
  struct Sequence;
  using SequencePtr = std::unique_ptr<Sequence>;
  struct Part {
    Sequence* sequence;
    int64_t num_tokens;
  };
  struct Row;
  struct RoutingInput {
    std::vector<int32_t> experts_of_token;
    std::vector<int32_t> replayed;  // [MoE layers, tokens, top_k]
  };

  void admit();
  std::deque<SequencePtr>::iterator next_waiting();
  void take_turn(const Sequence& admitted);
  bool fits(const Sequence& sequence) const;
  void attach_prefix(Sequence& sequence);
  bool secure(Sequence& sequence, int64_t length);
  void preempt(Sequence& sequence);
  bool is_running(const Sequence& sequence) const;
  std::vector<Part> plan();
  void share_among_prompts(std::span<Sequence* const> prefilling, int64_t budget,
                           std::vector<Part>& parts);
  void learn_patience(std::span<const Part> parts, double seconds);
  void run(std::span<const Part> parts);
  void run_without(std::span<const Part> parts, const model::BadScores& error);
  tensor::TensorView forward(std::span<const Part> parts, int64_t top_k);
  RoutingInput routing_input(std::span<const Part> parts, int64_t top_k) const;
  void read_routing(std::span<const Part> parts, int64_t top_k);
  void take_routes(const Part& part, int64_t first_row, int64_t top_k);
  void keep_blocks(Sequence& sequence, int64_t num_new);
  void take_kept_page(Sequence& sequence, std::size_t block_idx);
  std::vector<Row> wanted_rows(std::span<const Part> parts) const;
  static DrawKey draw_key(const Row& row);
  void compute_rows(const tensor::TensorView& hidden, std::vector<Row>& rows);
  void compute_logits(const tensor::TensorView& hidden, const tensor::TensorView& logits,
                      std::span<Row> rows);
  void finish_rows(const tensor::TensorView& logits, std::span<Row> rows);
  void finish_row(Row& row, std::span<float> logits) const;
  void deliver(std::span<const Part> parts, std::vector<Row>& rows);
  void take_token(Sequence& sequence, int32_t token, const TokenScore* score);
  void finish(Sequence& sequence, FinishReason reason);
  void fail(Sequence& sequence, ErrorKind kind, const std::string& message);
  void remove(Sequence& sequence);

  kernels::Context context_;
  const model::Model& model_;
  EngineOptions options_;
  ExpertLoad& load_;
  std::function<void()> beat_;
  int64_t num_moe_layers_;
  model::KvCache cache_;
  PrefixCache prefix_;
  model::ForwardPass pass_;
  tensor::Arena arena_;
  int64_t logit_rows_;
  tensor::TensorView device_logits_;  // [logit_rows, vocabulary]
  tensor::TensorView device_best_;    // [logit_rows] I32: the most likely
  tensor::TensorView device_choice_;  // [logit_rows] I32
  std::vector<float> host_logits_;
  std::vector<int32_t> host_choice_;
  std::vector<int32_t> step_tokens_;  // of the last forward pass
  std::vector<int32_t> step_index_;   // [tokens, MoE layers, top_k]
  std::vector<float> step_gate_;
  std::deque<SequencePtr> waiting_;
  std::list<SequencePtr> running_;  // in the order of admission
  int64_t tokens_beside_ = 0;       // of prompts in a step in which others decode
  double decoding_seconds_ = 0;     // of a step that only decodes, lately
  uint64_t num_admissions_ = 0;     // the clock of turns
  EngineStats stats_;
};

}  // namespace dsmoe::infer

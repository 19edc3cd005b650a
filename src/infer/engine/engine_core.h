// Continuous batching, one step at a time: lets the scheduler say who runs, the step compute it,
// and gives each request what is its own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "infer/engine/engine_request.h"
#include "infer/engine/engine_step.h"
#include "infer/engine/limits.h"
#include "infer/engine/page_pool.h"
#include "infer/engine/scheduler.h"
#include "infer/measure/expert_load.h"

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

Limits limits_of(const model::Model& model, const EngineOptions& options);

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
class EngineCore : private Pages {
 public:
  using Id = uint64_t;

  // `beat` is called at least once per layer of a step, on a GPU once per step.
  EngineCore(const kernels::Context& context, const model::Model& model,
             const EngineOptions& options, ExpertLoad& load, std::function<void()> beat);
  ~EngineCore() override;

  // What the engine needs to know of requests that wait: a list of one, checked before. Sequences
  // of one submission take turns with those of others. Whoever submits it is the one to meet a want
  // of memory.
  using Sequences = ScheduledList;
  static Sequences prepare(const model::Model& model, Id id, Id submission, EngineRequest request);

  void add(Sequences newcomers);
  void cancel(Id id);  // frees its pages at once; unknown ids are ignored
  // One forward pass and what follows from it. False: there was nothing to do. An allocation that
  // fails ends a request at most: the step is taken back and what shares it runs one by one.
  bool step();
  // Tells everyone, and touches nothing else: the device may be what has failed. The last call.
  void fail_all(ErrorKind kind, const std::string& message);

  EngineStats stats() const;

 private:
  // For the scheduler.
  int64_t num_free() const override { return pool_.num_free(); }
  int64_t num_evictable() const override { return pool_.num_evictable(); }
  bool evict_one() override { return pool_.evict_one(); }
  void reserve(Scheduled& sequence, int64_t length) override;
  void begin(Scheduled& sequence) override;
  void give_up(Scheduled& sequence) override;

  void run(std::span<const EnginePart> parts);
  void run_without(std::span<const EnginePart> parts, const model::BadScores& error);
  void run_one_by_one(std::span<const EnginePart> parts, ErrorKind kind, const char* message);
  void count_forwarded(std::span<const EnginePart> parts);
  void take_back(std::span<const EnginePart> parts);
  void hand_out(std::span<const EnginePart> parts, const EngineStep::Result& result);
  void count_load(const EngineStep::Result& result);
  static void take_routes(const EnginePart& part, const RoutesView& routes);
  void pool_hidden(const EnginePart& part, const EngineStep::Result& result, int64_t first_row);
  void deliver(const EngineStep::Row& row);
  void take_token(EngineSequence& sequence, int32_t token, const TokenScore* score);
  void finish(EngineSequence& sequence, FinishReason reason);
  void fail(EngineSequence& sequence, ErrorKind kind, const char* message);
  void remove(EngineSequence& sequence);
  template <class F>
  void guarded(EngineSequence& sequence, F&& f);

  const model::Model& model_;
  EngineOptions options_;
  ExpertLoad& load_;
  std::function<void()> beat_;
  PagePool pool_;
  EngineStep step_;
  Scheduler scheduler_;
  EngineStats stats_;
};

}  // namespace dsmoe::infer

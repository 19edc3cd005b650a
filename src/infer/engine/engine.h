// The batch engine with its thread: submit and cancel from anywhere, answers through sinks.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "infer/engine/engine_core.h"

namespace dsmoe::infer {

enum class Admission {
  accepted,
  full,  // the queue; later it may fit
  dead,  // the thread has ended
};

// One thread owns the model's working memory and runs step after step.
class Engine {
 public:
  using Id = EngineCore::Id;

  // `model` must outlive it. Throws what the pool and the pass throw for want of memory.
  Engine(const kernels::Context& context, const model::Model& model, const EngineOptions& options);
  // Cancels what is left and joins.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  struct Submission {
    Admission admission = Admission::accepted;
    std::vector<Id> ids;  // one per request when accepted
  };
  // All or none. Throws Error(input) on a request that could never run, and on more of them than
  // batch and queue hold together.
  Submission submit(std::vector<EngineRequest> requests);
  // Its pages are free after the step that is running; its sink hears FinishReason::cancelled,
  // unless it was done. Unknown ids are ignored.
  void cancel(std::span<const Id> ids);

  // Since the thread's last sign of life: one per layer of a step, on a GPU per step, and ten per
  // second while there is nothing to do. Infinite once it has ended.
  double silent_seconds() const;
  bool is_alive() const { return silent_seconds() < options_.stall_seconds; }
  EngineStats stats() const;
  ExpertLoad& load() { return load_; }
  const EngineOptions& options() const { return options_; }
  const Limits& limits() const { return limits_; }
  const model::Model& model() const { return model_; }

  // For tests: before its next step the thread throws, or sleeps until something else is injected.
  enum class Fault { none, thrown, stall };
  void inject(Fault fault);

 private:
  void thread_main();
  void loop();
  bool take_mail();
  void beat();

  kernels::Context context_;
  const model::Model& model_;
  EngineOptions options_;
  Limits limits_;
  ExpertLoad load_;
  EngineCore core_;  // of the thread alone once it runs

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  EngineCore::Sequences mail_;
  std::vector<Id> cancelled_;
  EngineStats stats_;  // as of the last step
  std::atomic<Id> next_id_{1};
  bool stopping_ = false;
  bool dead_ = false;
  std::atomic<Fault> fault_{Fault::none};
  std::atomic<int64_t> last_beat_{0};  // steady clock, nanoseconds
  std::thread thread_;
};

}  // namespace dsmoe::infer

// One completion request in flight: its sequences in the engine, and its answer as it grows.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "infer/engine/engine_request.h"
#include "infer/sequence/stop.h"
#include "serve/answer_writer.h"
#include "serve/api_error.h"
#include "serve/completion_prepare.h"
#include "serve/http_message.h"
#include "serve/metrics.h"
#include "serve/served_model.h"
#include "serve/worker.h"

namespace dsmoe::serve {

// Made, answered and ended on the I/O thread; the engine's thread only fills deltas, the worker
// only renders what is long.
class CompletionJob : public std::enable_shared_from_this<CompletionJob> {
 public:
  struct Parts {
    const ServedModel& model;
    Metrics& metrics;
    Post post;
    Worker& worker;
    PreparedCompletion prepared;
    std::shared_ptr<Responder> responder;
    std::chrono::steady_clock::time_point start;  // when the request was there
    std::string request_id;
    uint64_t owner = 0;
    std::function<void(int status, const CompletionJob&)> on_end;  // throws nothing
  };
  explicit CompletionJob(Parts parts);
  ~CompletionJob();

  // Submits. Throws ApiError when the request cannot be taken; from then on the job answers by
  // itself.
  void start();
  // The client has left: frees everything, says nothing.
  void abandon();
  // What the engine's thread could not say for want of memory is heard now.
  void hear();
  // Ends the answer now, with an error.
  void abort(const ApiError& error) noexcept;

  int64_t num_prompt_tokens() const { return usage_prompt_; }
  int64_t num_answer_tokens() const { return usage_answer_; }
  double seconds() const;  // since the request was there

 private:
  class Sink;
  struct Choice;

  void check_extras(std::span<const infer::EngineRequest> requests) const;
  infer::EngineRequest engine_request(const std::vector<int32_t>& prompt) const;
  void make_choices();
  void submit();
  void open_stream();

  void collect() noexcept;
  template <class F>
  void guarded(F&& f) noexcept;
  void take_deltas();
  void take(Choice& choice, ChoiceDelta delta);
  void go_on();
  void fail(const ApiError& error);
  void end(int status) noexcept;

  // What there is to send is written here, or on the worker's thread where it is much; choices_ is
  // the writer's until it is sent.
  using Pieces = AnswerWriter::Pieces;
  std::size_t render_cost() const;
  void render_later();
  void send(Pieces pieces);
  Pieces render_pieces();
  void write(Pieces pieces);
  Usage usage() const;
  const CompletionRequest& request() const { return parts_.prepared.request; }

  Parts parts_;
  uint64_t seed_ = 0;
  std::unique_ptr<AnswerWriter> writer_;
  std::vector<std::unique_ptr<Choice>> choices_;
  std::vector<infer::Engine::Id> engine_ids_;
  std::mutex mutex_;       // guards the sinks' deltas and the next field
  bool is_awake_ = false;  // collect() is on its way
  int64_t usage_prompt_ = 0, usage_answer_ = 0, usage_reused_ = 0;
  std::size_t num_open_ = 0;   // choices that have not ended
  bool is_rendering_ = false;  // on the worker's thread
  bool is_streaming_ = false;
  std::atomic<bool> ended_{false};
  std::atomic<bool> is_unheard_{false};  // see hear()
};

}  // namespace dsmoe::serve

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

#include "infer/engine_request.h"
#include "infer/stop.h"
#include "serve/api_error.h"
#include "serve/completion_prepare.h"
#include "serve/http_message.h"
#include "serve/metrics.h"
#include "serve/served_model.h"
#include "serve/worker.h"

namespace dsmoe::serve {

// Routes of consecutive tokens, as the engine gave them.
struct RouteRecord {
  int64_t first_position = 0;
  int64_t num_tokens = 0;
  std::vector<int32_t> index;  // [tokens, MoE layers, K]
  std::vector<float> gate;
};

// What one choice gained since it was last looked at.
struct ChoiceDelta {
  std::vector<infer::TokenScore> prompt_scores;  // of positions 1, 2, ...
  std::vector<int32_t> tokens;
  std::vector<infer::TokenScore> scores;  // of `tokens`, when wanted
  std::string text;
  RouteRecord routes;
  std::optional<infer::Finish> finish;
  std::optional<ErrorKind> error;
  std::string error_message;

  bool ended() const { return finish.has_value() || error.has_value(); }
};

const char* finish_reason(const infer::Finish& finish);  // "stop", "length"

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
  void finish_answer();
  void fail(const ApiError& error);
  void end(int status) noexcept;

  // What there is to send, piece by piece: chunks of a stream, or the choices of a plain answer.
  // Here, or on the worker's thread where it is much; choices_ is the renderer's until it is sent.
  using Pieces = std::vector<std::string>;
  std::size_t render_cost() const;
  void render_later();
  void send(Pieces pieces);
  Pieces render_pieces();
  void render_chunks(Choice& choice, Pieces& pieces);
  std::string chunk(const Json& choice);
  // Everything a choice says about one delta, and nothing about how it ended.
  Json render(Choice& choice, const ChoiceDelta& delta) const;
  void render_text(Json& json, const Choice& choice, const ChoiceDelta& delta) const;
  Json render_logprobs(Choice& choice, const ChoiceDelta& delta) const;
  void render_routes(Json& json, Choice& choice, const ChoiceDelta& delta) const;
  bool has_content(const ChoiceDelta& delta) const;
  const char* chunk_object() const;
  Json body(const char* object, Json choices) const;
  Json usage() const;
  const CompletionRequest& request() const { return parts_.prepared.request; }
  bool is_chat() const { return request().endpoint == Endpoint::chat; }

  Parts parts_;
  std::string id_;
  std::string chunk_begin_, chunk_end_;  // around the choice of a chunk
  int64_t created_ = 0;
  uint64_t seed_ = 0;
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

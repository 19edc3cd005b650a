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
#include "serve/completion_request.h"
#include "serve/http_message.h"
#include "serve/metrics.h"
#include "serve/served_model.h"

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

// Runs f on the I/O thread, from any thread.
using Post = std::function<void(std::function<void()>)>;

// Made, answered and ended on the I/O thread; the engine's thread only fills deltas.
class CompletionJob : public std::enable_shared_from_this<CompletionJob> {
 public:
  struct Parts {
    const ServedModel& model;
    Metrics& metrics;
    Post post;
    CompletionRequest request;
    std::shared_ptr<Responder> responder;
    std::string request_id;
    uint64_t owner = 0;
    std::function<void(int status, const CompletionJob&)> on_end;  // throws nothing
  };
  explicit CompletionJob(Parts parts);
  ~CompletionJob();

  // Encodes, submits: all of it or, where much is to be encoded, its beginning. Throws ApiError
  // when it is known that the request cannot be taken; from then on the job answers by itself.
  void start();
  // The client has left: frees everything, says nothing.
  void abandon();
  // What the engine's thread could not say for want of memory is heard now.
  void hear();
  // Ends the answer now, with an error.
  void abort(const ApiError& error) noexcept;

  int64_t num_prompt_tokens() const { return usage_prompt_; }
  int64_t num_answer_tokens() const { return usage_answer_; }
  double seconds() const;  // since it was made

 private:
  class Sink;
  struct Choice;

  struct EncodedPrompt {
    std::vector<int32_t> tokens;
    std::string text;  // as given; decoded where ids were given; only for echo
  };
  EncodedPrompt encode_messages() const;
  EncodedPrompt encode(const Prompt& prompt) const;
  bool encode_some();
  void check_top_k() const;
  void check_extras(std::span<const infer::EngineRequest> requests) const;
  std::vector<int32_t> flat_replay() const;
  int64_t answer_length(int64_t num_prompt) const;
  infer::EngineRequest engine_request(const std::vector<int32_t>& prompt) const;
  void make_choices();
  void submit();
  void go_on_later();
  void go_on();
  void open_stream();

  void collect() noexcept;
  template <class F>
  void guarded(F&& f) noexcept;
  void take_deltas();
  void take(Choice& choice, ChoiceDelta delta);
  void send_chunk(const Json& choice);
  void finish_answer();
  void render_answer();
  void fail(const ApiError& error);
  void end(int status) noexcept;

  // Everything a choice says about one delta, and nothing about how it ended.
  Json render(Choice& choice, const ChoiceDelta& delta) const;
  void render_text(Json& json, const Choice& choice, const ChoiceDelta& delta) const;
  Json render_logprobs(Choice& choice, const ChoiceDelta& delta) const;
  void render_routes(Json& json, Choice& choice, const ChoiceDelta& delta) const;
  bool has_content(const ChoiceDelta& delta) const;
  const char* chunk_object() const;
  Json body(const char* object, Json choices) const;
  Json usage() const;
  bool is_chat() const { return parts_.request.endpoint == Endpoint::chat; }

  Parts parts_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::string id_;
  std::string chunk_begin_, chunk_end_;  // around the choice of a chunk
  int64_t created_ = 0;
  uint64_t seed_ = 0;
  int64_t top_k_ = 0;
  std::vector<EncodedPrompt> prompts_;  // until they are submitted
  std::vector<std::unique_ptr<Choice>> choices_;
  std::vector<infer::Engine::Id> engine_ids_;
  std::mutex mutex_;       // guards the sinks' deltas and the next field
  bool is_awake_ = false;  // collect() is on its way
  int64_t usage_prompt_ = 0, usage_answer_ = 0, usage_reused_ = 0;
  std::size_t num_open_ = 0;      // choices that have not ended
  std::string rendered_;          // the choices of a plain answer
  std::size_t num_rendered_ = 0;  // of them
  bool is_streaming_ = false;
  std::atomic<bool> ended_{false};
  std::atomic<bool> is_unheard_{false};  // see hear()
};

}  // namespace dsmoe::serve

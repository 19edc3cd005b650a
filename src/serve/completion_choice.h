// One choice of a completion: what the engine's thread decodes, and what the I/O thread has seen.
#pragma once

#include "serve/completion_job.h"

namespace dsmoe::serve {

// The engine's side: decodes tokens, watches for stop strings, fills the delta.
class CompletionJob::Sink : public infer::RequestSink {
 public:
  explicit Sink(std::shared_ptr<CompletionJob> job);

  void on_prompt_score(int64_t position, const infer::TokenScore& score) override;
  void on_routes(const infer::RouteRows& routes) override;
  void on_embedding(std::span<const float> embedding) override;
  infer::Next on_token(int32_t token, const infer::TokenScore* score) override;
  void flush() override;
  void on_finish(const infer::Finish& finish) override;
  void on_error(ErrorKind kind, const std::string& message) override;

  ChoiceDelta take();  // on the I/O thread; the caller holds the job's mutex

 private:
  enum class Urgency { now, with_the_next };
  template <class F>
  void change(Urgency urgency, F&& f);
  template <class F>
  void guarded(F&& f) noexcept;

  std::shared_ptr<CompletionJob> job_;  // released at the end
  TextStream text_;
  infer::StopStrings stops_;
  std::chrono::steady_clock::time_point last_token_;
  bool has_token_ = false;
  std::chrono::steady_clock::time_point last_wake_;  // of the I/O thread
  bool is_held_ = false;                             // something waits for the next token
  ChoiceDelta delta_;
};

// The I/O thread's side: everything the answer will say.
struct CompletionJob::Choice : AnswerChoice {
  using AnswerChoice::AnswerChoice;
  std::shared_ptr<Sink> sink;
};

}  // namespace dsmoe::serve

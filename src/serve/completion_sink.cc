// What the engine's thread says about one choice: decoded, looked through for stop strings, kept
// for the I/O thread.
#include "serve/completion_choice.h"

namespace dsmoe::serve {
namespace {

using Clock = std::chrono::steady_clock;

// Tokens that follow the last ones sent by less go out with the next: every piece costs the threads
// that compute two changes of context, and no screen shows more than one in this time.
constexpr auto kTogether = std::chrono::milliseconds(4);

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

CompletionJob::Sink::Sink(std::shared_ptr<CompletionJob> job)
    : job_(std::move(job)),
      text_(job_->parts_.model,
            // Markers of calls are special tokens in some families, and a constraint keeps others
            // out.
            job_->request().skip_special_tokens && job_->request().chat.tools.callable.empty()
                ? text::SkipSpecial::yes
                : text::SkipSpecial::no),
      stops_(job_->request().stops),
      last_token_(job_->parts_.start) {}

// Fills the delta and sees to it that the I/O thread looks at it soon; a plain answer is only
// looked at when it is complete. At the end the job is let go; if it dies here it is only memory,
// for its responder went with its end.
template <class F>
void CompletionJob::Sink::change(Urgency urgency, F&& f) {
  const std::shared_ptr<CompletionJob> job = job_;
  bool wakes = false, ends = false;
  {
    const std::lock_guard lock(job->mutex_);
    f(delta_);
    ends = delta_.ended();
    is_held_ = urgency == Urgency::with_the_next;
    if (job->request().stream && !is_held_) wakes = !std::exchange(job->is_awake_, true);
  }
  if (ends) job_.reset();
  if (!wakes && !ends) return;
  last_wake_ = Clock::now();
  try {
    job->parts_.post([job] { job->collect(); });
  } catch (const std::exception&) {
    job->is_unheard_ = true;
  }
}

// Without memory for what the engine says this request ends, and not the engine.
template <class F>
void CompletionJob::Sink::guarded(F&& f) noexcept {
  if (!job_) return;
  try {
    f();
  } catch (const std::exception&) {
    const std::lock_guard lock(job_->mutex_);
    delta_.error = ErrorKind::internal;
    job_->is_unheard_ = true;
  }
}

void CompletionJob::Sink::flush() {
  if (is_held_) guarded([&] { change(Urgency::now, [](ChoiceDelta&) {}); });
}

void CompletionJob::Sink::on_prompt_score(int64_t, const infer::TokenScore& score) {
  guarded([&] {
    const std::lock_guard lock(job_->mutex_);  // nobody need wake for it: a token follows
    delta_.prompt_scores.push_back(score);
  });
}

void CompletionJob::Sink::on_routes(const infer::RouteRows& rows) {
  guarded([&] {
    const std::lock_guard lock(job_->mutex_);
    RouteRecord& routes = delta_.routes;
    if (routes.num_tokens == 0) routes.first_position = rows.first_position;
    routes.num_tokens += rows.num_tokens;
    routes.index.insert(routes.index.end(), rows.index.begin(), rows.index.end());
    routes.gate.insert(routes.gate.end(), rows.gate.begin(), rows.gate.end());
  });
}

void CompletionJob::Sink::on_embedding(std::span<const float> embedding) {
  guarded([&] {
    const std::lock_guard lock(job_->mutex_);
    delta_.embedding.assign(embedding.begin(), embedding.end());
  });
}

infer::Next CompletionJob::Sink::on_token(int32_t token, const infer::TokenScore* score) {
  const std::shared_ptr<CompletionJob> job = job_;
  guarded([&] {
    Metrics& metrics = job_->parts_.metrics;
    (has_token_ ? metrics.between_tokens : metrics.first_token).add(seconds_since(last_token_));
    last_token_ = Clock::now();
    has_token_ = true;
    std::string piece = stops_.push(text_.push(token));
    if (job_->request().include_stop) piece += stops_.found();
    const bool is_fast = last_token_ - last_wake_ < kTogether;
    change(is_fast ? Urgency::with_the_next : Urgency::now, [&](ChoiceDelta& delta) {
      delta.tokens.push_back(token);
      if (score != nullptr) delta.scores.push_back(*score);
      delta.text += piece;
    });
  });
  // Where cancelling failed nobody listens any more.
  const bool is_over = !job_ || job->ended_;
  return stops_.stopped() || is_over ? infer::Next::stop : infer::Next::more;
}

void CompletionJob::Sink::on_finish(const infer::Finish& finish) {
  guarded([&] {
    std::string rest;
    if (!stops_.stopped()) {
      rest = stops_.push(text_.finish());
      if (!stops_.stopped()) rest += stops_.finish();
      if (job_->request().include_stop) rest += stops_.found();
    }
    change(Urgency::now, [&](ChoiceDelta& delta) {
      delta.text += rest;
      delta.stop_found = stops_.found();
      delta.finish = finish;
    });
  });
}

void CompletionJob::Sink::on_error(ErrorKind kind, const std::string& message) {
  guarded([&] {
    change(Urgency::now, [&](ChoiceDelta& delta) {
      delta.error_message = message;
      delta.error = kind;
    });
  });
}

ChoiceDelta CompletionJob::Sink::take() { return std::exchange(delta_, {}); }

}  // namespace dsmoe::serve

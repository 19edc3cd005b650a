// From the engine's thread to the reader's.
#include "answer.h"

#include <chrono>
#include <exception>
#include <utility>

namespace dsmoe::python {

Answer::Answer(const app::TextSide& text, std::vector<std::string> stops)
    : stream_(text), stops_(std::move(stops)) {}

void Answer::show(const std::string& piece) {
  if (piece.empty()) return;
  const std::lock_guard lock(mutex_);
  ready_ += piece;
  changed_.notify_one();
}

void Answer::end(std::optional<infer::Finish> finish, std::optional<Failure> failure) {
  const std::lock_guard lock(mutex_);
  finish_ = std::move(finish);
  failure_ = std::move(failure);
  changed_.notify_one();
}

void Answer::on_routes(const infer::RouteRows& rows) {
  try {
    routes_.num_layers = rows.num_layers;
    routes_.top_k = rows.top_k;
    routes_.append(rows);
  } catch (const std::exception& error) {  // no memory: the arrays end early, the answer does not
    routes_.clear();
  }
}

infer::Next Answer::on_token(int32_t token, const infer::TokenScore*) {
  try {
    tokens_.push_back(token);
    show(stops_.push(stream_.push(token)));
    return stops_.stopped() ? infer::Next::stop : infer::Next::more;
  } catch (const std::exception& error) {
    end({}, Failure{ErrorKind::resource, error.what()});
    return infer::Next::stop;
  }
}

void Answer::on_finish(const infer::Finish& finish) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
  }
  try {
    if (!stops_.stopped()) show(stops_.push(stream_.finish()));
    if (!stops_.stopped()) show(stops_.finish());
    end(finish, {});
  } catch (const std::exception& error) {
    end({}, Failure{ErrorKind::resource, error.what()});
  }
}

void Answer::on_error(ErrorKind kind, const std::string& message) {
  end({}, Failure{kind, message});
}

Answer::State Answer::take(double seconds, std::string& piece) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                    [&] { return !ready_.empty() || finish_ || failure_; });
  if (failure_) throw Error(failure_->kind, failure_->message);
  piece = std::exchange(ready_, {});
  if (!piece.empty()) return State::has_text;
  return finish_ ? State::ended : State::waits;
}

}  // namespace dsmoe::python

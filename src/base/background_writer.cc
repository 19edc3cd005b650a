// Two buffers of fixed size: one fills while the other is written.
#include "base/background_writer.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <new>
#include <utility>

namespace dsmoe {
namespace {

uint64_t count_lines(std::string_view text) {
  return static_cast<uint64_t>(std::count(text.begin(), text.end(), '\n'));
}

// Returns what could not be written.
std::string_view write_all(int descriptor, std::string_view rest) {
  while (!rest.empty()) {
    const ssize_t written = ::write(descriptor, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) {  // somebody else made it so
      pollfd ready{.fd = descriptor, .events = POLLOUT, .revents = 0};
      ::poll(&ready, 1, -1);
      continue;
    }
    if (written <= 0) break;
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
  return rest;
}

}  // namespace

struct BackgroundWriter::State {
  State(int its_descriptor, LossNote its_note)
      : descriptor(its_descriptor), note(std::move(its_note)) {
    pending.reserve(kMaxPending);
  }

  // Only the thread uses these.
  const int descriptor;
  const LossNote note;
  uint64_t untold = 0;  // lines

  std::mutex mutex;
  std::condition_variable wake, rested;
  std::string pending;
  uint64_t dropped = 0;  // lines, after those that are pending
  bool is_writing = false;
  bool stopping = false;

  bool is_at_rest() const { return pending.empty() && !is_writing; }
  void tell_losses();
};

void BackgroundWriter::State::tell_losses() {
  if (untold == 0 || !note) return;
  try {
    if (write_all(descriptor, note(untold)).empty()) untold = 0;
  } catch (const std::bad_alloc&) {  // the next time, then
  }
}

BackgroundWriter::BackgroundWriter(int descriptor, LossNote note)
    : state_(std::make_shared<State>(descriptor, std::move(note))),
      thread_([state = state_] { thread_main(state); }) {}

BackgroundWriter::~BackgroundWriter() {
  flush();
  bool is_stuck = false;
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
    is_stuck = state_->is_writing;
  }
  state_->wake.notify_one();
  is_stuck ? thread_.detach() : thread_.join();
}

void BackgroundWriter::write(std::string_view lines) {
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->pending.size() + lines.size() > kMaxPending) {
      state_->dropped += count_lines(lines);
      return;
    }
    state_->pending += lines;
  }
  state_->wake.notify_one();
}

void BackgroundWriter::flush() {
  std::unique_lock lock(state_->mutex);
  state_->rested.wait_for(lock, kPatience, [&] { return state_->is_at_rest(); });
}

void BackgroundWriter::thread_main(const std::shared_ptr<State>& state) {
  std::string batch;
  batch.reserve(kMaxPending);
  std::unique_lock lock(state->mutex);
  for (;;) {
    state->wake.wait(lock, [&] { return state->stopping || !state->pending.empty(); });
    if (state->stopping) return;
    batch.swap(state->pending);
    const uint64_t dropped = std::exchange(state->dropped, 0);
    state->is_writing = true;
    lock.unlock();
    state->tell_losses();
    state->untold += count_lines(write_all(state->descriptor, batch)) + dropped;
    state->tell_losses();
    batch.clear();
    lock.lock();
    state->is_writing = false;
    if (state->is_at_rest()) state->rested.notify_all();
  }
}

}  // namespace dsmoe

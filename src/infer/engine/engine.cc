// Mail in, steps, heartbeat; whatever ends the thread is told to everyone who waits.
#include "infer/engine/engine.h"

#include <chrono>
#include <limits>
#include <new>
#include <optional>
#include <string>

#include "base/log.h"
#include "base/thread_pool.h"
#include "infer/engine/engine_sequence.h"
#include "kernels/table.h"

namespace dsmoe::infer {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kIdle = std::chrono::milliseconds(100);

int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
      .count();
}

// The reason stays as it is where there is no memory for a better one.
void tell_end(const std::exception& error, std::string& reason) noexcept {
  try {
    reason = std::string("the engine has died: ") + error.what();
    log_warning("{}", reason);
  } catch (const std::bad_alloc&) {
  }
}

}  // namespace

Engine::Engine(const kernels::Context& context, const model::Model& model,
               const EngineOptions& options)
    : context_(context),
      model_(model),
      options_(options),
      limits_(limits_of(model, options)),
      load_(moe_layers(model.config),
            model.config.num_moe_layers() > 0 ? model.config.n_routed_experts : 0,
            model.config.vocab_size),
      core_(context, model, options, load_, [this] { beat(); }) {
  options_.max_top_k = limits_.max_top_k;
  stats_ = core_.stats();
  beat();
  thread_ = std::thread([this] { thread_main(); });
}

Engine::~Engine() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

Engine::Submission Engine::submit(std::vector<EngineRequest> requests) {
  for (const EngineRequest& request : requests) check(model_.config, limits_, request);
  const auto count = static_cast<int64_t>(requests.size());
  const int64_t room = limits_.max_answers;
  if (count > room) {
    fail(ErrorKind::input, "{} answers at once; at most {} are possible here", count, room);
  }
  // All that needs memory is done here: the thread only takes it over.
  Submission submission;
  EngineCore::Sequences newcomers;
  const Id first = next_id_.fetch_add(requests.size());
  for (EngineRequest& request : requests) {
    const Id id = first + submission.ids.size();
    submission.ids.push_back(id);
    newcomers.splice(newcomers.end(), EngineCore::prepare(model_, id, first, std::move(request)));
  }
  {
    const std::lock_guard lock(mutex_);
    if (dead_ || stopping_) return {.admission = Admission::dead};
    const int64_t here = stats_.running + stats_.waiting + static_cast<int64_t>(mail_.size());
    if (here + count > room) return {.admission = Admission::full};
    mail_.splice(mail_.end(), newcomers);
  }
  wake_.notify_one();
  return submission;
}

void Engine::cancel(std::span<const Id> ids) {
  {
    const std::lock_guard lock(mutex_);
    cancelled_.insert(cancelled_.end(), ids.begin(), ids.end());
  }
  wake_.notify_one();
}

void Engine::beat() { last_beat_.store(now(), std::memory_order_relaxed); }

double Engine::silent_seconds() const {
  {
    const std::lock_guard lock(mutex_);
    if (dead_) return std::numeric_limits<double>::infinity();
  }
  return static_cast<double>(now() - last_beat_.load(std::memory_order_relaxed)) * 1e-9;
}

EngineStats Engine::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void Engine::inject(Fault fault) {
  fault_.store(fault);
  fault_.notify_one();
  wake_.notify_one();
}

void Engine::thread_main() {
  std::string reason = "the engine has stopped";
  try {
    loop();
  } catch (const std::exception& e) {
    tell_end(e, reason);
  }
  EngineCore::Sequences unread;
  {
    const std::lock_guard lock(mutex_);
    dead_ = true;
    unread.swap(mail_);
  }
  core_.add(std::move(unread));
  core_.fail_all(ErrorKind::resource, reason);
  const std::lock_guard lock(mutex_);
  stats_ = core_.stats();
}

void Engine::loop() {
  std::optional<ThreadPool::KeptApart> kept_apart;
  if (context_.table->device == kernels::Device::cpu) kept_apart.emplace(*context_.pool);
  while (take_mail()) {
    beat();
    switch (fault_.load()) {
      case Fault::thrown:
        throw std::runtime_error("fault injected by a test");
      case Fault::stall:
        fault_.wait(Fault::stall);
        break;
      case Fault::none:
        break;
    }
    const bool worked = core_.step();
    std::unique_lock lock(mutex_);
    stats_ = core_.stats();
    if (worked) continue;
    wake_.wait_for(lock, kIdle, [&] { return stopping_ || !mail_.empty() || !cancelled_.empty(); });
  }
}

// False: it is time to end.
bool Engine::take_mail() {
  EngineCore::Sequences mail;
  std::vector<Id> cancelled;
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return false;
    mail.swap(mail_);
    cancelled.swap(cancelled_);
    stats_.waiting += static_cast<int64_t>(mail.size());  // until the next step counts them
  }
  core_.add(std::move(mail));
  for (const Id id : cancelled) core_.cancel(id);
  return true;
}

}  // namespace dsmoe::infer

// A queue, and results that find their way back even when memory is short.
#include "serve/worker.h"

#include <chrono>
#include <exception>
#include <utility>

namespace dsmoe::serve {

Worker::Worker(Post post) : post_(std::move(post)), thread_([this] { run(); }) {}

Worker::~Worker() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void Worker::add(std::function<void()> work, std::function<void()> done) {
  auto task = std::make_shared<Task>(Task{std::move(work), std::move(done)});
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  wake_.notify_one();
}

void Worker::run() {
  for (;;) {
    std::shared_ptr<Task> task;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stopping_ || !tasks_.empty(); });
      if (stopping_) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task->work();
    task->work = nullptr;
    hand_back(task);
  }
}

// A result that is lost would be a request that is never answered: memory comes back.
void Worker::hand_back(const std::shared_ptr<Task>& task) {
  for (;;) {
    try {
      return post_([task] { std::exchange(task->done, nullptr)(); });
    } catch (const std::exception&) {
      // Not even a line of the log, which needs memory too.
    }
    std::unique_lock lock(mutex_);
    if (wake_.wait_for(lock, std::chrono::milliseconds(10), [&] { return stopping_; })) return;
  }
}

}  // namespace dsmoe::serve

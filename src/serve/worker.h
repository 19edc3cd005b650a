// A thread for what would keep the HTTP thread from everybody else: large bodies, long answers.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace dsmoe::serve {

// Runs f on the I/O thread, from any thread.
using Post = std::function<void(std::function<void()>)>;

// Tasks run one after the other, in the order they came. The caller bounds their number.
class Worker {
 public:
  explicit Worker(Post post);
  // Waits for the task that runs; those behind it are forgotten, and no `done` is called any more.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // `work` runs on this thread and keeps what it has to say, errors too; then `done` runs on the
  // I/O thread. What `done` holds is released there.
  void add(std::function<void()> work, std::function<void()> done);

 private:
  struct Task {
    std::function<void()> work, done;
  };
  void run();
  void hand_back(const std::shared_ptr<Task>& task);

  Post post_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Task>> tasks_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace dsmoe::serve

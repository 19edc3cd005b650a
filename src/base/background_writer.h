// Text for a descriptor, written by a thread of its own: a reader that is slow, stops or leaves
// holds nobody up.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

namespace dsmoe {

// SIGPIPE has to be ignored while one exists, where a reader can leave.
class BackgroundWriter {
 public:
  // The line that says how many lines nobody will see; it goes out when writing works again.
  using LossNote = std::function<std::string(uint64_t lost)>;

  explicit BackgroundWriter(int descriptor, LossNote note = {});
  // Waits as flush() does. A write that never returns is left to the end of the process.
  ~BackgroundWriter();
  BackgroundWriter(const BackgroundWriter&) = delete;
  BackgroundWriter& operator=(const BackgroundWriter&) = delete;

  // Whole lines, from any thread. Never waits for the descriptor and allocates nothing: what does
  // not fit beside kMaxPending bytes that still wait is dropped and counted.
  void write(std::string_view lines);
  // Until everything is written or has failed, but no longer than kPatience.
  void flush();

  static constexpr std::size_t kMaxPending = std::size_t{256} << 10;
  static constexpr std::chrono::milliseconds kPatience{1000};

 private:
  struct State;  // the thread's too: it may outlive the writer
  static void thread_main(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace dsmoe

// Ctrl-C as a flag that long work polls, so that what is being written is closed properly.
#pragma once

#include <signal.h>

#include <atomic>

namespace dsmoe::app {

// While one exists, the first SIGINT, SIGTERM or SIGHUP (unless ignored, as under nohup) raises
// flag(); a second of the same kind ends the process as usual. Outside its life a signal ends the
// process at once. One at a time.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  static const std::atomic<bool>& flag();
  static int exit_code();  // 128 + the last signal: 130, 143 or 129
  static void clear();     // re-arms: the next signal raises the flag again

 private:
  struct sigaction previous_int_, previous_term_, previous_hup_;
};

// Whoever reads stdout or stderr may leave from now on: writing fails then, and SIGPIPE does not
// end the process. For commands whose work is worth more than what they say; `dsmoe generate |
// head` ends with head.
void outlive_readers();

}  // namespace dsmoe::app

// Signal handlers that only set a flag.
#include "terminal/interrupt.h"

namespace dsmoe::app {
namespace {

std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may store to it");

std::atomic<int> last_signal{SIGINT};

void on_signal(int number) {
  last_signal.store(number, std::memory_order_relaxed);
  interrupted.store(true, std::memory_order_relaxed);
}

void arm() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  // The second signal ends the process. A write under way goes on: stdio would lose what it holds.
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  struct sigaction hang_up {};
  sigaction(SIGHUP, nullptr, &hang_up);
  if (hang_up.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);  // nohup: goes on
}

}  // namespace

InterruptScope::InterruptScope() {
  sigaction(SIGINT, nullptr, &previous_int_);
  sigaction(SIGTERM, nullptr, &previous_term_);
  sigaction(SIGHUP, nullptr, &previous_hup_);
  clear();
}

InterruptScope::~InterruptScope() {
  sigaction(SIGINT, &previous_int_, nullptr);
  sigaction(SIGTERM, &previous_term_, nullptr);
  sigaction(SIGHUP, &previous_hup_, nullptr);
}

const std::atomic<bool>& InterruptScope::flag() { return interrupted; }

int InterruptScope::exit_code() { return 128 + last_signal.load(std::memory_order_relaxed); }

void InterruptScope::clear() {
  interrupted.store(false, std::memory_order_relaxed);
  arm();
}

void outlive_readers() { ::signal(SIGPIPE, SIG_IGN); }

}  // namespace dsmoe::app

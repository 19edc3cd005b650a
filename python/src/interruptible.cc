// Work on one thread, Python's signals on another.
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "binding.h"

namespace dsmoe::python {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks(50);

}  // namespace

bool hears_signals() {
  const nb::module_ threading = nb::module_::import_("threading");
  return threading.attr("current_thread")().is(threading.attr("main_thread")());
}

void run_interruptible(FunctionRef<void(const std::atomic<bool>& cancelled)> work) {
  std::atomic<bool> cancelled{false};
  if (!hears_signals()) {
    const nb::gil_scoped_release release;
    return work(cancelled);
  }
  std::mutex mutex;
  std::condition_variable ended;
  bool is_done = false;
  std::exception_ptr failure;
  std::thread worker([&] {
    try {
      work(cancelled);
    } catch (...) {
      failure = std::current_exception();
    }
    const std::lock_guard lock(mutex);
    is_done = true;
    ended.notify_one();
  });
  bool interrupted = false;
  for (bool waits = true; waits;) {
    {
      const nb::gil_scoped_release release;
      std::unique_lock lock(mutex);
      waits = !ended.wait_for(lock, kBetweenLooks, [&] { return is_done; });
    }
    if (waits && !interrupted && PyErr_CheckSignals() != 0) {
      interrupted = true;
      cancelled = true;
    }
  }
  worker.join();
  if (interrupted) throw nb::python_error();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace dsmoe::python

// Reads the second number of schedstat.
#include "base/run_delay.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace dsmoe {
namespace {

// Nanoseconds; -1 where there is nothing to read.
long long read_delay(int file) {
  char text[96];
  const ssize_t count = file < 0 ? -1 : ::pread(file, text, sizeof(text) - 1, 0);
  if (count <= 0) return -1;
  text[count] = '\0';
  char* second = nullptr;
  std::strtoll(text, &second, 10);
  return std::strtoll(second, nullptr, 10);
}

void close_file(int file) {
  if (file >= 0) ::close(file);
}

}  // namespace

RunDelay::~RunDelay() {
  for (const Watched& watched : threads_) close_file(watched.file);
}

void RunDelay::watch(int idx, pid_t thread) {
  Watched& watched = threads_[static_cast<std::size_t>(idx)];
  if (watched.thread == thread) return;
  close_file(watched.file);
  const std::string path = fmt::format("/proc/self/task/{}/schedstat", thread);
  watched.thread = thread;
  watched.file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  watched.nanoseconds = read_delay(watched.file);
}

double RunDelay::since_last(int count) {
  long long sum = 0;
  for (int idx = 0; idx < count; ++idx) {
    Watched& watched = threads_[static_cast<std::size_t>(idx)];
    const long long now = read_delay(watched.file);
    if (now < 0) continue;
    sum += now - watched.nanoseconds;
    watched.nanoseconds = now;
  }
  return static_cast<double>(sum) * 1e-9;
}

}  // namespace dsmoe

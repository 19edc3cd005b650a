// Datagrams of the form NAME=value to the socket that the environment names.
#include "serve/supervisor.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>

#include "base/log.h"

namespace dsmoe::serve {
namespace {

constexpr std::chrono::microseconds kLongestWatchdog = std::chrono::hours(1);

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

// 0 for what is no number above it.
int64_t number_of(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value > 0 ? value : 0;
}

int connect_to(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const bool is_name = name.starts_with('/') || name.starts_with('@');
  if (!is_name || name.size() >= sizeof(address.sun_path)) {
    log_warning("NOTIFY_SOCKET={}: expected a path or @name; the service manager is not told",
                name);
    return -1;
  }
  std::memcpy(address.sun_path, name.data(), name.size());
  if (name[0] == '@') address.sun_path[0] = '\0';
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  const int descriptor = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const timeval second{.tv_sec = 1, .tv_usec = 0};  // a manager that does not read holds nobody up
  ::setsockopt(descriptor, SOL_SOCKET, SO_SNDTIMEO, &second, sizeof(second));
  if (descriptor >= 0 && ::connect(descriptor, reinterpret_cast<sockaddr*>(&address), size) == 0) {
    return descriptor;
  }
  log_warning("NOTIFY_SOCKET={}: {}; the service manager is not told", name, std::strerror(errno));
  if (descriptor >= 0) ::close(descriptor);
  return -1;
}

}  // namespace

SupervisorOptions supervisor_from_environment() {
  SupervisorOptions options{.socket = std::string(variable("NOTIFY_SOCKET"))};
  const std::string_view process = variable("WATCHDOG_PID");  // the time may be another's
  if (process.empty() || number_of(process) == ::getpid()) {
    // More often than asked for does no harm.
    options.watchdog = std::chrono::microseconds(
        std::min<int64_t>(number_of(variable("WATCHDOG_USEC")), kLongestWatchdog.count()));
  }
  return options;
}

Supervisor::Supervisor(SupervisorOptions options) : options_(std::move(options)) {
  if (!options_.socket.empty()) socket_ = connect_to(options_.socket);
}

Supervisor::~Supervisor() {
  if (socket_ >= 0) ::close(socket_);
}

std::chrono::microseconds Supervisor::watchdog() const {
  return socket_ >= 0 ? options_.watchdog : std::chrono::microseconds(0);
}

void Supervisor::tell(std::string_view state) {
  if (socket_ >= 0) ::send(socket_, state.data(), state.size(), MSG_NOSIGNAL);
}

Heartbeat::Heartbeat(Supervisor& supervisor, Post post, SilentSeconds silent_seconds)
    : supervisor_(supervisor), post_(std::move(post)), silent_seconds_(std::move(silent_seconds)) {
  if (supervisor_.watchdog().count() > 0) thread_ = std::thread([this] { thread_main(); });
}

Heartbeat::~Heartbeat() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Heartbeat::ask_http_thread() {
  has_answered_ = false;
  try {
    post_([this] { has_answered_ = true; });
  } catch (const std::bad_alloc&) {  // says nothing about that thread
    has_answered_ = true;
  }
}

void Heartbeat::thread_main() {
  const auto time = supervisor_.watchdog();
  const double longest = std::chrono::duration<double>(time).count() / 2;
  ask_http_thread();
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, time / 4, [this] { return ending_; })) {
    if (!has_answered_) continue;  // nor is it asked again: a thread that hangs gathers nothing
    if (silent_seconds_() < longest) supervisor_.alive();
    ask_http_thread();
  }
}

}  // namespace dsmoe::serve

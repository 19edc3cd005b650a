// The one error type of the program, and CHECK.
#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>

namespace dsmoe {

// What went wrong decides the exit code (usage: 2, all others: 1) and the HTTP status
// (input: 400, resource: 503, internal: 500).
enum class ErrorKind {
  usage,     // the command line or the API call is wrong
  input,     // a file or a request from outside breaks its format or its limits
  io,        // the operating system refused: open, read, write, rename
  resource,  // out of memory, disk, slots; the same call may succeed later
  internal,  // a broken promise inside dsmoe: a bug
};

// The text says what was expected, what came, and what to do next.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

template <class... Args>
[[noreturn]] void fail(ErrorKind kind, fmt::format_string<Args...> text, Args&&... args) {
  throw Error(kind, fmt::format(text, std::forward<Args>(args)...));
}

// Like fail(io, ...) with strerror(errno) appended.
[[noreturn]] void fail_errno(const std::string& what);

namespace detail {
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& message);
}  // namespace detail

}  // namespace dsmoe

// Stays on in release builds. The message carries the values: CHECK(a == b, "a is {}, b is {}", a,
// b).
#define DSMOE_CHECK(condition, ...)                                                              \
  do {                                                                                           \
    if (!(condition)) [[unlikely]] {                                                             \
      ::dsmoe::detail::check_failed(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)); \
    }                                                                                            \
  } while (false)

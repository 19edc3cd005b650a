// The out-of-line halves of error.h.
#include "base/error.h"

#include <cerrno>
#include <cstring>

namespace dsmoe {

void fail_errno(const std::string& what) {
  const int code = errno;
  throw Error(ErrorKind::io, fmt::format("{}: {}", what, std::strerror(code)));
}

namespace detail {

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  throw Error(ErrorKind::internal,
              fmt::format("{}:{}: check failed: {}: {}", file, line, condition, message));
}

}  // namespace detail
}  // namespace dsmoe

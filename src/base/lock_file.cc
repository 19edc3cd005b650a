// O_NOFOLLOW.
#include "base/lock_file.h"

#include <fcntl.h>

#include <cerrno>

#include "base/error.h"

namespace dsmoe {

int open_lock_file(const std::filesystem::path& path) {
  const int descriptor =
      ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
  if (descriptor >= 0) return descriptor;
  if (errno == ELOOP) {
    fail(ErrorKind::io,
         "{} is a symbolic link; expected a file that only locks this folder: "
         "remove the link",
         path.string());
  }
  fail_errno("cannot open " + path.string());
}

}  // namespace dsmoe

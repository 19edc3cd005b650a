// Stands before the C library's calls that write.
#include "base/failing_disk.h"

#include <dlfcn.h>
#include <sys/types.h>

#include <cerrno>
#include <cstddef>

namespace {

using dsmoe::FailingDisk;

bool fails_now() {
  if (FailingDisk::countdown < 0 || FailingDisk::countdown-- > 0) return false;
  errno = FailingDisk::failure;
  return true;
}
template <class F>
F original(const char* name) {
  return reinterpret_cast<F>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" ssize_t pwrite(int descriptor, const void* data, size_t size, off_t offset) {
  static const auto real = original<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite");
  return fails_now() ? -1 : real(descriptor, data, size, offset);
}
extern "C" ssize_t write(int descriptor, const void* data, size_t size) {
  static const auto real = original<ssize_t (*)(int, const void*, size_t)>("write");
  return fails_now() ? -1 : real(descriptor, data, size);
}
extern "C" int fsync(int descriptor) {
  static const auto real = original<int (*)(int)>("fsync");
  return fails_now() ? -1 : real(descriptor);
}
extern "C" int rename(const char* from, const char* to) noexcept {
  static const auto real = original<int (*)(const char*, const char*)>("rename");
  return fails_now() ? -1 : real(from, to);
}

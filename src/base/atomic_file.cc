// open, pwrite, fsync, rename.
#include "base/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <string>
#include <utility>

#include "base/error.h"

namespace dsmoe {
namespace {

namespace fs = std::filesystem;

fs::path parent_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// mkstemp would give mode 0600 whatever the umask; names from a counter with O_EXCL are as safe and
// keep the umask. `create(name)` returns a negative number and sets errno when it fails.
template <class Create>
int create_beside(const fs::path& target, fs::path& name, Create create) {
  static std::atomic<unsigned> counter{0};
  constexpr int kAttempts =
      1000;  // only leftovers of crashed processes with our number can collide
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    name = parent_of(target) / fmt::format(".{}.tmp-{}-{}", target.filename().string(), ::getpid(),
                                           counter.fetch_add(1));
    const int result = create(name);
    if (result >= 0 || errno != EEXIST) return result;
  }
  return -1;
}

}  // namespace

AtomicFile::AtomicFile(const fs::path& target) : target_(target) {
  DSMOE_CHECK(target.has_filename(), "\"{}\" names no file", target.string());
  descriptor_ = create_beside(target, temporary_, [](const fs::path& name) {
    return ::open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  });
  if (descriptor_ < 0) fail_errno("cannot create " + temporary_.string());
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : target_(std::move(other.target_)),
      temporary_(std::move(other.temporary_)),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::write_at(uint64_t offset, std::span<const std::byte> bytes) {
  DSMOE_CHECK(descriptor_ >= 0, "{} is already complete", target_.string());
  while (!bytes.empty()) {
    const ssize_t count =
        ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0)
      fail_errno(fmt::format("cannot write {} bytes to {}", bytes.size(), temporary_.string()));
    offset += static_cast<uint64_t>(count);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void AtomicFile::commit() {
  DSMOE_CHECK(descriptor_ >= 0, "{} is already complete", target_.string());
  if (::fsync(descriptor_) != 0) fail_errno("cannot fsync " + temporary_.string());
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) {
    fail_errno(fmt::format("cannot rename {} to {}", temporary_.string(), target_.string()));
  }
  ::close(std::exchange(descriptor_, -1));
  fsync_folder(parent_of(target_));
}

void atomic_write_file(const fs::path& target, std::string_view bytes) {
  AtomicFile file(target);
  file.write_at(0, std::as_bytes(std::span(bytes)));
  file.commit();
}

void fsync_folder(const fs::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail_errno("cannot open the folder " + folder.string());
  const int result = ::fsync(descriptor);
  const int code = errno;
  ::close(descriptor);
  errno = code;
  // Some network file systems cannot fsync a folder; there the rename itself is all there is.
  if (result != 0 && code != EINVAL) fail_errno("cannot fsync the folder " + folder.string());
}

fs::path make_temporary_folder(const fs::path& target) {
  DSMOE_CHECK(target.has_filename(), "\"{}\" names no folder", target.string());
  fs::path folder;
  const int result = create_beside(
      target, folder, [](const fs::path& name) { return ::mkdir(name.c_str(), 0777); });
  if (result < 0) fail_errno("cannot create the folder " + folder.string());
  return folder;
}

}  // namespace dsmoe

// open, flock, pwrite, fsync, rename.
#include "base/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/map_fault.h"

namespace dsmoe {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMark = ".tmp-";

fs::path parent_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

std::string hidden_prefix(const fs::path& target) {
  return fmt::format(".{}{}", target.filename().string(), kMark);
}

// ".<name>.tmp-N-N"
bool is_hidden_name(std::string_view name) {
  const std::size_t mark = name.rfind(kMark);
  if (!name.starts_with('.') || mark == std::string_view::npos || mark < 2) return false;
  const std::string_view numbers = name.substr(mark + kMark.size());
  const std::size_t dash = numbers.find('-');
  if (dash == 0 || dash == std::string_view::npos || dash + 1 == numbers.size()) return false;
  return numbers.find_first_not_of("0123456789") == dash &&
         numbers.find_first_not_of("0123456789", dash + 1) == std::string_view::npos;
}

// Writers and those who look for leftovers open a name alike, so that where one of them can lock
// (not every file system can), the other can, too. -1 with errno.
int open_hidden(const fs::path& path, HiddenName::Kind kind) {
  const int access = kind == HiddenName::Kind::folder ? O_RDONLY | O_DIRECTORY : O_RDWR;
  return ::open(path.c_str(), access | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
}

// mkstemp would give mode 0600 whatever the umask; names from a counter with O_EXCL are as safe and
// keep the umask. -1 with errno; EEXIST also where the new folder was taken for a leftover.
int create_hidden(const fs::path& path, HiddenName::Kind kind) {
  if (kind == HiddenName::Kind::file) {
    return ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  }
  if (::mkdir(path.c_str(), 0777) != 0) return -1;
  const int descriptor = open_hidden(path, kind);
  const int code = errno;
  if (descriptor < 0) ::rmdir(path.c_str());
  errno = code == ENOENT ? EEXIST : code;
  return descriptor;
}

bool is_same(int descriptor, const fs::path& path) {
  struct stat mine {
  }, named{};
  return ::fstat(descriptor, &mine) == 0 && ::lstat(path.c_str(), &named) == 0 &&
         mine.st_dev == named.st_dev && mine.st_ino == named.st_ino;
}

// False if somebody took the new name for a leftover before it was locked.
bool take(int descriptor, const fs::path& path) {
  const bool is_taken = ::flock(descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  return !is_taken && is_same(descriptor, path);
}

void remove_quietly(const fs::path& path) {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

// Calls `use` with every leftover while it is locked.
template <class F>
void for_leftovers(const fs::path& folder, std::string_view prefix, F use) {
  std::vector<std::pair<fs::path, HiddenName::Kind>> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(prefix) || !is_hidden_name(name)) continue;
    std::error_code ignored;
    const fs::file_type type = entry->symlink_status(ignored).type();
    if (type == fs::file_type::regular) found.emplace_back(entry->path(), HiddenName::Kind::file);
    if (type == fs::file_type::directory)
      found.emplace_back(entry->path(), HiddenName::Kind::folder);
  }
  std::sort(found.begin(), found.end());
  for (const auto& [path, kind] : found) {
    const int descriptor = open_hidden(path, kind);
    if (descriptor < 0) continue;
    if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0 && is_same(descriptor, path)) use(path);
    ::close(descriptor);
  }
}

// The rename would put a file in a device's place.
const fs::path& replaceable(const fs::path& target) {
  std::error_code ignored;
  const fs::file_status found = fs::status(target, ignored);
  if (fs::exists(found) && !fs::is_regular_file(found)) {
    fail(ErrorKind::io, "cannot write {}: expected a regular file or nothing there, found {}",
         target.string(), fs::is_directory(found) ? "a folder" : "a special file");
  }
  return target;
}

}  // namespace

HiddenName::HiddenName(const fs::path& target, Kind kind) : target_(target) {
  DSMOE_CHECK(target.has_filename(), "\"{}\" names nothing", target.string());
  remove_leftovers_of(target);
  static std::atomic<unsigned> counter{0};
  constexpr int kAttempts = 1000;  // only names of processes with our number can collide
  for (int attempt = 0; attempt < kAttempts && descriptor_ < 0; ++attempt) {
    path_ = parent_of(target) /
            fmt::format("{}{}-{}", hidden_prefix(target), ::getpid(), counter.fetch_add(1));
    descriptor_ = create_hidden(path_, kind);
    if (descriptor_ < 0 && errno != EEXIST) break;
    if (descriptor_ < 0 || take(descriptor_, path_)) continue;
    ::close(std::exchange(descriptor_, -1));
    remove_quietly(path_);
  }
  if (descriptor_ < 0) {
    fail_errno(fmt::format("cannot create {}{}", kind == Kind::folder ? "the folder " : "",
                           path_.string()));
  }
}

HiddenName::HiddenName(HiddenName&& other) noexcept
    : target_(std::move(other.target_)),
      path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

// Unlocked last: until then nobody else takes it for a leftover.
HiddenName::~HiddenName() {
  if (descriptor_ < 0) return;
  remove_quietly(path_);
  ::close(descriptor_);
}

void HiddenName::rename() {
  if (std::rename(path_.c_str(), target_.c_str()) != 0) {
    if (errno == ENOTEMPTY || errno == EEXIST) {
      fail(ErrorKind::io, "{}: another process wrote it meanwhile; choose another name",
           target_.string());
    }
    fail_errno(fmt::format("cannot rename {} to {}", path_.string(), target_.string()));
  }
  ::close(std::exchange(descriptor_, -1));
  fsync_folder(parent_of(target_));
}

AtomicFile::AtomicFile(const fs::path& target)
    : hidden_(replaceable(target), HiddenName::Kind::file) {}

void AtomicFile::write_at(uint64_t offset, std::span<const std::byte> bytes) {
  const int descriptor = hidden_.descriptor();
  DSMOE_CHECK(descriptor >= 0, "{} is already complete", target().string());
  while (!bytes.empty()) {
    const ssize_t count =
        ::pwrite(descriptor, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      // The bytes may lie in a file that was cut while it was mapped.
      if (errno == EFAULT) {
        if (const std::string fault = describe_map_fault(bytes.data()); !fault.empty())
          fail(ErrorKind::io, "{}", fault);
        errno = EFAULT;
      }
      fail_errno(fmt::format("cannot write {} bytes to {}", bytes.size(), hidden_.path().string()));
    }
    offset += static_cast<uint64_t>(count);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

const fs::path& AtomicFile::share(uint64_t num_bytes) {
  if (::ftruncate(hidden_.descriptor(), static_cast<off_t>(num_bytes)) != 0) {
    fail_errno(fmt::format("cannot give {} its {} bytes", hidden_.path().string(), num_bytes));
  }
  return hidden_.path();
}

void AtomicFile::commit() {
  DSMOE_CHECK(hidden_.descriptor() >= 0, "{} is already complete", target().string());
  if (::fsync(hidden_.descriptor()) != 0) fail_errno("cannot fsync " + hidden_.path().string());
  hidden_.rename();
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

std::vector<fs::path> leftovers_in(const fs::path& folder) {
  std::vector<fs::path> found;
  for_leftovers(folder, ".", [&](const fs::path& path) { found.push_back(path); });
  return found;
}

void remove_leftovers_in(const fs::path& folder, std::string_view targets_begin) {
  for_leftovers(folder, "." + std::string(targets_begin), remove_quietly);
}

void remove_leftovers_of(const fs::path& target) {
  const std::string prefix = hidden_prefix(target);
  for_leftovers(parent_of(target), prefix, [&](const fs::path& path) {
    // Not those of a target "<name>.tmp-1-1.x".
    const std::string rest = path.filename().string().substr(prefix.size());
    if (rest.find(kMark) == std::string::npos) remove_quietly(path);
  });
}

NewFolder::NewFolder(const fs::path& folder) {
  std::error_code error;
  for (fs::path at = folder; !at.empty() && !fs::exists(at, error); at = at.parent_path()) {
    if (at.has_filename()) created_.insert(created_.begin(), at);
  }
  fs::create_directories(folder, error);
  if (!error) return;
  for (; !created_.empty(); created_.pop_back()) fs::remove(created_.back(), error);
  fail(ErrorKind::io, "cannot create the folder {}: {}", folder.string(), error.message());
}

NewFolder::~NewFolder() {
  for (; !created_.empty(); created_.pop_back()) ::rmdir(created_.back().c_str());
}

}  // namespace dsmoe

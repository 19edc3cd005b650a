// open, fstat, mmap, pread, madvise with every failure named, and every map known to map_fault.h.
#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace dsmoe {

// O_NONBLOCK: opening a pipe must not wait for a writer; it has no effect on regular files.
OpenFile open_regular_file(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) fail_errno("cannot open " + path.string());
  struct stat info {};
  if (::fstat(descriptor, &info) != 0) {
    const int code = errno;
    ::close(descriptor);
    errno = code;
    fail_errno("cannot examine " + path.string());
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(descriptor);
    fail(ErrorKind::input, "{}: expected a regular file, found {}", path.string(),
         S_ISDIR(info.st_mode) ? "a folder" : "a special file");
  }
  return {.descriptor = descriptor, .size = static_cast<std::size_t>(info.st_size)};
}

void fail_shortened(const std::filesystem::path& path, std::size_t end, std::size_t size) {
  fail(ErrorKind::io,
       "{}: ends at byte {}, it had {} bytes when it was opened; was it changed meanwhile?",
       path.string(), end, size);
}

bool is_listed(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::symlink_status(path, ignored).type() !=
         std::filesystem::file_type::not_found;
}

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const OpenFile file = open_regular_file(path);
  descriptor_ = file.descriptor;
  size_ = file.size;
  if (size_ == 0) return;  // mmap refuses a length of 0
  void* data = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor_, 0);
  if (data == MAP_FAILED) {
    const int code = errno;
    close();
    errno = code;
    fail_errno(fmt::format("cannot map the {} bytes of {}", size_, path.string()));
  }
  data_ = static_cast<const std::byte*>(data);
  record_ = record_map(path_, descriptor_, bytes());
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      record_(std::exchange(other.record_, nullptr)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this == &other) return *this;
  close();
  path_ = std::move(other.path_);
  descriptor_ = std::exchange(other.descriptor_, -1);
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  record_ = std::exchange(other.record_, nullptr);
  return *this;
}

MappedFile::~MappedFile() { close(); }

void MappedFile::close() noexcept {
  forget_map(record_);
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
  if (descriptor_ >= 0) ::close(descriptor_);
  data_ = nullptr;
  descriptor_ = -1;
  record_ = nullptr;
}

void MappedFile::read(std::size_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t count = ::pread(descriptor_, out.data(), out.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0)
      fail_errno(
          fmt::format("cannot read {} bytes at {} of {}", out.size(), offset, path_.string()));
    if (count == 0) fail_shortened(path_, offset, size_);
    offset += static_cast<std::size_t>(count);
    out = out.subspan(static_cast<std::size_t>(count));
  }
}

void MappedFile::check_length() const {
  struct stat info {};
  if (::fstat(descriptor_, &info) != 0) fail_errno("cannot examine " + path_.string());
  const auto size = static_cast<std::size_t>(info.st_size);
  if (size < size_) fail_shortened(path_, size, size_);
}

// Hints: on failure the pages stay as they are, which is slower and not wrong.
void MappedFile::read_ahead(std::size_t offset, std::size_t count) const {
  (void)::readahead(descriptor_, static_cast<off_t>(offset), count);
}

void MappedFile::populate(std::span<const std::byte> part) const {
  advise(part, MADV_POPULATE_READ);
}

void MappedFile::release(std::span<const std::byte> part) const { advise(part, MADV_DONTNEED); }

void MappedFile::advise(std::span<const std::byte> part, int advice) const {
  if (part.empty()) return;
  DSMOE_CHECK(part.data() >= data_ && part.data() + part.size() <= data_ + size_,
              "not a part of {}", path_.string());
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t begin = static_cast<std::size_t>(part.data() - data_) / page * page;
  const std::size_t end = static_cast<std::size_t>(part.data() - data_) + part.size();
  (void)::madvise(const_cast<std::byte*>(data_) + begin, end - begin, advice);
}

std::string read_small_file(const std::filesystem::path& path, std::size_t max_bytes) {
  const auto [descriptor, size] = open_regular_file(path);
  if (size > max_bytes) {
    ::close(descriptor);
    fail(ErrorKind::input, "{}: {} bytes, at most {} are expected of such a file", path.string(),
         size, max_bytes);
  }
  std::string text(size, '\0');
  std::size_t done = 0;
  while (done < size) {
    const ssize_t count =
        ::pread(descriptor, text.data() + done, size - done, static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const int code = errno;
      ::close(descriptor);
      errno = code;
      fail_errno("cannot read " + path.string());
    }
    if (count == 0) break;
    done += static_cast<std::size_t>(count);
  }
  ::close(descriptor);
  if (done < size) fail_shortened(path, done, size);
  return text;
}

}  // namespace dsmoe

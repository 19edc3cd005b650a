// Read-only access to a file: mapped for views without a copy, read for copies that cannot fault.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

#include "base/map_fault.h"

namespace dsmoe {

// "FILE: ends at byte 10, it had 20 bytes when it was opened; was it changed meanwhile?"
[[noreturn]] void fail_shortened(const std::filesystem::path& path, std::size_t end,
                                 std::size_t size);

// An open descriptor and the size the file had then.
struct OpenFile {
  int descriptor;
  std::size_t size;
};

// Opens a file for reading; the caller closes it. Throws Error(io) if it cannot be opened,
// Error(input) if it is not a regular file.
OpenFile open_regular_file(const std::filesystem::path& path);

// Whether the folder lists such a name. True for a link to nothing and where it cannot be told:
// opening the file says what is wrong then.
bool is_listed(const std::filesystem::path& path);

// A regular file, open and mapped. A file that another process shortens while it is mapped faults
// on access (base/map_fault.h): code that copies anyway should use read(), which reports an error
// instead.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::filesystem::path& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

  // Copies the bytes from `offset` on into `out`. Throws Error(io) if the file ends before or the
  // disk fails.
  void read(std::size_t offset, std::span<std::byte> out) const;

  // Throws Error(io) if the file is shorter than it was when it was opened. A page in which a file
  // ends reads as zeros from there on, without a fault: whoever used bytes() asks this afterwards.
  void check_length() const;

  // Asks the disk for a part that will be needed soon; returns at once.
  void read_ahead(std::size_t offset, std::size_t count) const;

  // Maps the pages of `part` (a part of bytes()) in, in one go instead of one fault after the
  // other.
  void populate(std::span<const std::byte> part) const;

  // Gives the pages of `part` (a part of bytes()) back to the system; a later access loads them
  // again.
  void release(std::span<const std::byte> part) const;

 private:
  void advise(std::span<const std::byte> part, int advice) const;
  void close() noexcept;

  std::filesystem::path path_;
  int descriptor_ = -1;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  MapRecord* record_ = nullptr;
};

// The whole of a small file. Throws Error(input) if it is longer than `max_bytes`, before reading
// it, Error(io) if it ends before the length it had.
std::string read_small_file(const std::filesystem::path& path, std::size_t max_bytes);

}  // namespace dsmoe

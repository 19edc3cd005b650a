// Files that appear whole or not at all: written under a temporary name, fsynced, renamed, parent
// fsynced.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace dsmoe {

// A file being written. Destroyed without commit(), it leaves nothing behind. A crash leaves at
// most a file named
// ".<name>.tmp-N-N" beside the target.
class AtomicFile {
 public:
  // Creates the temporary file. Throws Error(io).
  explicit AtomicFile(const std::filesystem::path& target);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();

  void write_at(uint64_t offset, std::span<const std::byte> bytes);

  // fsync, rename over the target, fsync the folder. Nothing may be written afterwards.
  void commit();

  const std::filesystem::path& target() const { return target_; }

 private:
  std::filesystem::path target_;
  std::filesystem::path temporary_;
  int descriptor_ = -1;
};

void atomic_write_file(const std::filesystem::path& target, std::string_view bytes);

// Makes the entries of a folder (new names, renames) survive a power cut.
void fsync_folder(const std::filesystem::path& folder);

// Creates an empty folder ".<name>.tmp-N-N" beside `target`.
std::filesystem::path make_temporary_folder(const std::filesystem::path& target);

}  // namespace dsmoe

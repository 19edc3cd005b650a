// Files and folders that appear whole or not at all: written under a hidden name, fsynced, renamed,
// parent fsynced; and what writers that were killed left under such names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

namespace dsmoe {

// A name ".<name>.tmp-N-N" beside a target, locked (flock) for as long as its writer lives, so that
// what a killed process left there differs from what is being written. Its maker removes the
// leftovers of the same target first.
class HiddenName {
 public:
  enum class Kind { file, folder };
  // Creates it empty. Throws Error(io).
  HiddenName(const std::filesystem::path& target, Kind kind);
  HiddenName(HiddenName&& other) noexcept;
  HiddenName& operator=(HiddenName&&) = delete;
  ~HiddenName();  // removes it, with everything in it, unless it was renamed

  const std::filesystem::path& target() const { return target_; }
  const std::filesystem::path& path() const { return path_; }
  int descriptor() const { return descriptor_; }  // below 0: renamed

  // To the target; then fsyncs the parent.
  void rename();

 private:
  std::filesystem::path target_, path_;
  int descriptor_ = -1;
};

// A file being written. Destroyed without commit(), it leaves nothing behind.
class AtomicFile {
 public:
  // Throws Error(io) also where the target is there and is no regular file.
  explicit AtomicFile(const std::filesystem::path& target);

  void write_at(uint64_t offset, std::span<const std::byte> bytes);
  // Where others may write, too, until commit(): the file has so many bytes then.
  const std::filesystem::path& share(uint64_t num_bytes);

  // fsync, rename over the target, fsync the folder. Nothing may be written afterwards.
  void commit();

  const std::filesystem::path& target() const { return hidden_.target(); }

 private:
  HiddenName hidden_;
};

void atomic_write_file(const std::filesystem::path& target, std::string_view bytes);

// Makes the entries of a folder (new names, renames) survive a power cut.
void fsync_folder(const std::filesystem::path& folder);

// Hidden names in `folder` whose writers are gone; of targets whose names begin so, as others may
// name their files alike; of one target. A folder that cannot be listed has none.
std::vector<std::filesystem::path> leftovers_in(const std::filesystem::path& folder);
void remove_leftovers_in(const std::filesystem::path& folder, std::string_view targets_begin);
void remove_leftovers_of(const std::filesystem::path& target);

// Creates a folder and those above it that are missing. Destroyed, it removes those of them that
// are still empty: who fails before a first file leaves no folder.
class NewFolder {
 public:
  // Throws Error(io).
  explicit NewFolder(const std::filesystem::path& folder);
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  ~NewFolder();

 private:
  std::vector<std::filesystem::path> created_;  // the outermost first
};

}  // namespace dsmoe

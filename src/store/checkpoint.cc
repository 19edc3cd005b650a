// Staging, hashing, publishing, verifying and pruning of checkpoints.
#include "store/checkpoint.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/json.h"
#include "base/lock_file.h"
#include "base/mapped_file.h"
#include "base/sha256.h"
#include "base/utf8.h"
#include "store/json_cursor.h"

namespace dsmoe::store {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxManifestBytes = std::size_t{1} << 20;
constexpr std::size_t kHashPiece = std::size_t{1} << 20;

std::string file_hash(const MappedFile& file) {
  Sha256 hash;
  std::vector<std::byte> buffer;
  for (std::size_t begin = 0; begin < file.bytes().size(); begin += buffer.size()) {
    buffer.resize(std::min(kHashPiece, file.bytes().size() - begin));
    file.read(begin, buffer);
    hash.update(buffer);
  }
  return hash.finish();
}

bool is_plain_name(std::string_view name) {
  return !name.empty() && name.front() != '.' && name.find('/') == std::string_view::npos;
}

Json manifest_of(const fs::path& folder, int64_t step) {
  Json files = Json::object();
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const MappedFile file(entry.path());
    files[entry.path().filename().string()] = {{"bytes", file.bytes().size()},
                                               {"sha256", file_hash(file)}};
  }
  return {{"format", 1}, {"step", step}, {"files", files}};
}

std::optional<int64_t> step_of(const Json& manifest) {
  const Json step = manifest.value("step", Json());
  return step.is_number_integer() ? std::optional(step.get<int64_t>()) : std::nullopt;
}

std::string manifest_text(const Json& manifest) { return manifest.dump(2) + "\n"; }

// Steps of the checkpoint folders, newest first.
std::vector<int64_t> listed_steps(const fs::path& run) {
  std::vector<int64_t> steps;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(run, error)) {
    const std::optional<int64_t> step = checkpoint_step(entry.path().filename().string());
    if (step) steps.push_back(*step);
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    fail(ErrorKind::io, "cannot list {}: {}", run.string(), error.message());
  }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

// Out of sight by one rename, then deleted: a crash in between leaves no half checkpoint.
// Of a link only the link goes: what it leads to is somewhere else for a reason. What is no folder
// is not ours.
void remove_checkpoint(const fs::path& folder) {
  std::error_code ignored;
  const fs::file_type type = fs::symlink_status(folder, ignored).type();
  if (type == fs::file_type::symlink) fs::remove(folder, ignored);
  if (type != fs::file_type::directory) return;
  const HiddenName hidden(folder, HiddenName::Kind::folder);
  if (std::rename(folder.c_str(), hidden.path().c_str()) != 0) {
    fail_errno(fmt::format("cannot rename {} to {}", folder.string(), hidden.path().string()));
  }
  std::error_code error;
  fs::remove_all(hidden.path(), error);
  if (error) fail(ErrorKind::io, "cannot remove {}: {}", hidden.path().string(), error.message());
}

uint64_t folder_bytes(const fs::path& folder) {
  uint64_t bytes = 0;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const uintmax_t size = entry.file_size(error);
    if (!error) bytes += size;
  }
  return bytes;
}

bool is_milestone(const Retention& retention, int64_t step) {
  return step == retention.best || (retention.every > 0 && step % retention.every == 0);
}

// Steps below the newest that room may be made of, the oldest first.
std::vector<int64_t> removable_steps(const fs::path& run, const Retention& retention,
                                     int64_t newest) {
  std::vector<int64_t> steps = listed_steps(run);
  std::erase_if(steps,
                [&](int64_t step) { return step >= newest || is_milestone(retention, step); });
  std::reverse(steps.begin(), steps.end());
  return steps;
}

}  // namespace

std::string checkpoint_name(int64_t step) {
  return fmt::format("{}{:08}", kCheckpointPrefix, step);
}

std::optional<int64_t> checkpoint_step(std::string_view name) {
  if (!name.starts_with(kCheckpointPrefix)) return std::nullopt;
  const std::string_view digits = name.substr(kCheckpointPrefix.size());
  const bool plain =
      std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!plain || digits.empty() || digits.size() > 18) return std::nullopt;
  int64_t step = 0;
  for (const char c : digits) step = step * 10 + (c - '0');
  return checkpoint_name(step) == name ? std::optional(step) : std::nullopt;
}

namespace {

// Whoever held it may have removed the file meanwhile; a lock on that would keep nobody out.
bool is_removed(int descriptor) {
  struct stat state {};
  return ::fstat(descriptor, &state) == 0 && state.st_nlink == 0;
}

int open_locked(const fs::path& run) {
  std::error_code error;
  fs::create_directories(run, error);
  if (error) fail(ErrorKind::io, "cannot create {}: {}", run.string(), error.message());
  const std::string path = (run / ".lock").string();
  const int descriptor = open_lock_file(path);
  if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0) return descriptor;
  const int code = errno;
  char owner[32] = {};
  const ssize_t count = ::pread(descriptor, owner, sizeof owner - 1, 0);
  ::close(descriptor);
  errno = code;
  if (code != EWOULDBLOCK) fail_errno("cannot lock " + path);
  const std::string number(owner, count > 0 ? std::min<ssize_t>(count, 20) : 0);
  fail(ErrorKind::resource,
       "{}: process {} is training there; wait for it, stop it, or choose another --out",
       run.string(), number.empty() ? "another" : in_quotes(number));
}

}  // namespace

RunLock::RunLock(const fs::path& run) {
  for (descriptor_ = open_locked(run); is_removed(descriptor_); descriptor_ = open_locked(run)) {
    ::close(descriptor_);
  }
  const std::string number = std::to_string(::getpid());
  // For the message above only: a failure to write it is no failure to lock.
  if (::ftruncate(descriptor_, 0) != 0 ||
      ::pwrite(descriptor_, number.data(), number.size(), 0) < 0) {
    errno = 0;
  }
}

RunLock::~RunLock() { ::close(descriptor_); }

uint64_t num_bytes_of(const CheckpointContent& content) {
  uint64_t bytes = uint64_t{1} << 20;
  for (const auto* specs : {&content.model, &content.state}) {
    for (const tensor::TensorSpec& spec : *specs) bytes += num_bytes_of(spec);
  }
  return bytes;
}

CheckpointWriter::CheckpointWriter(const fs::path& run, int64_t step, CheckpointContent content)
    : run_(run), target_(run / checkpoint_name(step)), step_(step) {
  if (fs::exists(target_)) {
    bool verifies = true;
    try {
      verify_checkpoint(target_);
    } catch (const Error&) {
      verifies = false;
    }
    if (verifies) fail(ErrorKind::input, "{}: already exists", target_.string());
    remove_checkpoint(target_);
  }
  needed_bytes_ = num_bytes_of(content);
  if (free_disk_bytes(run) < needed_bytes_) disk_full();
  guarded([&] {
    folder_ = std::make_unique<FolderWriter>(target_, std::move(content.model));
    state_ = std::make_unique<SafetensorsWriter>(folder_->staging() / kTrainStateName,
                                                 std::move(content.state), content.state_metadata);
  });
}

CheckpointWriter::~CheckpointWriter() = default;

void CheckpointWriter::disk_full() {
  // What was written is given back first, so that the figure is what the user must free.
  state_.reset();
  folder_.reset();
  std::error_code error;
  const fs::space_info space = fs::space(run_, error);
  const uint64_t available = error ? 0 : space.available;
  fail(ErrorKind::resource,
       "{}: the disk is full: the checkpoint needs {} bytes, {} are free, {} are missing; earlier "
       "checkpoints are untouched; free space (or lower --keep) and go on with --resume",
       target_.string(), needed_bytes_, available,
       needed_bytes_ > available ? needed_bytes_ - available : 0);
}

template <class F>
void CheckpointWriter::guarded(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    const bool is_full =
        error.kind() == ErrorKind::io &&
        std::string_view(error.what()).find(std::strerror(ENOSPC)) != std::string_view::npos;
    if (!is_full) throw;
    disk_full();
  }
}

void CheckpointWriter::write_model(std::string_view name, const tensor::TensorView& view) {
  guarded([&] { folder_->write(name, view); });
}
void CheckpointWriter::write_state(std::string_view name, const tensor::TensorView& view) {
  guarded([&] { state_->write(name, view); });
}
void CheckpointWriter::add_file(const std::string& name, std::string_view bytes) {
  guarded([&] { folder_->add_file(name, bytes); });
}

CheckpointWriter::SharedFiles CheckpointWriter::share(
    FunctionRef<bool(const std::string&)> model_is_theirs,
    FunctionRef<bool(const std::string&)> state_is_theirs) {
  SharedFiles files;
  guarded([&] {
    files.model = folder_->share(model_is_theirs);
    files.state = state_->share(state_is_theirs);
  });
  return files;
}

void CheckpointWriter::commit() {
  guarded([&] {
    state_->finish();
    folder_->seal();
    const Json manifest = manifest_of(folder_->staging(), step_);
    folder_->add_file(std::string(kManifestName), manifest_text(manifest));
    folder_->commit();
  });
}

void verify_checkpoint(const fs::path& folder, Verify verify) {
  const std::string what = (folder / kManifestName).string();
  const std::string text = read_small_file(what, kMaxManifestBytes);
  const Json manifest = parse_json(text, what);
  const auto files = manifest.is_object() ? manifest.find("files") : manifest.end();
  if (files == manifest.end() || !files->is_object() || manifest.value("format", Json()) != 1) {
    fail(ErrorKind::input, "{}: not a manifest of format 1", what);
  }
  // Exactly what the writer writes, so that no changed byte of the manifest itself goes unseen.
  if (manifest.size() != 3 || manifest_text(manifest) != text ||
      checkpoint_step(folder.filename().string()) != step_of(manifest)) {
    fail(ErrorKind::input, "{}: damaged, or moved from another folder", what);
  }
  if (!files->contains(std::string(kTrainStateName)) || !files->contains("config.json")) {
    fail(ErrorKind::input, "{}: lists no {} or no config.json", what, kTrainStateName);
  }
  for (const auto& [name, entry] : files->items()) {
    if (!is_plain_name(name) || !entry.is_object() || !entry.contains("bytes") ||
        !entry["bytes"].is_number_unsigned() || !entry.contains("sha256") ||
        !entry["sha256"].is_string()) {
      fail(ErrorKind::input, "{}: the entry {} is malformed", what, in_quotes(name));
    }
    const std::string path = (folder / name).string();
    const MappedFile file(path);
    const auto expected = entry["bytes"].get<uint64_t>();
    if (file.bytes().size() != expected) {
      fail(ErrorKind::input, "{}: {} bytes, the manifest says {}", path, file.bytes().size(),
           expected);
    }
    if (verify == Verify::lengths) continue;
    if (file_hash(file) != entry["sha256"].get<std::string>()) {
      fail(ErrorKind::input, "{}: its content does not match the manifest's sha256", path);
    }
  }
}

NewestCheckpoint newest_checkpoint(const fs::path& run, Verify verify) {
  NewestCheckpoint newest;
  for (const int64_t step : listed_steps(run)) {
    const std::string name = checkpoint_name(step);
    try {
      verify_checkpoint(run / name, verify);
      newest.folder = run / name;
      newest.step = step;
      return newest;
    } catch (const Error& error) {
      newest.passed_over.push_back({.name = name, .reason = error.what()});
    }
  }
  return newest;
}

bool has_checkpoints(const fs::path& run) { return !listed_steps(run).empty(); }

void remove_old_checkpoints(const fs::path& run, const Retention& retention, int64_t newest,
                            std::span<const int64_t> damaged) {
  int64_t kept = 0;
  for (const int64_t step : listed_steps(run)) {
    if (step > newest) continue;
    const bool is_damaged =
        step < newest && std::find(damaged.begin(), damaged.end(), step) != damaged.end();
    if (is_damaged) {
      remove_checkpoint(run / checkpoint_name(step));
    } else if (kept < retention.last) {
      ++kept;
    } else if (!is_milestone(retention, step)) {
      remove_checkpoint(run / checkpoint_name(step));
    }
  }
}

uint64_t free_disk_bytes(const fs::path& run) {
  std::error_code error;
  const fs::space_info space = fs::space(run, error);
  return error ? UINT64_MAX : space.available;
}

CheckpointRoom checkpoint_room(const fs::path& run, const Retention& retention, int64_t newest,
                               uint64_t available) {
  CheckpointRoom room{.available = available};
  for (const int64_t step : removable_steps(run, retention, newest)) {
    room.removable += folder_bytes(run / checkpoint_name(step));
    ++room.num_kept;
  }
  if (fs::exists(run / checkpoint_name(newest)) && !is_milestone(retention, newest)) {
    ++room.num_kept;
  }
  return room;
}

std::vector<std::string> make_room(const fs::path& run, const Retention& retention, int64_t newest,
                                   uint64_t needed, uint64_t available) {
  std::vector<std::string> removed;
  if (available >= needed) return removed;
  const CheckpointRoom room = checkpoint_room(run, retention, newest, available);
  if (needed - available > room.removable) return removed;
  for (const int64_t step : removable_steps(run, retention, newest)) {
    const fs::path folder = run / checkpoint_name(step);
    available += folder_bytes(folder);
    remove_checkpoint(folder);
    removed.push_back(checkpoint_name(step));
    if (available >= needed) break;
  }
  return removed;
}

}  // namespace dsmoe::store

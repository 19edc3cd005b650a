// Training checkpoints RUN/step-00000100: a model folder, the training state and a hashed manifest,
// whole or absent.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/folder_writer.h"
#include "store/safetensors.h"
#include "tensor/tensor_spec.h"

namespace dsmoe::store {

inline constexpr std::string_view kManifestName = "MANIFEST.json";
inline constexpr std::string_view kTrainStateName = "train_state.safetensors";

inline constexpr std::string_view kCheckpointPrefix = "step-";
std::string checkpoint_name(int64_t step);  // "step-00000100"
// The step of such a name; nothing for any other.
std::optional<int64_t> checkpoint_step(std::string_view name);

// One writer per RUN: held from construction to destruction, also released by a crash. Throws
// Error(resource) that names the other process.
class RunLock {
 public:
  explicit RunLock(const std::filesystem::path& run);  // creates the folder
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int descriptor_ = -1;
};

struct CheckpointContent {
  std::vector<tensor::TensorSpec> model;
  std::vector<tensor::TensorSpec> state;
  std::map<std::string, std::string> state_metadata;
};

// What a checkpoint of this content takes on the disk: tensors, and 1 MiB for headers and small
// files.
uint64_t num_bytes_of(const CheckpointContent& content);

// Written under a temporary name; commit() hashes every file into the manifest and renames. Until
// then, and after any failure, RUN is as it was. Disk full is Error(resource) with the bytes needed
// and missing. Equal content gives equal bytes in every file.
class CheckpointWriter {
 public:
  // A folder of that name that does not verify is replaced; one that does is never touched:
  // Error(input).
  CheckpointWriter(const std::filesystem::path& run, int64_t step, CheckpointContent content);
  ~CheckpointWriter();

  void write_model(std::string_view name, const tensor::TensorView& view);
  void write_state(std::string_view name, const tensor::TensorView& view);
  void add_file(const std::string& name, std::string_view bytes);
  // Others write some tensors of the model and of the state, with SharedTensors
  // (store/shared_tensors.h) over the files returned: the model's, then the state's. commit() comes
  // after they have finished.
  struct SharedFiles {
    std::vector<std::filesystem::path> model;
    std::filesystem::path state;
  };
  SharedFiles share(FunctionRef<bool(const std::string& name)> model_is_theirs,
                    FunctionRef<bool(const std::string& name)> state_is_theirs);
  void commit();

 private:
  template <class F>
  void guarded(F&& f);
  [[noreturn]] void disk_full();

  std::filesystem::path run_, target_;
  int64_t step_;
  uint64_t needed_bytes_ = 0;
  std::unique_ptr<FolderWriter> folder_;
  std::unique_ptr<SafetensorsWriter> state_;
};

// Every file of the manifest is there with its length and hash, or only its length; else
// Error(input) with the first fault.
enum class Verify { everything, lengths };
void verify_checkpoint(const std::filesystem::path& folder, Verify verify = Verify::everything);

struct PassedOver {
  std::string name;
  std::string reason;
};
struct NewestCheckpoint {
  std::optional<std::filesystem::path> folder;  // absent: RUN has none that verifies
  int64_t step = 0;
  std::vector<PassedOver> passed_over;  // newer than it
};
NewestCheckpoint newest_checkpoint(const std::filesystem::path& run,
                                   Verify verify = Verify::everything);
// Whether there is any, without a look inside.
bool has_checkpoints(const std::filesystem::path& run);

// Keeps the last `last`, those whose step is a multiple of `every` (0: none besides), and the
// `best`.
struct Retention {
  int64_t last = 3;
  int64_t every = 0;
  int64_t best = -1;  // a step; below 0: none
};
// Counts from `newest`, the step just written: folders above it did not verify when the run was
// resumed and must not push good ones out. Nor may those below it that did not verify then, the
// `damaged`: they are removed, as a newer one is there now.
void remove_old_checkpoints(const std::filesystem::path& run, const Retention& retention,
                            int64_t newest, std::span<const int64_t> damaged = {});

// Room for the next checkpoint where `available` bytes are free: `removable` are those of older
// checkpoints that may go for it, which leaves the newest and every milestone.
struct CheckpointRoom {
  uint64_t available = 0;
  uint64_t removable = 0;
  int64_t num_kept = 0;  // checkpoints up to the newest, milestones aside
};
CheckpointRoom checkpoint_room(const std::filesystem::path& run, const Retention& retention,
                               int64_t newest, uint64_t available);
// Free bytes of the disk that holds `run`; endless where the system does not say.
uint64_t free_disk_bytes(const std::filesystem::path& run);

// Removes older checkpoints, the oldest first, until `needed` bytes are free; none where that could
// not be enough. Returns the names of those removed.
std::vector<std::string> make_room(const std::filesystem::path& run, const Retention& retention,
                                   int64_t newest, uint64_t needed, uint64_t available);

}  // namespace dsmoe::store

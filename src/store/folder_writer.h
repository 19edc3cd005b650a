// Writes a model folder that appears whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/atomic_file.h"
#include "store/safetensors.h"
#include "tensor/tensor_spec.h"

namespace dsmoe::store {

inline constexpr uint64_t kMaxShardBytes = 5'000'000'000;

// Everything is written into a hidden folder beside the target and renamed to it in commit();
// without that it goes with the writer.
// Equal tensors give equal bytes whatever the order of `tensors` and of the calls: shards are
// filled in the order of names.
class FolderWriter {
 public:
  // Throws Error(input) if `target` exists and is not an empty folder: nothing is ever overwritten.
  FolderWriter(const std::filesystem::path& target, std::vector<tensor::TensorSpec> tensors,
               uint64_t max_shard_bytes = kMaxShardBytes);
  FolderWriter(const FolderWriter&) = delete;
  FolderWriter& operator=(const FolderWriter&) = delete;

  // A small file beside the weights: config.json, tokenizer.json, ...
  void add_file(const std::string& name, std::string_view bytes);

  // Appends to a tensor, in any order and in pieces; or a whole tensor at once.
  void write(std::string_view name, std::span<const std::byte> bytes) {
    shard_of(name).write(name, bytes);
  }
  void write(std::string_view name, const tensor::TensorView& view) {
    shard_of(name).write(name, view);
  }

  // SafetensorsWriter::share of every shard.
  std::vector<std::filesystem::path> share(FunctionRef<bool(const std::string& name)> is_theirs);

  // Where the folder lies until commit(), for files that write themselves.
  const std::filesystem::path& staging() const { return staging_.path(); }

  // Checks that every tensor is complete and writes the index: only add_file() and commit() may
  // follow. For those who must read the files before they are published; commit() does it too.
  void seal();

  // seal(), fsync, rename, fsync the parent.
  void commit();

 private:
  SafetensorsWriter& shard_of(std::string_view name);

  std::filesystem::path target_;
  NewFolder parent_;
  HiddenName staging_;
  std::vector<SafetensorsWriter> shards_;
  std::vector<std::string> shard_names_;
  std::map<std::string, std::size_t, std::less<>> shard_index_;  // tensor -> shard
  uint64_t total_bytes_ = 0;
  bool sealed_ = false;
};

}  // namespace dsmoe::store

// A Hugging Face model folder as a source of weights: one safetensors file, or shards with an
// index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/safetensors.h"
#include "tensor/tensor_spec.h"

namespace dsmoe::store {

inline constexpr std::size_t kMaxIndexBytes = std::size_t{16} << 20;
inline constexpr std::size_t kMaxShards = 1000;

// model.safetensors.index.json: which file holds which tensor.
struct ShardIndex {
  struct Placement {
    std::string tensor;
    std::size_t file_idx;
  };
  std::vector<std::string> files;     // sorted, plain names
  std::vector<Placement> weight_map;  // sorted by tensor
};

// Throws Error(input) that starts with `what`: bad JSON, a duplicate, a file name that is not a
// plain *.safetensors.
ShardIndex parse_shard_index(std::string_view text, std::string_view what);

// Whether the folder lists weights, or it is a GGUF file; opening them says what is wrong with
// them.
bool has_weights(const std::filesystem::path& model);

class HfFolder {
 public:
  // Opens the weights: every shard must exist and hold exactly what the index says. Reads headers
  // only.
  static HfFolder open(const std::filesystem::path& folder);

  const std::filesystem::path& path() const { return path_; }
  std::vector<std::string_view> names() const;       // sorted
  std::vector<std::filesystem::path> files() const;  // that hold them, sorted

  const TensorEntry* find(std::string_view name) const;  // nullptr: no such tensor
  const TensorEntry& at(std::string_view name) const;    // throws Error(input) that names it

  // The tensor where its file is mapped: no copy, may be unaligned, valid as long as this object.
  std::span<const std::byte> bytes(std::string_view name) const;
  // Copies `out.size()` bytes from `offset` within the tensor, without mapping pages in.
  void read(std::string_view name, std::span<std::byte> out, uint64_t offset = 0) const;
  // Asks the disk for a tensor that will be needed soon; its size, 0 when there is no such tensor.
  uint64_t read_ahead(std::string_view name) const;
  // Gives the mapped pages of a tensor back, so that loading one tensor after another needs memory
  // for one.
  void release(std::string_view name) const;
  void release(std::string_view name, uint64_t offset, uint64_t count) const;  // a part of it

  // Throws one Error(input) that names missing, extra and mis-shaped tensors (the first eight, then
  // a count) with what was expected and found. Weights may be F32, F16 or BF16 whatever the type in
  // `expected`, unless its type_rule is exact; the buffers
  // *.rotary_emb.inv_freq that old checkpoints carry are ignored.
  void check(std::span<const tensor::TensorSpec> expected) const;

 private:
  struct Location {
    const TensorEntry* entry;
    std::size_t file_idx;
  };
  explicit HfFolder(std::filesystem::path path) : path_(std::move(path)) {}
  void open_shards();
  void add_file(const std::string& name);
  void check_index(const ShardIndex& index, const std::string& what) const;
  void sort_locations();
  const Location* locate(std::string_view name) const;
  const Location& locate_or_fail(std::string_view name) const;

  std::filesystem::path path_;
  std::vector<SafetensorsFile> files_;
  std::vector<Location> locations_;  // sorted by name
};

}  // namespace dsmoe::store

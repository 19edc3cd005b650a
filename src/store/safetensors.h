// The safetensors format: reading a file of named tensors without a copy, and writing one.
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
#include "base/function_ref.h"
#include "base/mapped_file.h"
#include "tensor/tensor_spec.h"

namespace dsmoe::store {

// Limits that keep a hostile file from taking memory. The format allows headers of 100 MB; the
// 5,466 tensors of DeepSeek-MoE-16B in one file need 0.7 MB.
inline constexpr uint64_t kMaxHeaderBytes = uint64_t{16} << 20;
inline constexpr std::size_t kMaxTensors = 131072;
inline constexpr std::size_t kMaxMetadataEntries = 4096;

// One tensor of a file. `offset` counts from the start of the file; the format does not promise
// that it is aligned.
struct TensorEntry {
  std::string name;
  tensor::DType dtype = tensor::DType::F32;
  tensor::Shape shape;
  uint64_t offset = 0;
  uint64_t num_bytes = 0;
};

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::vector<TensorEntry> tensors;  // sorted by name
};

// Checks every rule of the format against the whole file and throws Error(input) that starts with
// `what` and names the broken one. Types this program does not compute with are refused by name.
SafetensorsHeader parse_safetensors(std::span<const std::byte> file, std::string_view what);

class SafetensorsFile {
 public:
  static SafetensorsFile open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  std::span<const TensorEntry> tensors() const { return header_.tensors; }  // sorted by name

  const TensorEntry* find(std::string_view name) const;  // nullptr: no such tensor
  const TensorEntry& at(std::string_view name) const;    // throws Error(input) that names it

  // The bytes where the file is mapped; valid as long as this object; may be unaligned.
  std::span<const std::byte> bytes(const TensorEntry& entry) const;

  // Copies part of a tensor, `out.size()` bytes from `offset` within it, without mapping pages in.
  void read(const TensorEntry& entry, std::span<std::byte> out, uint64_t offset = 0) const;

  // Asks the disk for a tensor that will be needed soon.
  void read_ahead(const TensorEntry& entry) const {
    file_.read_ahead(entry.offset, entry.num_bytes);
  }
  // Drops the mapped pages of a tensor that was read from memory; bytes() stays valid. Throws
  // Error(io) if the file was cut meanwhile: what was read may have been zeros.
  void release(const TensorEntry& entry) const {
    file_.check_length();
    file_.release(bytes(entry));
  }
  // The same of `count` bytes from `offset` within it.
  void release(const TensorEntry& entry, uint64_t offset, uint64_t count) const {
    file_.release(bytes(entry).subspan(offset, count));
  }

 private:
  SafetensorsFile(MappedFile file, SafetensorsHeader header)
      : file_(std::move(file)), header_(std::move(header)) {}

  MappedFile file_;
  SafetensorsHeader header_;
};

// Writes a file whose bytes depend only on the tensors and the metadata: largest types first, then
// by name, which is also what Python's safetensors writes. The file appears under its name in
// finish().
class SafetensorsWriter {
 public:
  // Throws Error(input) on a duplicate or invalid name.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<tensor::TensorSpec> tensors,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

  // Appends bytes to the named tensor; tensors may be written in any order and in pieces.
  void write(std::string_view name, std::span<const std::byte> bytes);
  void write(std::string_view name,
             const tensor::TensorView& view);  // a whole tensor, checked against its spec

  // Others write the tensors that `is_theirs` names (store/shared_tensors.h), into the file that is
  // returned.
  const std::filesystem::path& share(FunctionRef<bool(const std::string& name)> is_theirs);

  // Checks that every tensor is complete and makes the file appear.
  void finish();

 private:
  struct Slot {
    tensor::TensorSpec spec;
    uint64_t offset = 0;  // in the file
    uint64_t num_bytes = 0;
    uint64_t written = 0;
  };
  Slot& slot(std::string_view name);

  AtomicFile file_;
  std::vector<Slot> slots_;                                // in file order
  std::map<std::string, std::size_t, std::less<>> index_;  // name -> slot
};

// Cannot overflow: tensor::Shape holds at most 2^59 elements.
uint64_t num_bytes_of(const tensor::TensorSpec& spec);

}  // namespace dsmoe::store

// Writes GGUF files: metadata in the order given, then each tensor at its place.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/atomic_file.h"
#include "store/gguf/tensor_type.h"
#include "tensor/tensor.h"

namespace dsmoe::store::gguf {

class Metadata {
 public:
  // Throws Error(input) for what the type cannot hold. A key is given once.
  void integer(std::string_view key, int64_t value);  // as uint32
  void number(std::string_view key, double value);    // as float32
  void boolean(std::string_view key, bool value);
  void text(std::string_view key, std::string_view value);
  void texts(std::string_view key, std::span<const std::string> values);
  void integers(std::string_view key, std::span<const int32_t> values);

  uint64_t size() const { return keys_.size(); }
  const std::string& bytes() const { return bytes_; }

 private:
  void begin(std::string_view key, uint32_t type);

  std::vector<std::string> keys_;
  std::string bytes_;
};

struct TensorSpec {
  std::string name;
  TensorType type = TensorType::F32;
  tensor::Shape shape;  // row-major
};

// The file appears under its name in finish().
class Writer {
 public:
  // Throws Error(input) for names and shapes that the format cannot hold.
  Writer(const std::filesystem::path& path, const Metadata& metadata,
         std::vector<TensorSpec> tensors);

  const TensorSpec& spec(std::string_view name) const { return slot(name).spec; }
  // Puts bytes at a place within the named tensor; each place is written once, in any order.
  void write(std::string_view name, uint64_t offset, std::span<const std::byte> bytes);

  // Checks that every tensor is complete and makes the file appear.
  void finish();

 private:
  struct Slot {
    TensorSpec spec;
    uint64_t offset = 0;  // in the file
    uint64_t num_bytes = 0;
    uint64_t written = 0;
  };
  const Slot& slot(std::string_view name) const;

  AtomicFile file_;
  std::vector<Slot> slots_;
  std::map<std::string, std::size_t, std::less<>> index_;  // name -> slot
  uint64_t end_ = 0;                                       // of the file, padded
};

}  // namespace dsmoe::store::gguf

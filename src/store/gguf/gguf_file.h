// The GGUF format: a file of typed metadata and named tensors, read without a copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "store/gguf/tensor_type.h"
#include "tensor/tensor.h"

namespace dsmoe::store::gguf {

// Limits that keep a hostile file from taking memory. Values stay in the file; what is kept of each
// is where it lies.
inline constexpr uint64_t kMaxValues = 4096;
inline constexpr uint64_t kMaxTensors = 131072;
inline constexpr uint64_t kMaxKeyBytes = 1024;  // the format says 65,535; keys are names
inline constexpr uint64_t kMaxNameBytes = 64;
inline constexpr uint64_t kMaxAlignment = uint64_t{1} << 20;

enum class ValueType : uint32_t {
  uint8,
  int8,
  uint16,
  int16,
  uint32,
  int32,
  float32,
  boolean,
  string,
  array,
  uint64,
  int64,
  float64,
};

// A checked value, or all elements of an array, where the file is mapped.
struct Value {
  ValueType type = ValueType::uint8;  // never array
  bool is_array = false;
  uint64_t count = 1;
  std::span<const std::byte> bytes;
};

struct TensorEntry {
  std::string name;
  TensorType type = TensorType::F32;
  tensor::Shape shape;  // row-major: the last dimension is the one whose numbers are neighbours
  uint64_t offset = 0;  // from the start of the file
  uint64_t num_bytes = 0;
};

struct Header {
  std::map<std::string, Value, std::less<>> values;
  std::vector<TensorEntry> tensors;  // sorted by name
  uint64_t alignment = 32;
};

// Checks every rule of the format against the whole file and throws Error(input) that starts with
// `what` and names the broken one.
Header parse(std::span<const std::byte> file, std::string_view what);

// Whether it is a regular file that begins as GGUF files do. Anything that cannot be read is none.
bool is_gguf(const std::filesystem::path& path);

class File {
 public:
  static File open(const std::filesystem::path& path);

  std::string what() const { return file_.path().string(); }
  const std::filesystem::path& path() const { return file_.path(); }
  std::span<const TensorEntry> tensors() const { return header_.tensors; }  // sorted by name
  const TensorEntry* find_tensor(std::string_view name) const;  // nullptr: no such tensor
  std::span<const std::byte> bytes(const TensorEntry& entry) const {
    return file_.bytes().subspan(entry.offset, entry.num_bytes);
  }
  const MappedFile& mapped() const { return file_; }

  // nullopt: no such key. Another type, or a number that does not fit, throws Error(input).
  std::optional<int64_t> integer(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;  // a float as its shortest decimal
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string> text(std::string_view key) const;  // valid UTF-8
  std::optional<std::vector<std::string_view>> texts(std::string_view key) const;
  std::optional<std::vector<int64_t>> integers(std::string_view key) const;
  bool is_array(std::string_view key) const;
  std::vector<std::string> keys_with(std::string_view prefix) const;

  // Throws Error(input): "FILE: KEY must be EXPECTED, found FOUND".
  [[noreturn]] void refuse(std::string_view key, std::string_view expected,
                           std::string_view found) const;
  [[noreturn]] void refuse_absent(std::string_view key) const;

 private:
  File(MappedFile file, Header header) : file_(std::move(file)), header_(std::move(header)) {}
  const Value* find(std::string_view key) const;
  const Value* find_one(std::string_view key) const;   // an array is refused
  const Value* find_many(std::string_view key) const;  // a single value is refused

  MappedFile file_;
  Header header_;
};

}  // namespace dsmoe::store::gguf

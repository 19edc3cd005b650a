// Parts of tensors, written into files that somebody else has begun and will finish.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/safetensors.h"

namespace dsmoe::store {

class SharedTensors {
 public:
  // Safetensors files of their full length, whose tensors have different names.
  explicit SharedTensors(std::span<const std::filesystem::path> paths);
  ~SharedTensors();
  SharedTensors(const SharedTensors&) = delete;
  SharedTensors& operator=(const SharedTensors&) = delete;

  // `bytes` of a tensor, from `offset` within it.
  void write(std::string_view name, uint64_t offset, std::span<const std::byte> bytes);
  // What was written outlives a power cut. Returns how many bytes that was.
  uint64_t finish();

 private:
  struct Place {
    std::size_t file;
    TensorEntry entry;
  };
  std::vector<std::filesystem::path> paths_;
  std::vector<int> descriptors_;
  std::map<std::string, Place, std::less<>> places_;
  uint64_t written_ = 0;
};

}  // namespace dsmoe::store

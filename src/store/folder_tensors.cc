// Views of mapped files, given back as they are used.
#include "store/folder_tensors.h"

#include <utility>

namespace dsmoe::store {

void FolderTensors::expect(std::vector<std::string> names) {
  read_ahead_.emplace(folder_, std::move(names));
}

tensor::TensorView FolderTensors::tensor(const std::string& name) {
  const TensorEntry& entry = folder_.at(name);
  // Mapped read-only: consumers of a source only read.
  auto* data = const_cast<std::byte*>(folder_.bytes(name).data());
  return {.data = data, .dtype = entry.dtype, .shape = entry.shape};
}

void FolderTensors::release(const std::string& name) {
  folder_.release(name);
  if (read_ahead_) read_ahead_->used(folder_.at(name).num_bytes);
}

void FolderTensors::release_part(const std::string& name, int64_t first, int64_t count) {
  const auto element = static_cast<uint64_t>(tensor::size_of(folder_.at(name).dtype));
  folder_.release(name, static_cast<uint64_t>(first) * element,
                  static_cast<uint64_t>(count) * element);
}

}  // namespace dsmoe::store

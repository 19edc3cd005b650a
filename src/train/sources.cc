// Tensors from files, converted one at a time.
#include "train/sources.h"

#include "kernels/pack.h"

namespace dsmoe::train {

tensor::TensorView FolderTensors::tensor(const std::string& name) {
  const store::TensorEntry& entry = folder_.at(name);
  // Mapped read-only: consumers of a source only read.
  auto* data = const_cast<std::byte*>(folder_.bytes(name).data());
  return {.data = data, .dtype = entry.dtype, .shape = entry.shape};
}

tensor::TensorView StoredTensors::tensor(const std::string& name) {
  const tensor::TensorView source = base_.tensor(name);
  tensor::TensorView stored{.dtype = stored_.at(name).spec.dtype, .shape = source.shape};
  if (source.dtype == stored.dtype) return source;
  values_.resize(stored.num_bytes());
  stored.data = values_.data();
  kernels::convert_elements(source, stored);
  return stored;
}

}  // namespace dsmoe::train

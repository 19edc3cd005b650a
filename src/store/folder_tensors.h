// A model folder's tensors where its files are mapped.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "store/hf_folder.h"
#include "store/read_ahead.h"
#include "tensor/tensor_source.h"

namespace dsmoe::store {

// Mapped for as long as it lives, also when the folder is removed meanwhile.
class FolderTensors : public tensor::TensorSource {
 public:
  explicit FolderTensors(HfFolder folder) : folder_(std::move(folder)) {}

  std::string what() const override { return folder_.path().string(); }
  void expect(std::vector<std::string> names) override;
  tensor::TensorView tensor(const std::string& name) override;
  void release(const std::string& name) override;
  void release_part(const std::string& name, int64_t first, int64_t count) override;

 private:
  HfFolder folder_;
  std::optional<ReadAhead> read_ahead_;
};

}  // namespace dsmoe::store

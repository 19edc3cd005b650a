// Where a run's tensors come from: a model folder, and any source seen in the type a run stores.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/inventory.h"
#include "store/hf_folder.h"
#include "tensor/tensor_source.h"

namespace dsmoe::train {

// Mapped for as long as it lives, also when the folder is removed meanwhile.
class FolderTensors : public tensor::TensorSource {
 public:
  explicit FolderTensors(store::HfFolder folder) : folder_(std::move(folder)) {}
  tensor::TensorView tensor(const std::string& name) override;
  void release(const std::string& name) override { folder_.release(name); }

 private:
  store::HfFolder folder_;
};

// `base` rounded to what the run's checkpoints hold, so that a forward pass never sees more
// precision than a reader of the checkpoint. Valid until the next call.
class StoredTensors : public tensor::TensorSource {
 public:
  StoredTensors(tensor::TensorSource& base, const model::ModelConfig& config)
      : base_(base), stored_(model::stored_parameters(config)) {}
  tensor::TensorView tensor(const std::string& name) override;
  void release(const std::string& name) override { base_.release(name); }

 private:
  tensor::TensorSource& base_;
  std::map<std::string, model::StoredParameter> stored_;
  std::vector<std::byte> values_;
};

}  // namespace dsmoe::train

// Where a run's parameters come from: any source, seen in the type a run stores.
#pragma once

#include <memory>
#include <vector>

#include "base/thread_pool.h"
#include "model/parameter_source.h"
#include "store/hf_folder.h"

namespace dsmoe::train {

// The parameters of a model folder, mapped for as long as the source lives, also when the folder is
// removed meanwhile. `names`: the config's, or of a checkpoint, kDeepseekNames.
std::unique_ptr<model::ParameterSource> folder_parameters(store::HfFolder folder,
                                                          model::NameMap names,
                                                          const model::ModelConfig& config,
                                                          ThreadPool& pool);

// `base` rounded to what the run's checkpoints hold, so that a forward pass never sees more
// precision than a reader of the checkpoint. Valid until the next call.
class RoundedParameters : public model::ParameterSource {
 public:
  RoundedParameters(model::ParameterSource& base, const model::ModelConfig& config)
      : base_(base), of_model_(config.torch_dtype) {}
  model::StoredTensor tensor(const model::Parameter& parameter) override;
  void release(const model::Parameter& parameter) override { base_.release(parameter); }

 private:
  model::ParameterSource& base_;
  tensor::DType of_model_;
  std::vector<std::byte> values_;
};

}  // namespace dsmoe::train

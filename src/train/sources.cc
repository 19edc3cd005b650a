// Parameters from files, converted one at a time.
#include "train/sources.h"

#include "kernels/pack.h"
#include "model/file_layout.h"
#include "store/folder_tensors.h"

namespace dsmoe::train {

std::unique_ptr<model::ParameterSource> folder_parameters(store::HfFolder folder,
                                                          model::NameMap names,
                                                          const model::ModelConfig& config,
                                                          ThreadPool& pool) {
  return std::make_unique<model::FileParameters>(
      std::make_unique<store::FolderTensors>(std::move(folder)), names, config, pool);
}

model::StoredTensor RoundedParameters::tensor(const model::Parameter& parameter) {
  const model::StoredTensor source = base_.tensor(parameter);
  tensor::TensorView rounded{.dtype = model::stored_type(parameter, of_model_),
                             .shape = source.elements.shape};
  if (source.elements.dtype == rounded.dtype) return source;
  values_.resize(rounded.num_bytes());
  rounded.data = values_.data();
  kernels::convert_elements(source.elements, rounded);
  return {.elements = rounded};
}

}  // namespace dsmoe::train

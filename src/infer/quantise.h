// A model folder with floating weights -> one with integers (tensor/quantised.h), tensor by tensor.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "base/function_ref.h"
#include "infer/load_model.h"
#include "infer/sequence/trace.h"
#include "kernels/context.h"
#include "model/inventory.h"

namespace dsmoe::infer {

struct QuantisedTensor : model::Parameter {
  double error = 0;  // norm(quantised - original) / norm(original); 0 for a tensor of zeros
};

struct QuantiseOptions {
  model::Quantization quantization;  // a tied head stays as it is, whatever is asked for
  const std::atomic<bool>* cancelled = nullptr;
};

// Writes `target`, which appears whole or not at all: integers and scales, every other tensor and
// the tokenizer's files as they are, and config.json with the quantization and torch_dtype
// bfloat16. Memory: a few rows at a time. Throws Error(input) on a folder that is quantised
// already, weights that are not finite, or what load_model would refuse.
Outcome quantise_folder(const kernels::Context& context, const std::filesystem::path& source,
                        const std::filesystem::path& target, const QuantiseOptions& options,
                        FunctionRef<void(const QuantisedTensor& tensor)> report);

// The model that load_model() gives of the folder that quantise_folder() would write. Forward
// passes only, and no packed image.
std::unique_ptr<model::Model> load_quantised(const kernels::Context& context,
                                             const std::filesystem::path& source,
                                             const model::Quantization& quantization,
                                             const LoadOptions& options);

}  // namespace dsmoe::infer

// The weights of a model wherever they lie: a Hugging Face folder, or a GGUF file.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "base/thread_pool.h"
#include "model/config.h"
#include "tensor/tensor_source.h"

namespace dsmoe::model {

struct WeightFiles {
  std::unique_ptr<tensor::TensorSource> tensors;
  std::vector<std::filesystem::path> files;  // that hold them
};

// `config` is what read_config() made of the same path. Reads headers only; every missing, extra or
// mis-shaped tensor is named with Error(input).
WeightFiles open_weights(const std::filesystem::path& path, const ModelConfig& config,
                         ThreadPool& pool);

}  // namespace dsmoe::model

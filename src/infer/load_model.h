// A model folder or a GGUF file -> a model ready to run.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "model/language_model.h"

namespace dsmoe::infer {

// beside_model: weights come from the packed image in the model folder (docs/formats.md); where
// there is none, or one of other weights, or a damaged one, they are loaded and the image is
// written. Where it cannot be written, a warning says so. CPU and forward passes only.
enum class PackedCache : uint8_t { none, beside_model };

struct LoadOptions {
  std::optional<kernels::DType>
      operand;          // absent: the type the config names (F16 computes in BF16)
  int64_t context = 0;  // 0: max_position_embeddings
  moe::Passes passes = moe::Passes::forward;
  PackedCache cache = PackedCache::none;
};

// The image in a model folder, or beside a GGUF file, for a compute type.
std::filesystem::path packed_image_path(const std::filesystem::path& model, kernels::DType operand);

// The compute type a checkpoint asks for.
kernels::DType default_operand(const model::ModelConfig& config);

// The experts per token of a run: `asked`, or the model's when 0. Throws Error(input) when the
// model cannot choose so many.
int64_t checked_top_k(const model::ModelConfig& config, int64_t asked);

// Every missing, extra or mis-shaped tensor is named before anything is read.
std::unique_ptr<model::Model> load_model(const kernels::Context& context,
                                         const std::filesystem::path& folder,
                                         const LoadOptions& options);

}  // namespace dsmoe::infer

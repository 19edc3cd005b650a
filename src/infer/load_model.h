// A model folder -> a model ready to run.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "model/language_model.h"

namespace dsmoe::infer {

struct LoadOptions {
  std::optional<kernels::DType>
      operand;          // absent: the type the config names (F16 computes in BF16)
  int64_t context = 0;  // 0: max_position_embeddings
  moe::Passes passes = moe::Passes::forward;
};

model::ModelConfig read_config(const std::filesystem::path& folder);

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

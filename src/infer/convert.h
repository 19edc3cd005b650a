// A model folder -> a GGUF file, and back.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <optional>

#include "base/function_ref.h"
#include "infer/sequence/trace.h"
#include "kernels/context.h"
#include "store/gguf/tensor_type.h"
#include "tensor/dtype.h"

namespace dsmoe::infer {

// Parameters done.
using ConvertProgress = FunctionRef<void(int64_t done)>;

struct GgufOptions {
  // Of matrices. Vectors and routers are F32; embedding and head are Q8_0 where this is Q4_0.
  store::gguf::TensorType type = store::gguf::TensorType::BF16;
  const std::atomic<bool>* cancelled = nullptr;
};

// Writes `target`, which appears whole or not at all: weights, configuration, tokenizer and chat
// template of the model folder `source`. Memory: a few rows at a time. Throws Error(input) for what
// the format cannot say, and for weights that are not finite or beyond the type's range.
Outcome write_gguf(const kernels::Context& context, const std::filesystem::path& source,
                   const std::filesystem::path& target, const GgufOptions& options,
                   ConvertProgress progress);

struct FolderOptions {
  // Of all weights; absent: as the file has them, and F32 for the numbers that blocks stand for.
  std::optional<tensor::DType> type;
  const std::atomic<bool>* cancelled = nullptr;
};

// Writes the model folder `target` from the GGUF file `source`. Vectors and routers become the
// folder's type where that loses nothing.
Outcome write_folder(const kernels::Context& context, const std::filesystem::path& source,
                     const std::filesystem::path& target, const FolderOptions& options,
                     ConvertProgress progress);

}  // namespace dsmoe::infer

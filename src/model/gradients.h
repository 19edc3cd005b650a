// Buffers for the gradients of all parameters, or of those that a run trains.
#pragma once

#include <string>
#include <vector>

#include "base/function_ref.h"
#include "base/thread_pool.h"
#include "model/block.h"

namespace dsmoe::model {

struct Gradients {
  TensorView embedding;  // [vocabulary, hidden], or absent
  TensorView head;  // [1, vocabulary, hidden], or absent; apart from the embedding's even when tied
  TensorView final_norm;  // [hidden]
  std::vector<BlockGradients> blocks;
};

// One stored tensor's gradient. A tied embedding has two parts: the look-up's, then the head's.
struct NamedGradient {
  std::string name;
  std::size_t parameter = 0;  // of the inventory
  TensorView gradient;
  TensorView second_part;    // absent but for a tied embedding
  bool is_assigned = false;  // by the first micro-batch of a step (kernels::GradientStart)
};

// The second part's numbers join the first's.
void join_tied(ThreadPool& pool, const NamedGradient& gradient);

struct GradientBuffers {
  Gradients views;
  std::vector<NamedGradient> named;  // those wanted, sorted by name
};

// F32 (F64 for F64), zero. `wanted` is asked once per tensor name; memory is taken for wanted
// tensors only (q, k and v of a layer together; gate, up and down of an expert together). The
// selection bias has no gradient. `all`: of the model, which may be a share.
GradientBuffers allocate_gradients(const Context& context, const Inventory& all, DType operand,
                                   FunctionRef<bool(const Parameter& parameter)> wanted,
                                   tensor::Arena& arena);
// All that a whole model holds, by name.
GradientBuffers allocate_gradients(const Context& context, const ModelConfig& config, DType operand,
                                   FunctionRef<bool(const std::string& name)> wanted,
                                   tensor::Arena& arena);

}  // namespace dsmoe::model

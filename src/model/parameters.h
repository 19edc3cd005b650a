// The weights of a language model, in the type and layout its backend computes with: the memory of
// what inventory.h lists.
#pragma once

#include <string>
#include <vector>

#include "attention/weights.h"
#include "kernels/context.h"
#include "model/parameter_source.h"
#include "moe/layer.h"
#include "tensor/arena.h"

namespace dsmoe::model {

using kernels::Context;
using kernels::DType;
using kernels::TensorView;
using kernels::WeightStack;

struct BlockWeights {
  TensorView attention_norm;  // [hidden]
  attention::Weights attention;
  TensorView ffn_norm;  // [hidden]
  moe::LayerWeights ffn;
};

struct Parameters {
  TensorView embedding;  // [vocabulary, hidden], operand type
  std::vector<BlockWeights> blocks;
  TensorView final_norm;  // [hidden]
  WeightStack head;       // [vocabulary, hidden]; a copy of the embedding when tied
};

// The same matrices transposed, for the products of the backward pass: copies, or the same memory
// where the table takes transposes.
struct BlockTransposed {
  attention::Transposed attention;
  moe::LayerTransposed ffn;
};

struct TransposedParameters {
  std::vector<BlockTransposed> blocks;
  WeightStack head;  // [hidden, vocabulary]
};

// Where one stored tensor goes: to `values` (norms, biases, the embedding), or into a matrix and
// perhaps the copy that is its transpose.
struct Placement {
  std::string name;
  std::size_t parameter = 0;  // of the inventory
  TensorView values;
  WeightStack weight;
  WeightStack transposed;
  // Instead of `weight`: heads of keys and values one below the other go to matrices of their own.
  WeightStack key_up;    // heads x [kv_rank, nope], transposed
  WeightStack value_up;  // heads x [value, kv_rank]
  int64_t matrix_idx = 0;
  int64_t row_begin = 0;
};

struct ParameterSet {
  Inventory inventory;
  Parameters forward;
  TransposedParameters backward;      // empty without moe::Passes::forward_and_backward
  std::vector<Placement> placements;  // those of the inventory, in its order
};

// Memory for the weights of a share; `operand` is BF16, F32 or F64.
ParameterSet allocate_parameters(const Context& context, const ModelConfig& config,
                                 const Share& share, DType operand, moe::Passes passes,
                                 tensor::Arena& arena);

// Converts stored rows into their place.
void place_tensor(const Context& context, const Placement& placement, const StoredTensor& stored);

// All parameters, one after the other and some rows at a time, so that memory peaks at the model
// plus what the source holds of a few rows.
void load_parameters(const Context& context, const ParameterSet& parameters,
                     ParameterSource& source);

}  // namespace dsmoe::model

// The weights of a language model, in the type and layout its backend computes with: the memory of
// what inventory.h lists.
#pragma once

#include <string>
#include <vector>

#include "kernels/context.h"
#include "model/inventory.h"
#include "moe/layer.h"
#include "tensor/arena.h"
#include "tensor/tensor_source.h"

namespace dsmoe::model {

using kernels::Context;
using kernels::DType;
using kernels::TensorView;
using kernels::WeightStack;
using tensor::TensorSource;

struct AttentionWeights {
  WeightStack qkv;      // [(heads + 2 * kv_heads) * head_dim, hidden]: q, then k, then v
  TensorView qkv_bias;  // [(heads + 2 * kv_heads) * head_dim], or absent
  WeightStack out;      // [hidden, heads * head_dim]
  TensorView out_bias;  // [hidden], or absent
};

struct BlockWeights {
  TensorView attention_norm;  // [hidden]
  AttentionWeights attention;
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
  WeightStack qkv;  // [hidden, (heads + 2 * kv_heads) * head_dim]
  WeightStack out;  // [heads * head_dim, hidden]
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
  int64_t matrix_idx = 0;
  int64_t row_begin = 0;
};

struct ParameterSet {
  Inventory inventory;
  Parameters forward;
  TransposedParameters backward;      // empty without moe::Passes::forward_and_backward
  std::vector<Placement> placements;  // those of the inventory, in its order
};

// Memory for all weights; `operand` is BF16, F32 or F64.
ParameterSet allocate_parameters(const Context& context, const ModelConfig& config, DType operand,
                                 moe::Passes passes, tensor::Arena& arena);

// Rows of one stored tensor, row-major, in host memory; integers come with their scales.
struct StoredTensor {
  TensorView elements;
  TensorView scale;       // [rows, groups] BF16, or absent
  int64_t row_begin = 0;  // within the tensor
};

// Converts stored rows into their place.
void place_tensor(const Context& context, const Placement& placement, const StoredTensor& stored);

// All tensors, one after the other and some rows at a time, so that memory peaks at the model plus
// what the source holds of a few rows.
void load_parameters(const Context& context, const ParameterSet& parameters, TensorSource& source);

}  // namespace dsmoe::model

// The weights of a language model, in the type and layout its backend computes with. This file is
// the architecture.
#pragma once

#include <string>
#include <vector>

#include "kernels/context.h"
#include "model/config.h"
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

// `operand` is BF16, F32 or F64. Reads one tensor at a time, so memory peaks at the model plus one
// tensor.
Parameters load_parameters(const Context& context, const ModelConfig& config, DType operand,
                           TensorSource& source, tensor::Arena& arena);

}  // namespace dsmoe::model

// The parameters of an attention part, their transposes, and their gradients.
#pragma once

#include "kernels/layout.h"

namespace dsmoe::attention {

using kernels::DType;
using kernels::TensorView;
using kernels::WeightStack;

struct Weights {
  WeightStack qkv;      // one matrix [q + k + v, hidden]: q, then k, then v
  TensorView qkv_bias;  // [q + k + v], or absent
  WeightStack out;      // one matrix [hidden, outputs of all heads]
  TensorView out_bias;  // [hidden], or absent
};

// The same matrices transposed, for the products of the backward pass: copies, or the same memory
// where the table takes transposes.
struct Transposed {
  WeightStack qkv;  // [hidden, q + k + v]
  WeightStack out;  // [outputs of all heads, hidden]
};

// F32 (F64), accumulated; absent ones are not computed.
struct Gradients {
  TensorView qkv;       // [1, q + k + v, hidden]
  TensorView qkv_bias;  // [q + k + v]
  TensorView out;       // [1, hidden, outputs of all heads]
  TensorView out_bias;  // [hidden]
};

}  // namespace dsmoe::attention

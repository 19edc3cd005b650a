// The parameters of an attention part, their transposes, and their gradients.
#pragma once

#include "kernels/layout.h"

namespace dsmoe::attention {

using kernels::DType;
using kernels::TensorView;
using kernels::WeightStack;

struct Weights {
  // One matrix that x is multiplied by: [q + k + v, hidden], q first; or in latent attention
  // [q or its latent + kv_rank + rope, hidden].
  WeightStack qkv;
  TensorView qkv_bias;   // [q + k + v], or absent
  TensorView q_norm;     // of each head [key_width], or of q's latent [q_rank]; or absent
  TensorView k_norm;     // of each head [key_width], or of the latent [kv_rank]; or absent
  WeightStack q_up;      // [heads * (nope + rope), q_rank]: from q's latent; or absent
  WeightStack kv_up;     // [heads * (nope + value), kv_rank]; expanded only
  WeightStack key_up;    // heads x [kv_rank, nope], transposed; absorbed only, like the next
  WeightStack value_up;  // heads x [value, kv_rank]
  WeightStack out;       // one matrix [hidden, outputs of all heads]
  TensorView out_bias;   // [hidden], or absent
};

// The same matrices transposed, for the products of the backward pass: copies, or the same memory
// where the table takes transposes.
struct Transposed {
  WeightStack qkv;    // [hidden, q + k + v]
  WeightStack q_up;   // [q_rank, heads * (nope + rope)]
  WeightStack kv_up;  // [kv_rank, heads * (nope + value)]
  WeightStack out;    // [outputs of all heads, hidden]
};

// F32 (F64), accumulated; absent ones are not computed.
struct Gradients {
  TensorView qkv;       // [1, q + k + v, hidden]
  TensorView qkv_bias;  // [q + k + v]
  TensorView q_norm;
  TensorView k_norm;
  TensorView q_up;      // [1, heads * (nope + rope), q_rank]
  TensorView kv_up;     // [1, heads * (nope + value), kv_rank]
  TensorView out;       // [1, hidden, outputs of all heads]
  TensorView out_bias;  // [hidden]
};

}  // namespace dsmoe::attention

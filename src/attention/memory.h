// The memory of an attention part's passes, in three types: what the forward pass leaves behind,
// what only a running pass needs, and the gradients on their way.
#pragma once

#include "attention/shape.h"
#include "attention/weights.h"
#include "kernels/passes.h"
#include "tensor/arena.h"

namespace dsmoe::attention {

// What the forward pass leaves for the backward pass, besides keys and values in their pages.
// Absent views belong to parts of other shapes.
struct Tape {
  TensorView q;          // [tokens, heads, key_width], operand type
  TensorView out;        // [tokens, heads, value_width], operand type
  TensorView log_sums;   // [tokens, heads] F32; in training only
  TensorView q_in;       // what q's norm reads: [tokens, q] F32, or its latent [tokens, q_rank]
  TensorView k_in;       // [tokens, k] F32, or [tokens, kv_rank]
  TensorView q_latent;   // [tokens, q_rank], operand type: normalised, like the next
  TensorView kv_latent;  // [tokens, kv_rank], operand type; expanded only
};

// What only a running pass needs.
struct Workspace {
  TensorView qkv;         // [tokens, q + k + v] F32
  TensorView normed;      // [tokens, q, or kv_rank] F32
  TensorView projected;   // [tokens, projected_width] F32; latent only, like the rest
  TensorView q_heads;     // [tokens, heads * (nope + rope)] F32
  TensorView kv_heads;    // [tokens, heads * (nope + value)] F32
  TensorView q_nope;      // [tokens, heads, nope], operand type
  TensorView q_absorbed;  // [tokens, heads, kv_rank], operand type
  TensorView merged;      // [tokens, heads, value], operand type
};

// The gradients between those of the part's output and of its input; absent without a backward
// pass.
struct RowGradients {
  TensorView d_out;          // [tokens, heads * value_width] F32
  TensorView d_out_rounded;  // [tokens, heads, value_width], operand type
  TensorView d_qkv;          // [tokens, q + k + v] F32
  TensorView d_projected;    // [tokens, projected_width], operand type: of what x is multiplied to
  TensorView d_turned_back;  // [tokens, q + k + v] F32; where there is a norm, like the next two
  TensorView d_normed;       // [tokens, a norm's outputs] F32
  TensorView d_in;           // [tokens, a norm's inputs] F32
  TensorView d_q_heads;      // [tokens, heads * (nope + rope)], operand type; latent, like the rest
  TensorView d_kv_heads;     // [tokens, heads * (nope + value)], operand type
  TensorView d_shared_key;   // [tokens, rope] F32
};

struct Memory {
  Tape tape;
  Workspace workspace;
  RowGradients gradients;
};

struct Size {
  Shape shape;
  int64_t max_tokens = 0;
  kernels::Passes passes = kernels::Passes::forward;
};

// `common`: a part of this size that runs before or after this one, whose workspace and gradients
// this one uses too.
Memory allocate_memory(const Size& size, tensor::Arena& arena, const Memory* common = nullptr);

// What a call on `tokens` tokens uses.
Memory used_part(const Memory& memory, int64_t tokens);

}  // namespace dsmoe::attention

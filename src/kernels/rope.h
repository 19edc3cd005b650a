// Rotary positions on q and k, and the writing of k and v into the KV cache.
#pragma once

#include "kernels/attempt.h"
#include "kernels/context.h"
#include "kernels/kv_pages.h"
#include "kernels/layout.h"

namespace dsmoe::kernels {

// Each row of qkv holds query heads, then key heads, then value heads, each head_dim wide.
// q and k are rotated (half-split: dimension i pairs with i + head_dim / 2) and rounded; v is
// rounded.
struct RopeForward {
  TensorView qkv;  // [tokens, (heads + 2 * kv_heads) * head_dim] F32 (F64)
  TensorView cos;  // [positions, head_dim / 2] F32, also when qkv is F64: the table is an input
  TensorView sin;  // [positions, head_dim / 2] F32
  TensorView position;  // [tokens] I32, from the start of the document
  TensorView kv_slot;   // [tokens] I32: page * 64 + place in the page
  TensorView q;         // [tokens, heads, head_dim], operand type, written
  KvPages kv;           // written at kv_slot
};
void rope_forward(const Context& context, const RopeForward& args);

// The projection to q, k and v, its rotation and the writing into the KV cache in one pass. It may
// decline; a matmul_forward and a rope_forward give the same bits.
struct QkvForward {
  TensorView x;        // [tokens, hidden], operand type
  WeightStack weight;  // one matrix [(heads + 2 * kv_heads) * head_dim, hidden]
  TensorView bias;     // F32, or absent
  TensorView cos;      // as above
  TensorView sin;
  TensorView position;
  TensorView kv_slot;
  TensorView q;
  KvPages kv;
};
Attempt qkv_forward(const Context& context, const QkvForward& args);

// Rotates back the gradients of q and k, and rounds all three.
struct RopeBackward {
  TensorView d_qkv;  // [tokens, (heads + 2 * kv_heads) * head_dim] F32 (F64)
  TensorView cos;
  TensorView sin;
  TensorView position;  // [tokens] I32
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  TensorView out;  // same shape, operand type, written
};
void rope_backward(const Context& context, const RopeBackward& args);

}  // namespace dsmoe::kernels

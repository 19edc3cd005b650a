// Rotary positions on q and k, and the writing of k and v into the KV cache.
#pragma once

#include "kernels/attempt.h"
#include "kernels/context.h"
#include "kernels/kv_pages.h"
#include "kernels/layout.h"

namespace dsmoe::kernels {

// Which numbers turn together.
enum class RotaryPairs : uint8_t {
  halves,      // i and i + half
  neighbours,  // 2i and 2i + 1
};

// The part of a head that turns: 2 * cos.dim(1) numbers from `begin` on. The others pass.
struct Rotation {
  int64_t begin = 0;
  RotaryPairs pairs = RotaryPairs::halves;
};

// Each row of qkv holds query heads, then key heads, then value heads where values are numbers of
// their own (KvShape). q and k are rotated and rounded; v is rounded.
struct RopeForward {
  TensorView qkv;  // [tokens, heads * key_width + kv.shape.projected_width()] F32 (F64)
  TensorView cos;  // [positions, half] F32, also when qkv is F64: the table is an input
  TensorView sin;  // [positions, half] F32
  Rotation rotation;
  TensorView position;  // [tokens] I32, from the start of the document
  TensorView kv_slot;   // [tokens] I32: page * 64 + place in the page
  TensorView q;         // [tokens, heads, key_width], operand type, written
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

// Rotates back the gradients of q and k, and rounds all three. Values are numbers of their own.
struct RopeBackward {
  TensorView d_qkv;  // [tokens, (heads + kv_heads) * key_width + kv_heads * value_width] F32 (F64)
  TensorView cos;
  TensorView sin;
  Rotation rotation;
  TensorView position;  // [tokens] I32
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t key_width = 0;
  TensorView out;  // same shape, operand type, written
};
void rope_backward(const Context& context, const RopeBackward& args);

}  // namespace dsmoe::kernels

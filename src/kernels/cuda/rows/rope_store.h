// Where a rotation finds its angles, and q, keys and values their places; kernels/rope.h.
#pragma once

#include <cstdint>

#include "kernels/kv_pages.h"
#include "kernels/layout.h"

namespace dsmoe::kernels::cuda {

struct RopeStore {
  const float* cos;  // [positions, head_dim / 2]
  const float* sin;
  const int32_t* position;  // [rows]
  const int32_t* kv_slot;   // [rows]
  void* q;                  // [rows, heads, head_dim], operand type
  void* keys;               // KV pages, row-major
  void* values;
  int32_t heads;
  int32_t kv_heads;
  int32_t head_dim;
};

// Args is that of any op that rotates: RopeForward, QkvForward, FewTokensQkv.
template <class Args>
RopeStore rope_store_of(const Args& args) {
  return {.cos = args.cos.template as<float>(),
          .sin = args.sin.template as<float>(),
          .position = args.position.template as<int32_t>(),
          .kv_slot = args.kv_slot.template as<int32_t>(),
          .q = args.q.data,
          .keys = args.kv.keys,
          .values = args.kv.values,
          .heads = static_cast<int32_t>(args.q.dim(1)),
          .kv_heads = static_cast<int32_t>(args.kv.shape.heads),
          .head_dim = static_cast<int32_t>(args.q.dim(2))};
}

}  // namespace dsmoe::kernels::cuda

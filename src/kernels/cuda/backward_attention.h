// What the kernels of attention's backward pass are given.
#pragma once

#include <vector_types.h>

#include <cstdint>

#include "kernels/context.h"
#include "kernels/layout.h"

namespace dsmoe::kernels::cuda {

struct AttentionBackwardParameters {
  const void* q;
  const void* keys;
  const void* values;
  const int32_t* q_starts;
  const int32_t* page_table;
  const void* out;
  const void* d_out;
  float* d_qkv;
  const float* log_sums;  // [tokens, heads]: log2 of the sum of exp(score); tiles only
  float4* statistics;     // [tokens, heads], made on the way: maximum, 1 / sum, d_out . out
  float scale;
  int32_t sequences;
  int32_t max_pages;
  int32_t heads;
  int32_t kv_heads;
  int32_t head_dim;

#ifdef __CUDACC__
  // What the tiles keep there: log_sums, (d_out . out) * scale.
  __device__ float2* tile_statistics() const { return reinterpret_cast<float2*>(statistics); }
  // Of a query head, then of key heads, then of value heads.
  __device__ float* gradient_row(int64_t token, int head) const {
    return d_qkv + (token * (heads + 2 * kv_heads) + head) * head_dim;
  }
#endif
};

// fp32, or head sizes the tiles do not take.
void attention_backward_plain(const Context& context, DType dtype,
                              const AttentionBackwardParameters& parameters, int64_t tokens);

}  // namespace dsmoe::kernels::cuda

// What the kernels of attention's backward pass are given.
#pragma once

#include <vector_types.h>

#include <cstdint>

#include "kernels/attention.h"
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
  void* rounded = nullptr;     // bf16 in the shape of d_qkv: rotated back, instead of d_qkv
  const float* cos = nullptr;  // [positions, head_dim / 2], with `rounded`
  const float* sin = nullptr;
  const float* log_sums = nullptr;  // [tokens, heads]: log2 of the sum of exp(score); tiles only
  // Made on the way, for the keys' kernel: [tokens, heads] maximum, 1 / sum, d_out . out; by tiles
  // [pages, heads, 64] log_sums, (d_out . out) * scale.
  float4* statistics = nullptr;
  float2* tile_statistics = nullptr;
  float scale;
  int32_t sequences;
  int32_t pages;
  int32_t max_pages;
  int32_t heads;
  int32_t kv_heads;
  int32_t head_dim;

#ifdef __CUDACC__
  // Query heads come first, then key heads, then value heads.
  __device__ int64_t gradient_offset(int64_t token, int head) const {
    return (token * (heads + 2 * kv_heads) + head) * head_dim;
  }
  __device__ float* gradient_row(int64_t token, int head) const {
    return d_qkv + gradient_offset(token, head);
  }
#endif
};

// The op as devices before Hopper do it.
void attention_backward_portable(const Context& context, const AttentionBackward& args);

// bf16, head sizes that are multiples of 8 up to 128: by tiles, the same bits on any device from
// 8.0 on and by Hopper's own instructions. Those rotate back where head_dim is 64 or 128.
void attention_backward_tiles(const Context& context, const AttentionBackwardParameters& parameters,
                              int64_t tokens);
void attention_backward_hopper(const Context& context,
                               const AttentionBackwardParameters& parameters, int64_t tokens);
inline bool rotates_back(int64_t head_dim) { return head_dim == 64 || head_dim == 128; }

// fp32, or head sizes the tiles do not take.
void attention_backward_plain(const Context& context, DType dtype,
                              const AttentionBackwardParameters& parameters, int64_t tokens);

}  // namespace dsmoe::kernels::cuda

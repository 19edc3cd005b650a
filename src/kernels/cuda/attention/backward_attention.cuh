// What the tiled kernels of attention's backward pass share.
#pragma once

#include "kernels/cuda/attention/attention_steps.cuh"
#include "kernels/cuda/attention/backward_attention.h"

namespace dsmoe::kernels::cuda {

// Positions of one sequence from `first` on.
struct PositionTile {
  int sequence;  // -1: none
  int first;
  int length;       // of the sequence
  int first_token;  // of the sequence
};

// Tile `idx` when every sequence is cut into tiles of kRows positions; found by one warp.
template <int kRows>
__device__ PositionTile find_positions(const AttentionBackwardParameters& p, int idx) {
  const SequenceTile found = find_sequence<kRows>(p.q_starts, p.sequences, 1, idx);
  return {found.sequence, found.first_row, found.all_rows, found.first_token};
}

// The first row of a block of keys or values, in rows of head_dim values.
__device__ inline int64_t page_row(const AttentionBackwardParameters& p, int sequence, int block,
                                   int kv_head) {
  const int64_t page = p.page_table[static_cast<int64_t>(sequence) * p.max_pages + block];
  return (page * p.kv_heads + kv_head) * 64;
}

// Scores become p; `of(t, i)` gives the statistics of the query of s[t][i].
template <class Of>
__device__ void probabilities(float (&s)[8][4], float scale, Of&& of) {
  const float scale2 = scale * kLog2E;
#pragma unroll
  for (int t = 0; t < 8; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[t][i] = exp2_approx(fmaf(s[t][i], scale2, -of(t, i).x));
  }
}
// d_out . v becomes ds.
template <class Of>
__device__ void score_gradients(float (&dp)[8][4], const float (&p)[8][4], float scale, Of&& of) {
#pragma unroll
  for (int t = 0; t < 8; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) dp[t][i] = p[t][i] * fmaf(dp[t][i], scale, -of(t, i).y);
  }
}

// Those of 64 queries that lie in shared memory, of columns 8 t + 2 (lane % 4) and the next: all
// loaded at the start, or each when it is wanted.
template <bool kAhead>
struct PairStatistics {
  uint32_t own;
  float4 pairs[kAhead ? 8 : 1];
  __device__ explicit PairStatistics(uint32_t memory) : own(memory + threadIdx.x % 4 * 16) {
    if constexpr (kAhead) {
#pragma unroll
      for (int t = 0; t < 8; ++t) pairs[t] = load_shared_float4(own + t * 64);
    }
  }
  __device__ float2 operator()(int t, int i) {  // i ascending
    if (!kAhead && i == 0) pairs[0] = load_shared_float4(own + t * 64);
    const float4& pair = pairs[kAhead ? t : 0];
    return i % 2 == 0 ? make_float2(pair.x, pair.y) : make_float2(pair.z, pair.w);
  }
};

// Keys after a query are hidden from it: element (row, column) of a tile where `hidden(row half,
// column)`.
template <class Hidden>
__device__ void hide(float (&s)[8][4], Hidden&& hidden) {
#pragma unroll
  for (int t = 0; t < 8; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (hidden(i / 2, 8 * t + 2 * static_cast<int>(threadIdx.x % 4) + i % 2)) s[t][i] = -INFINITY;
    }
  }
}

// One of the thread's two rows of sums to fp32 memory.
template <int kDim>
__device__ void write_row(const float (&sums)[kDim / 8][4], int half, float* row, int head_dim) {
#pragma unroll
  for (int j = 0; j < kDim / 8; ++j) {
    const int d = 8 * j + 2 * static_cast<int>(threadIdx.x % 4);
    if (d < head_dim)
      *reinterpret_cast<float2*>(row + d) = make_float2(sums[j][2 * half], sums[j][2 * half + 1]);
  }
}

}  // namespace dsmoe::kernels::cuda

// Sixteen rows of a dense product of a few tokens: which they are, and what becomes of their sums.
#pragma once

#include "kernels/cuda/few_tokens/few_tokens.cuh"
#include "kernels/cuda/rows/rope_store.h"
#include "kernels/kv_pages.h"
#include "kernels/layout.h"

namespace dsmoe::kernels::cuda {

constexpr int kMaxFewRows = 32;

// Tile t of the grid is unit t / gridDim.x of block t % gridDim.x; units go to the first
// `ring_warps` warps in turn.
struct Work {
  int32_t tiles;
  int32_t ring_warps;
};

__device__ inline int own_units(const Work& work) {
  return (work.tiles - static_cast<int>(blockIdx.x) + static_cast<int>(gridDim.x) - 1) /
         static_cast<int>(gridDim.x);
}
__device__ inline int tile_of(int unit) { return static_cast<int>(blockIdx.x + unit * gridDim.x); }

struct BestMemory;

struct MatmulParameters {
  const bf16* weight;  // [n, k]
  const bf16* x;       // [tokens, k]
  const float* bias;
  float* out;  // [tokens, n]
  int32_t tokens;
  int32_t n;
  int32_t k;
  int32_t accumulate;
  BestMemory* best;  // where the most likely row of each token is found
  int32_t* index;    // [tokens]: that row; null: not wanted
  Work work;
};

// out = x W^T + bias, or added to it. Made before the sums are: what they are added to is asked for
// early, since behind them each read would wait for the write before it.
template <int kTiles>
struct MatmulTile {
  const MatmulParameters& p;
  int first;
  float old[4 * kTiles];
  float bias[2] = {0, 0};

  __device__ static int token(int i) {
    return i / 4 * 8 + 2 * (static_cast<int>(threadIdx.x) % 4) + i % 2;
  }
  __device__ float* place(int i) const {
    return p.out + static_cast<int64_t>(token(i)) * p.n + first + 8 * (i % 4 / 2);
  }
  __device__ static WeightRows rows(const MatmulParameters& p, int tile) {
    const bf16* low = p.weight + static_cast<int64_t>(tile) * 16 * p.k;
    return {low, low + static_cast<int64_t>(8) * p.k, p.k};
  }

  __device__ MatmulTile(const MatmulParameters& parameters, int tile)
      : p(parameters), first(tile * 16 + static_cast<int>(threadIdx.x) % 32 / 4) {
#pragma unroll
    for (int i = 0; i < 4 * kTiles; ++i)
      old[i] = p.accumulate && token(i) < p.tokens ? *place(i) : 0.0f;
#pragma unroll
    for (int half = 0; half < 2; ++half) bias[half] = p.bias ? p.bias[first + 8 * half] : 0.0f;
  }
  __device__ void store(const float (&sum)[kTiles][4]) const {
#pragma unroll
    for (int i = 0; i < 4 * kTiles; ++i) {
      if (token(i) >= p.tokens) continue;
      float y = sum[i / 4][i % 4];
      if (p.bias) y = y + bias[i % 4 / 2];
      *place(i) = p.accumulate ? old[i] + y : y;
    }
  }
};

struct QkvParameters {
  const bf16* x;  // [tokens, hidden]; null: norm of the residual
  const float* residual;
  const float* norm_weight;
  float eps;
  const bf16* weight;
  const float* bias;
  RopeStore rope;
  int32_t tokens;
  int32_t hidden;
  Work work;
};

// What the rotation needs of a lane's tokens.
template <int kTiles>
struct QkvTokens {
  int position[2 * kTiles];
  int slot[2 * kTiles];

  __device__ static int token(int i) {
    return i / 2 * 8 + 2 * (static_cast<int>(threadIdx.x) % 4) + i % 2;
  }
  __device__ explicit QkvTokens(const QkvParameters& p) {
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) {
      position[i] = p.rope.position[min(token(i), p.tokens - 1)];
      slot[i] = p.rope.kv_slot[min(token(i), p.tokens - 1)];
    }
  }
};

// q, k and v: eight dimensions of a head and the eight they are rotated with. Angles are asked for
// before the sums are made.
template <int kTiles>
struct QkvTile {
  const QkvParameters& p;
  const QkvTokens<kTiles>& tokens;
  int head;
  int d;  // of the lane
  float cosine[2 * kTiles];
  float sine[2 * kTiles];

  __device__ static int head_tiles(const QkvParameters& p) { return p.rope.head_dim / 16; }
  __device__ static int first_row(const QkvParameters& p, int tile) {
    return tile / head_tiles(p) * p.rope.head_dim + tile % head_tiles(p) * 8;
  }
  __device__ static WeightRows rows(const QkvParameters& p, int tile) {
    const bf16* low = p.weight + static_cast<int64_t>(first_row(p, tile)) * p.hidden;
    return {low, low + static_cast<int64_t>(p.rope.head_dim / 2) * p.hidden, p.hidden};
  }

  __device__ QkvTile(const QkvParameters& parameters, const QkvTokens<kTiles>& of_tokens, int tile)
      : p(parameters),
        tokens(of_tokens),
        head(tile / head_tiles(p)),
        d(tile % head_tiles(p) * 8 + static_cast<int>(threadIdx.x) % 32 / 4) {
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) {
      const int64_t angle = static_cast<int64_t>(tokens.position[i]) * (p.rope.head_dim / 2) + d;
      cosine[i] = p.rope.cos[angle];
      sine[i] = p.rope.sin[angle];
    }
  }
  __device__ void store(const float (&sum)[kTiles][4]) const {
    const RopeStore& rope = p.rope;
    const int half = rope.head_dim / 2;
    const bool is_value = head >= rope.heads + rope.kv_heads;
    const int kv_head = (head - rope.heads) % rope.kv_heads;  // unless a query head
    const int row = head * rope.head_dim + d;
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) {
      const int token = QkvTokens<kTiles>::token(i);
      if (token >= p.tokens) continue;
      float a = sum[i / 2][i % 2];
      float b = sum[i / 2][2 + i % 2];
      if (p.bias) {
        a = a + p.bias[row];
        b = b + p.bias[row + half];
      }
      if (!is_value) {
        const float rotated = fmaf(a, cosine[i], -(b * sine[i]));
        b = fmaf(b, cosine[i], a * sine[i]);
        a = rotated;
      }
      const int slot = tokens.slot[i];
      const int64_t page = slot / kKeyBlock;
      bf16* target = head < rope.heads
                         ? static_cast<bf16*>(rope.q) +
                               (static_cast<int64_t>(token) * rope.heads + head) * rope.head_dim
                         : static_cast<bf16*>(is_value ? rope.values : rope.keys) +
                               ((page * rope.kv_heads + kv_head) * kKeyBlock + slot % kKeyBlock) *
                                   rope.head_dim;
      round_into(target[d], a);
      round_into(target[d + half], b);
    }
  }
};

}  // namespace dsmoe::kernels::cuda

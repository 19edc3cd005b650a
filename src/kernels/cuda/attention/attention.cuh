// What the attention kernels share: the tile of queries, the loading of key blocks, and the fixed
// order of every sum.
#pragma once

#include "kernels/context.h"
#include "kernels/cuda/device/ptx.cuh"
#include "kernels/layout.h"

namespace dsmoe::kernels::cuda {

struct AttentionParameters {
  const void* q;
  const void* keys;
  const void* values;
  const int32_t* q_starts;
  const int32_t* position;
  const int32_t* page_table;
  void* out;
  float* log_sums;  // [tokens, heads], or null: log2 of the sum of exp(score)
  float scale;
  int32_t sequences;
  int32_t pages;
  int32_t max_pages;
  int32_t heads;
  int32_t kv_heads;
  int32_t head_dim;
};

// For bf16 and head sizes up to 128, where a sequence has more than a few rows.
void attention_of_many(const Context& context, const AttentionParameters& p, int64_t tokens);
// The two ways, of equal bits: on any device from 8.0 on, and by Hopper's own instructions.
void attention_of_many_portable(const Context& context, const AttentionParameters& p,
                                int64_t tokens);
bool attention_fits_hopper(const AttentionParameters& p);
void attention_of_many_hopper(const Context& context, const AttentionParameters& p, int64_t tokens);

// Queries of one sequence and one KV head: row r is token r / group of the sequence, query head r %
// group of the KV head.
struct QueryTile {
  int sequence;  // -1: none
  int first_row;
  int num_rows;
  int first_token;
};

// A tile of one sequence.
struct SequenceTile {
  int sequence;  // -1: none
  int first_row;
  int all_rows;  // of the sequence
  int first_token;
};

// Tile `idx` when every sequence, with `group` rows to a token, is cut into tiles of kRows rows;
// found by one warp.
template <int kRows>
__device__ SequenceTile find_sequence(const int32_t* starts, int sequences, int group, int idx) {
  const int lane = threadIdx.x % 32;
  int base = 0;
  for (int s0 = 0; s0 < sequences; s0 += 32) {
    const int s = s0 + lane;
    const int begin = s < sequences ? starts[s] : 0;
    const int rows = s < sequences ? (starts[s + 1] - begin) * group : 0;
    const int tiles = (rows + kRows - 1) / kRows;
    int sum = tiles;
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += other;
    }
    const int mine = base + sum - tiles;
    const unsigned found = __ballot_sync(~0u, idx >= mine && idx < mine + tiles);
    if (found) {
      const int source = __ffs(found) - 1;
      return {s0 + source, (idx - __shfl_sync(~0u, mine, source)) * kRows,
              __shfl_sync(~0u, rows, source), __shfl_sync(~0u, begin, source)};
    }
    base += __shfl_sync(~0u, sum, 31);
  }
  return {-1, 0, 0, 0};
}

template <int kRows>
__device__ QueryTile find_tile(const AttentionParameters& p, int idx) {
  const SequenceTile found =
      find_sequence<kRows>(p.q_starts, p.sequences, p.heads / p.kv_heads, idx);
  return {found.sequence, found.first_row, min(kRows, found.all_rows - found.first_row),
          found.first_token};
}

// 64 rows of kDim bf16 values in shared memory, 64 dimensions to a box of 128-byte rows; pieces of
// 16 bytes are permuted within a row so that eight neighbouring rows never meet in a bank, which is
// the 128-byte swizzle where the tile starts on a multiple of 1024.
template <int kDim>
__device__ uint32_t piece_address(uint32_t base, int row, int piece) {
  return base + piece / 8 * (64 * 128) + row * 128 + ((piece ^ row) & 7) * 16;
}

// Starts copying 64 rows that lie `pitch` apart, as thread `thread` of `threads`; rows from `count`
// on and dimensions past head_dim become zero. head_dim is a multiple of 8.
template <int kDim>
__device__ void load_rows(uint32_t target, const bf16* rows, int64_t pitch, int count, int head_dim,
                          int thread, int threads) {
  for (int item = thread; item < 64 * (kDim / 8); item += threads) {
    const int row = item / (kDim / 8);
    const int piece = item % (kDim / 8);
    const bool inside = row < count && piece * 8 < head_dim;
    copy_async_16(piece_address<kDim>(target, row, piece),
                  rows + (inside ? row * pitch + piece * 8 : 0), inside ? 16 : 0);
  }
}

// Starts copying a block of 64 keys or values.
template <int kDim>
__device__ void load_block(uint32_t target, const bf16* page, int head_dim) {
  load_rows<kDim>(target, page, head_dim, 64, head_dim, static_cast<int>(threadIdx.x),
                  static_cast<int>(blockDim.x));
}

template <int kDim>
__device__ void load_kv_block(const AttentionParameters& p, int sequence, int kv_head, int block,
                              uint32_t keys, uint32_t values) {
  const int64_t page = p.page_table[static_cast<int64_t>(sequence) * p.max_pages + block];
  const int64_t offset = (page * p.kv_heads + kv_head) * 64 * p.head_dim;
  load_block<kDim>(keys, static_cast<const bf16*>(p.keys) + offset, p.head_dim);
  load_block<kDim>(values, static_cast<const bf16*>(p.values) + offset, p.head_dim);
  copy_async_commit();
}

// Scores of 16 queries and 16 keys (two n8 tiles): one ascending chain of k16 steps over the head
// dimension.
template <int kDim>
__device__ void score_keys(float (&s)[2][4], const uint32_t (&q)[kDim / 16][4], uint32_t keys,
                           int first_key) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 4; ++i) s[0][i] = s[1][i] = 0;
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    uint32_t r[4];
    load_matrix_x4(r, piece_address<kDim>(keys, first_key + (lane / 16) * 8 + lane % 8,
                                          2 * step + lane / 8 % 2));
    const uint32_t b0[2] = {r[0], r[1]};
    const uint32_t b1[2] = {r[2], r[3]};
    mma_16x8x16(s[0], q[step], b0);
    mma_16x8x16(s[1], q[step], b1);
  }
}

// o[two n8 tiles of dimensions] += p V for 16 keys.
template <int kDim>
__device__ void add_values(float (&o0)[4], float (&o1)[4], const uint32_t (&p)[4], uint32_t values,
                           int first_key, int first_dim) {
  const int lane = threadIdx.x % 32;
  uint32_t r[4];
  load_matrix_x4_trans(
      r, piece_address<kDim>(values, first_key + lane % 16, first_dim / 8 + lane / 16));
  const uint32_t b0[2] = {r[0], r[1]};
  const uint32_t b1[2] = {r[2], r[3]};
  mma_16x8x16(o0, p, b0);
  mma_16x8x16(o1, p, b1);
}

// Maxima and sums over the four lanes that share a row. A block's sum is that of its groups of 16
// keys, ascending; within a group (v0 + v1) + (v2 + v3) per lane, then lanes at distance 1, then 2.
__device__ inline float row_max4(float v) {
  v = fmaxf(v, __shfl_xor_sync(~0u, v, 1));
  return fmaxf(v, __shfl_xor_sync(~0u, v, 2));
}
__device__ inline float row_sum4(float v) {
  v += __shfl_xor_sync(~0u, v, 1);
  return v + __shfl_xor_sync(~0u, v, 2);
}

// exp(from - to) where both may be -inf: a span without keys for this query keeps zeros.
__device__ inline float decay(float from, float to) {
  const float factor = exp_device(from - to);  // not under a condition: products may be under way
  return to == -INFINITY ? 1.0f : factor;
}

// The running state of a row takes in the state of the next span.
struct Merge {
  float max;
  float keep;
  float take;
  __device__ Merge(float running, float next)
      : max(fmaxf(running, next)),
        keep(decay(running, max)),
        take(next == -INFINITY ? 0.0f : decay(next, max)) {}
  __device__ float operator()(float running, float next) const {
    return fmaf(running, keep, next * take);
  }
};

// Query fragments of 16 rows, straight from memory. row_of(0) and row_of(1): the lane's two rows,
// or null.
template <int kDim>
__device__ void load_queries(uint32_t (&q)[kDim / 16][4], const bf16* const (&row)[2],
                             int head_dim) {
  const int quarter = threadIdx.x % 4;
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int d = 16 * step + 2 * quarter + 8 * (i / 2);
      q[step][i] =
          row[i % 2] && d < head_dim ? *reinterpret_cast<const uint32_t*>(row[i % 2] + d) : 0;
    }
  }
}

__device__ inline int64_t query_offset(const AttentionParameters& p, const QueryTile& tile,
                                       int kv_head, int row) {
  const int group = p.heads / p.kv_heads;
  const int64_t token = tile.first_token + (tile.first_row + row) / group;
  return (token * p.heads + kv_head * group + (tile.first_row + row) % group) * p.head_dim;
}
__device__ inline int query_position(const AttentionParameters& p, const QueryTile& tile, int row) {
  return p.position[tile.first_token + (tile.first_row + row) / (p.heads / p.kv_heads)];
}

}  // namespace dsmoe::kernels::cuda

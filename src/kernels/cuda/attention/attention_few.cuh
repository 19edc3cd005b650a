// Attention of few queries: sixteen rows by a block of four warps, which share keys and dimensions,
// span by span.
#pragma once

#include "kernels/cuda/attention/attention.cuh"
#include "kernels/kv_pages.h"

namespace dsmoe::kernels::cuda {

constexpr int kFewQueriesThreads = 128;
constexpr int kSpan = static_cast<int>(kBlocksPerSpan);

template <int kDim>
constexpr int kBlockBytes = 64 * kDim * 2;

// What a span leaves behind. Rows lie apart so that those of a warp never meet in a bank.
template <int kDim>
struct SpanResult {
  static constexpr int kPitch = kDim + 8;
  float max[16];
  float sum[16];
  float o[16 * kPitch];
};

// A block's shared memory: keys and values have one buffer each.
template <int kDim>
struct alignas(128) SpanMemory {
  unsigned char keys[kBlockBytes<kDim>];
  unsigned char values[kBlockBytes<kDim>];
  bf16 numerators[16 * 64];
  float group_max[4][16];
  float group_sum[4][16];
  SpanResult<kDim> result;
};

// The rows of a tile as the lanes of each warp hold them: where they stand, and, once the kernel
// ahead has written them, the queries.
template <int kDim>
struct SpanQueries {
  uint32_t q[kDim / 16][4];
  int position[2];
  int num_blocks;

  __device__ SpanQueries(const AttentionParameters& p, const QueryTile& tile) {
    const int lane = threadIdx.x % 32;
    int last_position = 0;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = lane / 4 + 8 * h;
      position[h] = r < tile.num_rows ? query_position(p, tile, r) : -1;
      last_position = max(last_position, position[h]);
    }
    last_position = __reduce_max_sync(~0u, last_position);
    num_blocks = last_position / 64 + 1;
  }
  __device__ void load(const AttentionParameters& p, const QueryTile& tile, int kv_head) {
    const int lane = threadIdx.x % 32;
    const bf16* row[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = lane / 4 + 8 * h;
      row[h] = r < tile.num_rows ? static_cast<const bf16*>(p.q) + query_offset(p, tile, kv_head, r)
                                 : nullptr;
    }
    load_queries<kDim>(q, row, p.head_dim);
  }
  __device__ int num_spans() const { return (num_blocks + kSpan - 1) / kSpan; }
};

// Block `block` of 64 keys and their values into the second-level cache.
template <int kDim>
__device__ void prefetch_block(const AttentionParameters& p, const QueryTile& tile, int kv_head,
                               int block) {
  const int64_t page = p.page_table[static_cast<int64_t>(tile.sequence) * p.max_pages + block];
  const int64_t bytes = static_cast<int64_t>(64) * p.head_dim * 2;
  const int64_t offset = (page * p.kv_heads + kv_head) * bytes;
  for (int64_t i = static_cast<int64_t>(threadIdx.x) * 128; i < bytes;
       i += kFewQueriesThreads * 128) {
    prefetch_l2(static_cast<const char*>(p.keys) + offset + i);
    prefetch_l2(static_cast<const char*>(p.values) + offset + i);
  }
}

// Starts copying keys or values of a block.
template <int kDim>
__device__ void fetch_block(const AttentionParameters& p, const QueryTile& tile, int kv_head,
                            const void* pages, int block, void* target) {
  const int64_t page = p.page_table[static_cast<int64_t>(tile.sequence) * p.max_pages + block];
  load_rows<kDim>(shared_address(target),
                  static_cast<const bf16*>(pages) + (page * p.kv_heads + kv_head) * 64 * p.head_dim,
                  p.head_dim, 64, p.head_dim, static_cast<int>(threadIdx.x), kFewQueriesThreads);
}
// Starts copying the first block of a span.
template <int kDim>
__device__ void start_span(const AttentionParameters& p, const QueryTile& tile, int kv_head,
                           int span, SpanMemory<kDim>& memory) {
  fetch_block<kDim>(p, tile, kv_head, p.keys, span * kSpan, memory.keys);
  copy_async_commit();
  fetch_block<kDim>(p, tile, kv_head, p.values, span * kSpan, memory.values);
  copy_async_commit();
}

// The span's maxima, sums and products in memory.result; a __syncthreads() before anyone reads
// them. Behind start_span().
template <int kDim>
__device__ void attend_span(const AttentionParameters& p, const QueryTile& tile, int kv_head,
                            int span, const SpanQueries<kDim>& queries, SpanMemory<kDim>& memory) {
  const int thread = threadIdx.x;
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int quarter = lane % 4;
  const uint32_t keys = shared_address(memory.keys);
  const uint32_t values = shared_address(memory.values);
  const uint32_t p_base = shared_address(memory.numerators);
  const int begin = span * kSpan;
  const int end = min(queries.num_blocks, begin + kSpan);
  float row_max[2] = {-INFINITY, -INFINITY};
  float row_sum[2] = {0, 0};
  float o[kDim / 32][4] = {};
  // The next keys are under way while values are multiplied, the next values while keys are.
  for (int block = begin; block < end; ++block) {
    copy_async_wait<1>();
    __syncthreads();
    float s[2][4];
    score_keys<kDim>(s, queries.q, keys, 16 * warp);
    float best[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int t = 0; t < 2; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = block * 64 + 16 * warp + 8 * t + 2 * quarter + i % 2;
        s[t][i] = key <= queries.position[i / 2] ? s[t][i] * p.scale : -INFINITY;
        best[i / 2] = fmaxf(best[i / 2], s[t][i]);
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      best[h] = row_max4(best[h]);
      if (quarter == 0) memory.group_max[warp][lane / 4 + 8 * h] = best[h];
    }
    __syncthreads();
    if (block + 1 < end) fetch_block<kDim>(p, tile, kv_head, p.keys, block + 1, memory.keys);
    copy_async_commit();
    float c[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = lane / 4 + 8 * h;
      float best_of_block = row_max[h];
      for (int g = 0; g < 4; ++g) best_of_block = fmaxf(best_of_block, memory.group_max[g][r]);
      c[h] = decay(row_max[h], best_of_block);
      row_max[h] = best_of_block;
#pragma unroll
      for (int t = 0; t < 2; ++t) {
#pragma unroll
        for (int i = 2 * h; i < 2 * h + 2; ++i) {
          s[t][i] = s[t][i] == -INFINITY ? 0.0f : exp_device(s[t][i] - row_max[h]);
        }
        const uint32_t place = piece_address<64>(p_base, r, 2 * warp + t) + quarter * 4;
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(place),
                     "r"(pack_bf16(s[t][2 * h], s[t][2 * h + 1]))
                     : "memory");
      }
      const float part =
          row_sum4((s[0][2 * h] + s[0][2 * h + 1]) + (s[1][2 * h] + s[1][2 * h + 1]));
      if (quarter == 0) memory.group_sum[warp][r] = part;
    }
    copy_async_wait<1>();  // the values
    __syncthreads();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = lane / 4 + 8 * h;
      const float block_sum =
          ((memory.group_sum[0][r] + memory.group_sum[1][r]) + memory.group_sum[2][r]) +
          memory.group_sum[3][r];
      row_sum[h] = fmaf(row_sum[h], c[h], block_sum);
    }
#pragma unroll
    for (auto& t : o) {
#pragma unroll
      for (int i = 0; i < 4; ++i) t[i] = t[i] * c[i / 2];
    }
#pragma unroll
    for (int g = 0; g < 4; ++g) {
      uint32_t a[4];
      load_matrix_x4(a, piece_address<64>(p_base, lane % 16, 2 * g + lane / 16));
#pragma unroll
      for (int d = 0; d < kDim / 4; d += 16) {
        add_values<kDim>(o[d / 8], o[d / 8 + 1], a, values, 16 * g, warp * (kDim / 4) + d);
      }
    }
    __syncthreads();
    if (block + 1 < end) fetch_block<kDim>(p, tile, kv_head, p.values, block + 1, memory.values);
    copy_async_commit();
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = lane / 4 + 8 * h;
    if (warp == 0 && quarter == 0) {
      memory.result.max[r] = row_max[h];
      memory.result.sum[r] = row_sum[h];
    }
#pragma unroll
    for (int j = 0; j < kDim / 32; ++j) {
      const int d = warp * (kDim / 4) + 8 * j + 2 * quarter;
      memory.result.o[r * SpanResult<kDim>::kPitch + d] = o[j][2 * h];
      memory.result.o[r * SpanResult<kDim>::kPitch + d + 1] = o[j][2 * h + 1];
    }
  }
}

// The rows of a tile that has one span.
template <int kDim>
__device__ void write_span(const AttentionParameters& p, const QueryTile& tile, int kv_head,
                           const SpanResult<kDim>& result) {
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < tile.num_rows * kDim; i += kFewQueriesThreads) {
    const int row = i / kDim;
    const int d = i % kDim;
    if (d < p.head_dim) {
      static_cast<bf16*>(p.out)[query_offset(p, tile, kv_head, row) + d] =
          __float2bfloat16_rn(result.o[row * SpanResult<kDim>::kPitch + d] / result.sum[row]);
    }
  }
}

// A thread's share of a row over all its spans: every eighth dimension, of which the `ranks` of a
// cluster take turns. The row is threadIdx.x / 8.
template <int kDim>
struct MergedRow {
  static constexpr int kShare = kDim / 8;
  int rank = 0;
  int ranks = 1;
  float max = -INFINITY;
  float sum = 0;
  float o[kShare] = {};

  __device__ static int row() { return static_cast<int>(threadIdx.x) / 8; }
  __device__ int dim(int i) const {
    return static_cast<int>(threadIdx.x) % 8 + 8 * (rank + ranks * i);
  }
  // Takes in the next span, ascending.
  __device__ void add(const SpanResult<kDim>& next, bool first) {
    const float next_max = next.max[row()];
    const float next_sum = next.sum[row()];
    const Merge merge(max, next_max);
    max = first ? next_max : merge.max;
    sum = first ? next_sum : merge(sum, next_sum);
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      if (i >= kShare / ranks) break;
      const float value = next.o[row() * SpanResult<kDim>::kPitch + dim(i)];
      o[i] = first ? value : merge(o[i], value);
    }
  }
  __device__ void write(const AttentionParameters& p, const QueryTile& tile, int kv_head) const {
    if (row() >= tile.num_rows) return;
    bf16* out = static_cast<bf16*>(p.out) + query_offset(p, tile, kv_head, row());
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      if (i >= kShare / ranks) break;
      if (dim(i) < p.head_dim) out[dim(i)] = __float2bfloat16_rn(o[i] / sum);
    }
  }
};

}  // namespace dsmoe::kernels::cuda

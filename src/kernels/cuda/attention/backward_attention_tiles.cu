// Attention's backward pass by tiles, for any device from 8.0 on: 64 positions to a thread block of
// four warps. dq over key blocks, then dk and dv over the heads of a group and query blocks, in
// kernels of their own, so that every sum is one ascending chain and nothing is added by atomics.
#include "kernels/cuda/attention/backward_attention.cuh"
#include "kernels/cuda/stream/launch.h"

namespace dsmoe::kernels::cuda {
namespace {

using Steps = WarpSteps;

constexpr int kThreads = 128;
constexpr int kStages = 2;
template <int kDim>
constexpr int kBlockBytes = 64 * kDim * 2;
template <int kDim>
constexpr int kQueryBytes = kStages * 2 * kBlockBytes<kDim>;
template <int kDim>
constexpr int kKeyStage = 2 * kBlockBytes<kDim> + 1024;  // queries, d_out, their statistics

// The thread's rows, lane / 4 and lane / 4 + 8 of its warp's sixteen.
__device__ inline int own_row(int half) {
  return static_cast<int>(threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4) + 8 * half;
}
__device__ const bf16* page_of(const AttentionBackwardParameters& p, const void* pages,
                               int sequence, int block, int kv_head) {
  return static_cast<const bf16*>(pages) + page_row(p, sequence, block, kv_head) * p.head_dim;
}
__device__ inline float2* statistics_of(const AttentionBackwardParameters& p, int sequence,
                                        int block, int head) {
  const int64_t page = p.page_table[static_cast<int64_t>(sequence) * p.max_pages + block];
  return p.tile_statistics + (page * p.heads + head) * 64;
}

// Blocks in turn: `load(step, target)` starts copying, `body(step, block)` multiplies and is done
// with the block when it returns.
template <int kStageBytes, class Load, class Body>
__device__ void for_each_block(uint32_t ring, int steps, Load&& load, Body&& body) {
  const auto stage = [&](int step) { return ring + step % kStages * kStageBytes; };
  load(0, stage(0));
  copy_async_commit();
  for (int step = 0; step < steps; ++step) {
    copy_async_wait<0>();
    __syncthreads();
    if (step + 1 < steps) load(step + 1, stage(step + 1));
    copy_async_commit();
    body(step, stage(step));
  }
}

// Finds for the thread's two rows the logarithm that the forward pass kept, and D = row_sum(d_out *
// out) times the scale, a quarter of the dimensions per lane. The keys' kernel reads them later.
__device__ inline void find_statistics(float2 (&statistics)[2], const PositionTile& tile,
                                       const AttentionBackwardParameters& p, int head) {
  const int quarter = threadIdx.x % 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int position = tile.first + own_row(h);
    const int64_t row =
        (tile.first_token + static_cast<int64_t>(min(position, tile.length - 1))) * p.heads + head;
    const bf16* out = static_cast<const bf16*>(p.out) + row * p.head_dim;
    const bf16* d_out = static_cast<const bf16*>(p.d_out) + row * p.head_dim;
    float d = 0;
#pragma unroll 8
    for (int i = 2 * quarter; i < p.head_dim; i += 8) {
      const auto a = *reinterpret_cast<const __nv_bfloat162*>(out + i);
      const auto b = *reinterpret_cast<const __nv_bfloat162*>(d_out + i);
      d = fmaf(__low2float(a), __low2float(b), d);
      d = fmaf(__high2float(a), __high2float(b), d);
    }
    statistics[h] = make_float2(p.log_sums[row], row_sum4(d) * p.scale);
    if (quarter == 0) {
      statistics_of(p, tile.sequence, tile.first / 64, head)[own_row(h)] =
          position < tile.length ? statistics[h] : make_float2(0, 0);
    }
  }
}

template <int kDim>
__global__ void __launch_bounds__(kThreads)
    query_gradient_tiles(const __grid_constant__ AttentionBackwardParameters p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  wait_for_previous_kernel();
  let_next_kernel_start();
  // The last tiles of a sequence see the most keys and come first.
  const PositionTile tile = find_positions<64>(p, static_cast<int>(gridDim.y - 1 - blockIdx.y));
  if (tile.sequence < 0) return;
  const int head = static_cast<int>(blockIdx.x);
  const int kv_head = head / (p.heads / p.kv_heads);
  const int64_t pitch = static_cast<int64_t>(p.heads) * p.head_dim;
  const int64_t offset =
      (static_cast<int64_t>(tile.first_token + tile.first) * p.heads + head) * p.head_dim;
  Steps::Rows<kDim> q;
  Steps::Rows<kDim> d_out;
  const int count = tile.length - tile.first;
  q.load(static_cast<const bf16*>(p.q) + offset, pitch, count, p.head_dim);
  d_out.load(static_cast<const bf16*>(p.d_out) + offset, pitch, count, p.head_dim);
  float2 statistics[2];
  find_statistics(statistics, tile, p, head);
  const auto of = [&](int, int i) { return statistics[i / 2]; };
  float dq[kDim / 8][4] = {};
  for_each_block<2 * kBlockBytes<kDim>>(
      shared_address(memory), tile.first / 64 + 1,
      [&](int block, uint32_t target) {
        load_block<kDim>(target, page_of(p, p.keys, tile.sequence, block, kv_head), p.head_dim);
        load_block<kDim>(target + kBlockBytes<kDim>,
                         page_of(p, p.values, tile.sequence, block, kv_head), p.head_dim);
      },
      [&](int block, uint32_t keys) {
        float s[8][4];
        float dp[8][4];
        Steps::score<kDim>(s, q, keys);
        Steps::score<kDim>(dp, d_out, keys + kBlockBytes<kDim>);
        if (block * 64 == tile.first)
          hide(s, [&](int h, int column) { return column > own_row(h); });
        probabilities(s, p.scale, of);
        score_gradients(dp, s, p.scale, of);
        uint32_t rounded[4][4];
        round_tile(rounded, dp);
        Steps::add<kDim>(dq, rounded, keys);
      });
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int position = tile.first + own_row(h);
    if (position < tile.length)
      write_row<kDim>(dq, h, p.gradient_row(tile.first_token + position, head), p.head_dim);
  }
}

template <int kDim>
__global__ void __launch_bounds__(kThreads)
    key_gradient_tiles(const __grid_constant__ AttentionBackwardParameters p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  wait_for_previous_kernel();
  let_next_kernel_start();
  // The first tiles of a sequence are seen by the most queries.
  const PositionTile tile = find_positions<64>(p, static_cast<int>(blockIdx.y));
  if (tile.sequence < 0) return;
  const int kv_head = static_cast<int>(blockIdx.x);
  const int heads_of_group = p.heads / p.kv_heads;
  const int first_block = tile.first / 64;
  Steps::Rows<kDim> k;
  Steps::Rows<kDim> v;
  k.load(page_of(p, p.keys, tile.sequence, first_block, kv_head), p.head_dim, 64, p.head_dim);
  v.load(page_of(p, p.values, tile.sequence, first_block, kv_head), p.head_dim, 64, p.head_dim);
  float dk[kDim / 8][4] = {};
  float dv[kDim / 8][4] = {};
  const int blocks = (tile.length + 63) / 64 - first_block;  // of queries, per head
  const int64_t pitch = static_cast<int64_t>(p.heads) * p.head_dim;
  for_each_block<kKeyStage<kDim>>(
      shared_address(memory), heads_of_group * blocks,
      [&](int step, uint32_t target) {
        const int head = kv_head * heads_of_group + step / blocks;
        const int block = first_block + step % blocks;
        const int64_t token = tile.first_token + 64 * block;
        const int64_t offset = (token * p.heads + head) * p.head_dim;
        const int count = tile.length - 64 * block;
        const int thread = static_cast<int>(threadIdx.x);
        load_rows<kDim>(target, static_cast<const bf16*>(p.q) + offset, pitch, count, p.head_dim,
                        thread, kThreads);
        load_rows<kDim>(target + kBlockBytes<kDim>, static_cast<const bf16*>(p.d_out) + offset,
                        pitch, count, p.head_dim, thread, kThreads);
        if (thread < 64) {
          copy_async_8(target + 2 * kBlockBytes<kDim> + thread * 8,
                       statistics_of(p, tile.sequence, block, head) + thread);
        }
      },
      [&](int step, uint32_t queries) {
        const int first_query = (first_block + step % blocks) * 64;
        float s[8][4];
        float dp[8][4];
        Steps::score<kDim>(s, k, queries);
        Steps::score<kDim>(dp, v, queries + kBlockBytes<kDim>);
        if (first_query == tile.first || first_query + 64 > tile.length) {
          hide(s, [&](int h, int column) {
            return tile.first + own_row(h) > first_query + column ||
                   first_query + column >= tile.length;
          });
        }
        PairStatistics<false> of(queries + 2 * kBlockBytes<kDim>);
        probabilities(s, p.scale, of);
        score_gradients(dp, s, p.scale, of);
        uint32_t rounded[4][4];
        round_tile(rounded, s);
        Steps::add<kDim>(dv, rounded, queries + kBlockBytes<kDim>);
        round_tile(rounded, dp);
        Steps::add<kDim>(dk, rounded, queries);
      });
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int64_t position = tile.first + own_row(h);
    if (position >= tile.length) continue;
    const int64_t token = tile.first_token + position;
    write_row<kDim>(dk, h, p.gradient_row(token, p.heads + kv_head), p.head_dim);
    write_row<kDim>(dv, h, p.gradient_row(token, p.heads + p.kv_heads + kv_head), p.head_dim);
  }
}

template <int kDim>
void launch_both(const Context& context, const AttentionBackwardParameters& p, int64_t tokens) {
  constexpr std::size_t kKeyBytes = kStages * kKeyStage<kDim>;
  allow_shared_once<query_gradient_tiles<kDim>>(kQueryBytes<kDim>);
  allow_shared_once<key_gradient_tiles<kDim>>(kKeyBytes);
  const auto tiles = static_cast<unsigned>(tokens / 64 + p.sequences);
  launch(context,
         {.grid = dim3(static_cast<unsigned>(p.heads), tiles),
          .block = dim3(kThreads),
          .shared_bytes = kQueryBytes<kDim>},
         query_gradient_tiles<kDim>, p);
  launch(context,
         {.grid = dim3(static_cast<unsigned>(p.kv_heads), tiles),
          .block = dim3(kThreads),
          .shared_bytes = kKeyBytes},
         key_gradient_tiles<kDim>, p);
}

}  // namespace

void attention_backward_tiles(const Context& context, const AttentionBackwardParameters& p,
                              int64_t tokens) {
  if (p.head_dim <= 64) return launch_both<64>(context, p, tokens);
  launch_both<128>(context, p, tokens);
}

}  // namespace dsmoe::kernels::cuda

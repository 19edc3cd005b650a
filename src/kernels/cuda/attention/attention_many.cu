// Attention of many queries on any device from 8.0 on: 64 rows to four warps, all keys in turn.
#include "kernels/cuda/attention/attention_steps.cuh"
#include "kernels/cuda/stream/launch.h"
#include "kernels/kv_pages.h"

namespace dsmoe::kernels::cuda {
namespace {

constexpr int kSpan = static_cast<int>(kBlocksPerSpan);

template <int kDim>
constexpr int kBlockBytes = 64 * kDim * 2;

using Steps = WarpSteps;

constexpr int kThreads = 128;
template <int kDim>
constexpr std::size_t kSharedBytes = 4 * kBlockBytes<kDim> + kDim / 2 * kThreads * 4;

template <int kDim>
__global__ void __launch_bounds__(kThreads)
    many_kernel(const __grid_constant__ AttentionParameters p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const uint32_t buffers = shared_address(memory);
  auto* running = reinterpret_cast<float*>(
      memory + 4 * kBlockBytes<kDim>);  // [kDim / 2][threads]: sums of earlier spans
  __shared__ int last_position;
  wait_for_previous_kernel();
  let_next_kernel_start();
  // The last tiles of a sequence see the most keys and come first.
  const QueryTile tile = find_tile<64>(p, static_cast<int>(gridDim.y - 1 - blockIdx.y));
  if (tile.sequence < 0) return;
  const int kv_head = static_cast<int>(blockIdx.x);
  const int lane = threadIdx.x % 32;
  const int first = threadIdx.x / 32 * 16 + lane / 4;

  const bf16* row[2];
  int position[2];
  if (threadIdx.x == 0) last_position = -1;
  __syncthreads();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = first + 8 * h;
    row[h] = r < tile.num_rows ? static_cast<const bf16*>(p.q) + query_offset(p, tile, kv_head, r)
                               : nullptr;
    position[h] = r < tile.num_rows ? query_position(p, tile, r) : -1;
    if (lane % 4 == 0 && r < tile.num_rows) atomicMax(&last_position, position[h]);
  }
  __syncthreads();
  uint32_t q[kDim / 16][4];
  load_queries<kDim>(q, row, p.head_dim);
  const int num_blocks = last_position / 64 + 1;
  const int seen_by_all = __reduce_min_sync(~0u, ::min(position[0], position[1]));

  RowSums all;
  RowSums span;
  float o[kDim / 8][4] = {};
  const auto load = [&](int block) {
    const uint32_t keys = buffers + block % 2 * 2 * kBlockBytes<kDim>;
    load_kv_block<kDim>(p, tile.sequence, kv_head, block, keys, keys + kBlockBytes<kDim>);
  };
  load(0);
  for (int block = 0; block < num_blocks; ++block) {
    copy_async_wait<0>();
    __syncthreads();
    if (block + 1 < num_blocks) load(block + 1);
    const uint32_t keys = buffers + block % 2 * 2 * kBlockBytes<kDim>;
    float s[8][4];
    float c[2];
    Steps::score<kDim>(s, q, keys);
    scale_scores(s, p.scale);
    if (block * 64 + 63 > seen_by_all) hide_keys(s, block * 64, position);
    span.take(s, c);
    scale_sums<kDim>(o, c);
    uint32_t numerators[4][4];
    round_tile(numerators, s);
    Steps::add<kDim>(o, numerators, keys + kBlockBytes<kDim>);
    const bool is_last = block + 1 == num_blocks;
    if (block % kSpan != kSpan - 1 && !is_last) continue;
    join_span<kDim>(all, span, o, running, kThreads, block < kSpan, is_last);
    span = RowSums();
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = first + 8 * half;
    if (r < tile.num_rows) write_output<kDim>(p, query_offset(p, tile, kv_head, r), o, all, half);
  }
}

template <int kDim>
void launch_many(const Context& context, const AttentionParameters& p, int64_t tokens) {
  allow_shared_once<many_kernel<kDim>>(kSharedBytes<kDim>);
  const int64_t rows = tokens * (p.heads / p.kv_heads);
  const auto tiles = static_cast<unsigned>(rows / 64 + p.sequences);
  launch(context,
         {.grid = dim3(static_cast<unsigned>(p.kv_heads), tiles),
          .block = dim3(kThreads),
          .shared_bytes = kSharedBytes<kDim>},
         many_kernel<kDim>, p);
}

}  // namespace

void attention_of_many_portable(const Context& context, const AttentionParameters& p,
                                int64_t tokens) {
  if (p.head_dim <= 64) return launch_many<64>(context, p, tokens);
  launch_many<128>(context, p, tokens);
}

void attention_of_many(const Context& context, const AttentionParameters& p, int64_t tokens) {
  if (attention_fits_hopper(p)) return attention_of_many_hopper(context, p, tokens);
  attention_of_many_portable(context, p, tokens);
}

}  // namespace dsmoe::kernels::cuda

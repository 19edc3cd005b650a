// Attention of many queries: 64 rows to each group of four warps, all keys in turn.
#include "kernels/cuda/attention_steps.cuh"
#include "kernels/cuda/launch.h"

namespace dsmoe::kernels::cuda {
namespace {

constexpr int kSpan = static_cast<int>(kBlocksPerSpan);

template <int kDim>
constexpr int kBlockBytes = 64 * kDim * 2;

// How a device does it: groups of 64 rows that share the keys, and thread blocks that should fit a
// multiprocessor.
template <class Steps>
constexpr int kGroups = Steps::kHopper ? 2 : 1;
template <class Steps, int kDim>
constexpr int kResident = Steps::kHopper&& kDim == 64 ? 2 : 1;
template <class Steps>
constexpr int kThreads = 128 * kGroups<Steps>;
template <class Steps, int kDim>
constexpr std::size_t kSharedBytes = 4 * kBlockBytes<kDim> + kDim / 2 * kThreads<Steps> * 4;

template <class Steps, int kDim>
struct RowState {
  float max[2];
  float sum[2];
  float o[kDim / 8][4];

  __device__ void clear() {
    max[0] = max[1] = -INFINITY;
    sum[0] = sum[1] = 0;
#pragma unroll
    for (auto& tile : o) {
#pragma unroll
      for (float& v : tile) v = 0;
    }
  }

  // One block of 64 keys, the first of which is `first_key`; `whole`: every row of the warp may see
  // all of them.
  __device__ void visit(const uint32_t (&q)[kDim / 16][4], uint32_t keys, uint32_t values,
                        int first_key, const int (&position)[2], bool whole, float scale) {
    const int quarter = threadIdx.x % 4;
    float s[8][4];
    Steps::start();
    Steps::template score<kDim>(s, q, keys);
    Steps::close();
    Steps::template wait<0>();
    Steps::keep(s);
#pragma unroll
    for (auto& tile : s) {
#pragma unroll
      for (float& v : tile) v = v * scale;
    }
    if (!whole) {
#pragma unroll
      for (int t = 0; t < 8; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (first_key + 8 * t + 2 * quarter + i % 2 > position[i / 2]) s[t][i] = -INFINITY;
        }
      }
    }
    float best[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (auto& tile : s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) best[i / 2] = fmaxf(best[i / 2], tile[i]);
    }
    float c[2];
    float from[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float next = fmaxf(max[h], row_max4(best[h]));
      c[h] = decay(max[h], next);
      max[h] = next;
      // A row that has seen no key yet: exp(-inf - 0) is zero too.
      from[h] = next == -INFINITY ? 0.0f : next;
    }
    float block_sum[2];
#pragma unroll
    for (int g = 0; g < 4; ++g) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int t = 2 * g; t < 2 * g + 2; ++t) {
#pragma unroll
          for (int i = 2 * h; i < 2 * h + 2; ++i) s[t][i] = exp_device(s[t][i] - from[h]);
        }
        const float part = row_sum4((s[2 * g][2 * h] + s[2 * g][2 * h + 1]) +
                                    (s[2 * g + 1][2 * h] + s[2 * g + 1][2 * h + 1]));
        block_sum[h] = g == 0 ? part : block_sum[h] + part;
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) sum[h] = fmaf(sum[h], c[h], block_sum[h]);
    // Mostly the maximum stays: a factor of one changes nothing.
    if (__any_sync(~0u, c[0] != 1.0f || c[1] != 1.0f)) {
#pragma unroll
      for (auto& tile : o) {
#pragma unroll
        for (int i = 0; i < 4; ++i) tile[i] = tile[i] * c[i / 2];
      }
    }
    uint32_t p[4][4];
#pragma unroll
    for (int g = 0; g < 4; ++g) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        p[g][i] = pack_bf16(s[2 * g + i / 2][i % 2 * 2], s[2 * g + i / 2][i % 2 * 2 + 1]);
    }
    Steps::start();
    Steps::template add<kDim>(o, p, values);
    Steps::close();
    Steps::template wait<0>();
    Steps::keep(o);
  }
};

template <class Steps, int kDim>
__global__ void __launch_bounds__(kThreads<Steps>, (kResident<Steps, kDim>))
    many_kernel(const __grid_constant__ AttentionParameters p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const uint32_t buffers = shared_address(memory);
  constexpr int kAll = kThreads<Steps>;
  auto* running = reinterpret_cast<float*>(
      memory + 4 * kBlockBytes<kDim>);  // [kDim / 2][threads]: sums of earlier spans
  __shared__ int last_position[kGroups<Steps>];
  wait_for_previous_kernel();
  let_next_kernel_start();
  // The last tiles of a sequence see the most keys and come first.
  const QueryTile tile =
      find_tile<64 * kGroups<Steps>>(p, static_cast<int>(gridDim.y - 1 - blockIdx.y));
  if (tile.sequence < 0) return;
  const int kv_head = static_cast<int>(blockIdx.x);
  const int lane = threadIdx.x % 32;
  const int group = static_cast<int>(threadIdx.x) / 128;
  const int first = threadIdx.x / 32 * 16 + lane / 4;

  const bf16* row[2];
  int position[2];
  if (threadIdx.x < kGroups<Steps>) last_position[threadIdx.x] = -1;
  __syncthreads();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = first + 8 * h;
    row[h] = r < tile.num_rows ? static_cast<const bf16*>(p.q) + query_offset(p, tile, kv_head, r)
                               : nullptr;
    position[h] = r < tile.num_rows ? query_position(p, tile, r) : -1;
    if (lane % 4 == 0 && r < tile.num_rows) atomicMax(&last_position[group], position[h]);
  }
  __syncthreads();
  uint32_t q[kDim / 16][4];
  load_queries<kDim>(q, row, p.head_dim);
  int last = 0;
  for (const int of_group : last_position) last = ::max(last, of_group);
  const int num_blocks = last / 64 + 1;
  const int own_blocks = last_position[group] / 64 + (last_position[group] >= 0 ? 1 : 0);
  const int seen_by_all = __reduce_min_sync(~0u, ::min(position[0], position[1]));

  float max[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};
  RowState<Steps, kDim> state;
  state.clear();
  const auto load = [&](int block) {
    const uint32_t keys = buffers + block % 2 * 2 * kBlockBytes<kDim>;
    load_kv_block<kDim>(p, tile.sequence, kv_head, block, keys, keys + kBlockBytes<kDim>);
  };
  load(0);
  for (int block = 0; block < num_blocks; ++block) {
    copy_async_wait<0>();
    Steps::copies_landed();
    __syncthreads();
    if (block + 1 < num_blocks) load(block + 1);
    if (block >= own_blocks) continue;
    const uint32_t keys = buffers + block % 2 * 2 * kBlockBytes<kDim>;
    state.visit(q, keys, keys + kBlockBytes<kDim>, block * 64, position,
                block * 64 + 63 <= seen_by_all, p.scale);
    if (block % kSpan != kSpan - 1 && block + 1 != own_blocks) continue;
    const bool only = block < kSpan;
    float keep[2];
    float take[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (only) {
        max[h] = state.max[h];
        sum[h] = state.sum[h];
      } else {
        const Merge merge(max[h], state.max[h]);
        max[h] = merge.max;
        sum[h] = merge(sum[h], state.sum[h]);
        keep[h] = merge.keep;
        take[h] = merge.take;
      }
    }
    const bool finished = block + 1 == own_blocks;
#pragma unroll
    for (int j = 0; j < kDim / 2; ++j) {
      float* slot = running + j * kAll + threadIdx.x;
      float& o = state.o[j / 4][j % 4];
      if (!only) o = fmaf(*slot, keep[j % 4 / 2], o * take[j % 4 / 2]);
      if (!finished) *slot = o;
    }
    if (!finished) state.clear();
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = first + 8 * h;
    if (r >= tile.num_rows) continue;
    const int64_t offset = query_offset(p, tile, kv_head, r);
    if (p.log_sums && lane % 4 == 0)
      p.log_sums[offset / p.head_dim] = fmaf(max[h], kLog2E, log2f(sum[h]));
    bf16* out = static_cast<bf16*>(p.out) + offset;
#pragma unroll
    for (int j = 0; j < kDim / 8; ++j) {
      const int d = 8 * j + 2 * (lane % 4);
      if (d < p.head_dim) {
        *reinterpret_cast<uint32_t*>(out + d) =
            pack_bf16(state.o[j][2 * h] / sum[h], state.o[j][2 * h + 1] / sum[h]);
      }
    }
  }
}

template <class Steps, int kDim>
void launch_many(const Context& context, const AttentionParameters& p, int64_t tokens) {
  static const bool once =
      (allow_shared(many_kernel<Steps, kDim>, kSharedBytes<Steps, kDim>), true);
  (void)once;
  const int64_t rows = tokens * (p.heads / p.kv_heads);
  const auto tiles = static_cast<unsigned>(rows / (64 * kGroups<Steps>)+p.sequences);
  launch(context,
         {.grid = dim3(static_cast<unsigned>(p.kv_heads), tiles),
          .block = dim3(kThreads<Steps>),
          .shared_bytes = kSharedBytes<Steps, kDim>},
         many_kernel<Steps, kDim>, p);
}

}  // namespace

void attention_of_many(const Context& context, const AttentionParameters& p, int64_t tokens) {
  const bool narrow = p.head_dim <= 64;
  if (is_hopper()) {
    return narrow ? launch_many<WarpgroupSteps, 64>(context, p, tokens)
                  : launch_many<WarpgroupSteps, 128>(context, p, tokens);
  }
  return narrow ? launch_many<WarpSteps, 64>(context, p, tokens)
                : launch_many<WarpSteps, 128>(context, p, tokens);
}

}  // namespace dsmoe::kernels::cuda

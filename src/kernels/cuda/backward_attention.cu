// Attention's backward pass. dq over key blocks, then dk and dv over the heads of a group and query
// blocks, in kernels of their own, so that every sum is one ascending chain and nothing is added by
// atomics.
#include "kernels/cuda/attention_steps.cuh"
#include "kernels/cuda/backward_attention.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"

namespace dsmoe::kernels::cuda {
namespace {

template <int kDim>
constexpr int kBlockBytes = 64 * kDim * 2;
constexpr int kStages = 2;

// Groups of four warps to a thread block, 64 positions each, which share what is loaded; and thread
// blocks that should fit a multiprocessor.
template <class Steps>
constexpr int kQueryGroups = Steps::kHopper ? 2 : 1;
template <class Steps, int kDim>
constexpr int kKeyGroups = Steps::kHopper ? (kDim == 64 ? 3 : 2) : 1;
template <class Steps, int kDim>
constexpr int kQueryResident = Steps::kHopper&& kDim == 64 ? 2 : 1;

// 64 positions to each group of a thread block, of one sequence.
struct PositionTile {
  int sequence;  // -1: none
  int first;     // position of this group
  int count;     // its positions: none are left when negative
  int block_first;
  int block_end;
  int length;       // of the sequence
  int first_token;  // of the sequence
};

template <int kGroups>
__device__ PositionTile find_positions(const AttentionBackwardParameters& p, int idx) {
  constexpr int kRows = 64 * kGroups;
  const int lane = threadIdx.x % 32;
  int base = 0;
  for (int s0 = 0; s0 < p.sequences; s0 += 32) {
    const int s = s0 + lane;
    const int begin = s < p.sequences ? p.q_starts[s] : 0;
    const int length = s < p.sequences ? p.q_starts[s + 1] - begin : 0;
    const int tiles = (length + kRows - 1) / kRows;
    int sum = tiles;
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += other;
    }
    const int mine = base + sum - tiles;
    const unsigned found = __ballot_sync(~0u, idx >= mine && idx < mine + tiles);
    if (found) {
      const int source = __ffs(found) - 1;
      const int block_first = (idx - __shfl_sync(~0u, mine, source)) * kRows;
      const int all = __shfl_sync(~0u, length, source);
      const int first = block_first + static_cast<int>(threadIdx.x) / 128 * 64;
      return {s0 + source,
              first,
              min(64, all - first),
              block_first,
              min(all, block_first + kRows),
              all,
              __shfl_sync(~0u, begin, source)};
    }
    base += __shfl_sync(~0u, sum, 31);
  }
  return {-1, 0, 0, 0, 0, 0, 0};
}

__device__ const bf16* page_of(const AttentionBackwardParameters& p, const void* pages,
                               int sequence, int block, int kv_head) {
  const int64_t page = p.page_table[static_cast<int64_t>(sequence) * p.max_pages + block];
  return static_cast<const bf16*>(pages) + (page * p.kv_heads + kv_head) * 64 * p.head_dim;
}

// What a thread of a query tile works on: rows lane / 4 and lane / 4 + 8 of its warp's sixteen.
struct QueryRows {
  int64_t token[2];  // of the batch
  int position[2];   // -1: none
  __device__ QueryRows(const PositionTile& tile) {
    const int first = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = first + 8 * h;
      position[h] = r < tile.count ? tile.first + r : -1;
      token[h] = tile.first_token + min(tile.first + r, tile.length - 1);
    }
  }
};

// A group's queries, or their gradients of the output.
template <class Steps, int kDim>
__device__ void load_query_rows(typename Steps::template Rows<kDim>& rows, uint32_t memory,
                                const void* from, const AttentionBackwardParameters& p,
                                const PositionTile& tile, int head) {
  const int64_t token = tile.first_token + (tile.count > 0 ? tile.first : 0);
  rows.load(memory, static_cast<const bf16*>(from) + (token * p.heads + head) * p.head_dim,
            static_cast<int64_t>(p.heads) * p.head_dim, tile.count, p.head_dim);
}

// Blocks in turn: `load(step, target)` starts copying, `body(step, block)` multiplies and is done
// with the block when it returns.
template <class Steps, int kStageBytes, class Load, class Body>
__device__ void for_each_block(uint32_t ring, int steps, Load&& load, Body&& body) {
  const auto stage = [&](int step) { return ring + step % kStages * kStageBytes; };
  load(0, stage(0));
  copy_async_commit();
  for (int step = 0; step < steps; ++step) {
    copy_async_wait<0>();
    Steps::copies_landed();
    __syncthreads();
    if (step + 1 < steps) load(step + 1, stage(step + 1));
    copy_async_commit();
    body(step, stage(step));
  }
}

// Of the thread's two rows: the logarithm the forward pass kept, and D = row_sum(d_out * out), a
// quarter of the dimensions per lane, times the scale. Left behind for the keys' kernel.
__device__ inline void find_statistics(float2 (&statistics)[2], const QueryRows& rows,
                                       const AttentionBackwardParameters& p, int head) {
  const int quarter = threadIdx.x % 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int64_t row = rows.token[h] * p.heads + head;
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
    if (quarter == 0 && rows.position[h] >= 0) p.tile_statistics()[row] = statistics[h];
  }
}

// From scores and d_out . v, 64 columns of a row, to p (kept in s) and ds (in dp); `of(t, i)` gives
// the statistics of the query of s[t][i].
template <class Of>
__device__ void gradient_of_scores(float (&s)[8][4], float (&dp)[8][4], float scale, Of&& of) {
  const float scale2 = scale * kLog2E;
#pragma unroll
  for (int t = 0; t < 8; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 statistics = of(t, i);
      s[t][i] = exp2_approx(fmaf(s[t][i], scale2, -statistics.x));
      dp[t][i] = s[t][i] * fmaf(dp[t][i], scale, -statistics.y);
    }
  }
}

// Sums of a tile as the rows of the next product.
__device__ inline void round_tile(uint32_t (&rounded)[4][4], const float (&s)[8][4]) {
#pragma unroll
  for (int g = 0; g < 4; ++g) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      rounded[g][i] = pack_bf16(s[2 * g + i / 2][i % 2 * 2], s[2 * g + i / 2][i % 2 * 2 + 1]);
  }
}

// Rows of sums to fp32 memory, `target(half)` null where there is no row.
template <int kDim, class Target>
__device__ void write_rows(const float (&sums)[kDim / 8][4], int head_dim, Target&& target) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float* row = target(h);
    if (row == nullptr) continue;
#pragma unroll
    for (int j = 0; j < kDim / 8; ++j) {
      const int d = 8 * j + 2 * (threadIdx.x % 4);
      if (d < head_dim)
        *reinterpret_cast<float2*>(row + d) = make_float2(sums[j][2 * h], sums[j][2 * h + 1]);
    }
  }
}

template <class Steps, int kDim>
__global__ void __launch_bounds__(128 * kQueryGroups<Steps>, (kQueryResident<Steps, kDim>))
    query_gradient_kernel(const __grid_constant__ AttentionBackwardParameters p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const uint32_t ring = shared_address(memory);
  const int group = static_cast<int>(threadIdx.x) / 128;
  wait_for_previous_kernel();
  let_next_kernel_start();
  // The last tiles of a sequence see the most keys and come first.
  const PositionTile tile =
      find_positions<kQueryGroups<Steps>>(p, static_cast<int>(gridDim.y - 1 - blockIdx.y));
  if (tile.sequence < 0) return;
  const int head = static_cast<int>(blockIdx.x);
  const int kv_head = head / (p.heads / p.kv_heads);
  const int quarter = threadIdx.x % 4;
  const QueryRows rows(tile);
  typename Steps::template Rows<kDim> q;
  typename Steps::template Rows<kDim> d_out;
  const uint32_t own = ring + (kStages + group) * 2 * kBlockBytes<kDim>;
  load_query_rows<Steps, kDim>(q, own, p.q, p, tile, head);
  load_query_rows<Steps, kDim>(d_out, own + kBlockBytes<kDim>, p.d_out, p, tile, head);
  float2 statistics[2];
  find_statistics(statistics, rows, p, head);
  float dq[kDim / 8][4] = {};
  const int own_blocks = tile.count > 0 ? tile.first / 64 + 1 : 0;
  for_each_block<Steps, 2 * kBlockBytes<kDim>>(
      ring, (tile.block_end + 63) / 64,
      [&](int block, uint32_t target) {
        load_block<kDim>(target, page_of(p, p.keys, tile.sequence, block, kv_head), p.head_dim);
        load_block<kDim>(target + kBlockBytes<kDim>,
                         page_of(p, p.values, tile.sequence, block, kv_head), p.head_dim);
      },
      [&](int block, uint32_t keys) {
        if (block >= own_blocks) return;
        float s[8][4];
        float dp[8][4];
        Steps::start();
        Steps::template score<kDim>(s, q, keys);
        Steps::template score<kDim>(dp, d_out, keys + kBlockBytes<kDim>);
        Steps::close();
        Steps::template wait<0>();
        Steps::keep(s);
        Steps::keep(dp);
        if (block + 1 == own_blocks) {
#pragma unroll
          for (int t = 0; t < 8; ++t) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              if (block * 64 + 8 * t + 2 * quarter + i % 2 > rows.position[i / 2])
                s[t][i] = -INFINITY;
            }
          }
        }
        gradient_of_scores(s, dp, p.scale, [&](int, int i) { return statistics[i / 2]; });
        uint32_t rounded[4][4];
        round_tile(rounded, dp);
        Steps::start();
        Steps::template add<kDim>(dq, rounded, keys);
        Steps::close();
        Steps::template wait<0>();
        Steps::keep(dq);
      });
  write_rows<kDim>(dq, p.head_dim, [&](int h) {
    return rows.position[h] < 0 ? nullptr : p.gradient_row(rows.token[h], head);
  });
}

template <class Steps, int kDim>
__global__ void __launch_bounds__(128 * kKeyGroups<Steps, kDim>, 1)
    key_gradient_kernel(const __grid_constant__ AttentionBackwardParameters p) {
  constexpr int kGroups = kKeyGroups<Steps, kDim>;
  constexpr int kStageBytes = 2 * kBlockBytes<kDim> + 1024;  // queries, d_out, their statistics
  extern __shared__ __align__(1024) unsigned char memory[];
  const uint32_t ring = shared_address(memory);
  const int group = static_cast<int>(threadIdx.x) / 128;
  wait_for_previous_kernel();
  let_next_kernel_start();
  // The first tiles of a sequence are seen by the most queries.
  const PositionTile tile = find_positions<kGroups>(p, static_cast<int>(blockIdx.y));
  if (tile.sequence < 0) return;
  const int kv_head = static_cast<int>(blockIdx.x);
  const int heads_of_group = p.heads / p.kv_heads;
  const int lane = threadIdx.x % 32;
  const int first_row = threadIdx.x % 128 / 32 * 16 + lane / 4;
  typename Steps::template Rows<kDim> k;
  typename Steps::template Rows<kDim> v;
  {
    const uint32_t own = ring + kStages * kStageBytes + group * 2 * kBlockBytes<kDim>;
    const int block = (tile.count > 0 ? tile.first : tile.block_first) / 64;
    k.load(own, page_of(p, p.keys, tile.sequence, block, kv_head), p.head_dim, 64, p.head_dim);
    v.load(own + kBlockBytes<kDim>, page_of(p, p.values, tile.sequence, block, kv_head), p.head_dim,
           64, p.head_dim);
  }
  float dk[kDim / 8][4] = {};
  float dv[kDim / 8][4] = {};
  const int first_block = tile.block_first / 64;
  const int blocks = (tile.length + 63) / 64 - first_block;  // of queries, per head
  const int64_t pitch = static_cast<int64_t>(p.heads) * p.head_dim;
  for_each_block<Steps, kStageBytes>(
      ring, heads_of_group * blocks,
      [&](int step, uint32_t target) {
        const int head = kv_head * heads_of_group + step / blocks;
        const int first = (first_block + step % blocks) * 64;
        const int count = min(64, tile.length - first);
        const int64_t token = tile.first_token + first;
        const int64_t offset = (token * p.heads + head) * p.head_dim;
        const int thread = static_cast<int>(threadIdx.x);
        load_rows<kDim>(target, static_cast<const bf16*>(p.q) + offset, pitch, count, p.head_dim,
                        thread, 128 * kGroups);
        load_rows<kDim>(target + kBlockBytes<kDim>, static_cast<const bf16*>(p.d_out) + offset,
                        pitch, count, p.head_dim, thread, 128 * kGroups);
        if (thread < 64) {
          copy_async_8(target + 2 * kBlockBytes<kDim> + thread * 8,
                       p.tile_statistics() + (token + min(thread, count - 1)) * p.heads + head);
        }
      },
      [&](int step, uint32_t queries) {
        const int first = (first_block + step % blocks) * 64;
        if (first < tile.first || tile.count <= 0) return;
        float s[8][4];
        float dp[8][4];
        Steps::start();
        Steps::template score<kDim>(s, k, queries);
        Steps::template score<kDim>(dp, v, queries + kBlockBytes<kDim>);
        Steps::close();
        Steps::template wait<0>();
        Steps::keep(s);
        Steps::keep(dp);
        if (first == tile.first || first + 64 > tile.length) {
#pragma unroll
          for (int t = 0; t < 8; ++t) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const int query = first + 8 * t + 2 * (lane % 4) + i % 2;
              if (tile.first + first_row + i / 2 * 8 > query || query >= tile.length)
                s[t][i] = -INFINITY;
            }
          }
        }
        // Of columns 8 t + 2 (lane % 4) and the next: two each.
        const uint32_t statistics = queries + 2 * kBlockBytes<kDim> + lane % 4 * 16;
        float4 pair;
        gradient_of_scores(s, dp, p.scale, [&](int t, int i) {
          if (i == 0) pair = load_shared_float4(statistics + t * 64);
          return i % 2 == 0 ? make_float2(pair.x, pair.y) : make_float2(pair.z, pair.w);
        });
        uint32_t rounded_p[4][4];
        uint32_t rounded_ds[4][4];
        round_tile(rounded_p, s);
        round_tile(rounded_ds, dp);
        Steps::start();
        Steps::template add<kDim>(dv, rounded_p, queries + kBlockBytes<kDim>);
        Steps::template add<kDim>(dk, rounded_ds, queries);
        Steps::close();
        Steps::template wait<0>();
        Steps::keep(dv);
        Steps::keep(dk);
      });
  const auto row_of = [&](int h, int head) {
    const int row = first_row + 8 * h;
    return row < tile.count ? p.gradient_row(tile.first_token + tile.first + row, head) : nullptr;
  };
  write_rows<kDim>(dk, p.head_dim, [&](int h) { return row_of(h, p.heads + kv_head); });
  write_rows<kDim>(dv, p.head_dim,
                   [&](int h) { return row_of(h, p.heads + p.kv_heads + kv_head); });
}

template <class Steps, int kDim>
void launch_tiled(const Context& context, const AttentionBackwardParameters& p, int64_t tokens) {
  constexpr int kGroups = kQueryGroups<Steps>;
  constexpr int kOfKeys = kKeyGroups<Steps, kDim>;
  constexpr std::size_t kOwn = Steps::kHopper ? kBlockBytes<kDim> : 0;  // rows that stay, per group
  constexpr std::size_t kQueryBytes = 2 * (kStages * kBlockBytes<kDim> + kGroups * kOwn);
  constexpr std::size_t kKeyBytes = kStages * (2 * kBlockBytes<kDim> + 1024) + kOfKeys * 2 * kOwn;
  static const bool once = (allow_shared(query_gradient_kernel<Steps, kDim>, kQueryBytes),
                            allow_shared(key_gradient_kernel<Steps, kDim>, kKeyBytes), true);
  (void)once;
  const auto tiles = [&](int groups) {
    return static_cast<unsigned>(tokens / (64 * groups) + p.sequences);
  };
  launch(context,
         {.grid = dim3(static_cast<unsigned>(p.heads), tiles(kGroups)),
          .block = dim3(128 * kGroups),
          .shared_bytes = kQueryBytes},
         query_gradient_kernel<Steps, kDim>, p);
  launch(context,
         {.grid = dim3(static_cast<unsigned>(p.kv_heads), tiles(kOfKeys)),
          .block = dim3(128 * kOfKeys),
          .shared_bytes = kKeyBytes},
         key_gradient_kernel<Steps, kDim>, p);
}

template <class Steps>
void launch_tiled(const Context& context, const AttentionBackwardParameters& p, int64_t tokens) {
  if (p.head_dim <= 64) return launch_tiled<Steps, 64>(context, p, tokens);
  launch_tiled<Steps, 128>(context, p, tokens);
}

}  // namespace

void attention_backward(const Context& context, const AttentionBackward& args) {
  const int64_t tokens = args.q.dim(0);
  if (tokens == 0) return;
  DSMOE_CHECK(args.kv.layout == WeightLayout::row_major,
              "attention on CUDA: KV pages must be row-major");
  AttentionBackwardParameters p{.q = args.q.data,
                                .keys = args.kv.keys,
                                .values = args.kv.values,
                                .q_starts = args.q_starts.as<int32_t>(),
                                .page_table = args.page_table.as<int32_t>(),
                                .out = args.out.data,
                                .d_out = args.d_out.data,
                                .d_qkv = args.d_qkv.as<float>(),
                                .log_sums = nullptr,
                                .statistics = nullptr,
                                .scale = args.scale,
                                .sequences = static_cast<int32_t>(args.page_table.dim(0)),
                                .max_pages = static_cast<int32_t>(args.page_table.dim(1)),
                                .heads = static_cast<int32_t>(args.q.dim(1)),
                                .kv_heads = static_cast<int32_t>(args.kv.num_kv_heads),
                                .head_dim = static_cast<int32_t>(args.q.dim(2))};
  p.statistics = static_cast<float4*>(
      scratch_of(context, static_cast<std::size_t>(tokens * p.heads) * sizeof(float4)));
  // The choice depends on head_dim and type alone.
  if (args.q.dtype == DType::BF16 && p.head_dim % 8 == 0 && p.head_dim <= 128) {
    DSMOE_CHECK(args.log_sums,
                "attention backward on CUDA: the forward pass's log_sums are missing");
    p.log_sums = args.log_sums.as<float>();
    return is_hopper() ? launch_tiled<WarpgroupSteps>(context, p, tokens)
                       : launch_tiled<WarpSteps>(context, p, tokens);
  }
  attention_backward_plain(context, args.q.dtype, p, tokens);
}

}  // namespace dsmoe::kernels::cuda

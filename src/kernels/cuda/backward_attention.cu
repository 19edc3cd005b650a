// Attention's backward pass. Statistics of every query first (maximum, sum, d_out . out); then dq
// over key blocks, and dk and dv over the heads of a group and query blocks, each in kernels of
// their own, so that every sum is one ascending chain and nothing is added by atomics.
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/backward_attention.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"

namespace dsmoe::kernels::cuda {
namespace {

constexpr int kThreads = 128;

template <int kDim>
constexpr int kBlockBytes = 64 * kDim * 2;

// 64 positions of one sequence.
struct PositionTile {
  int sequence;  // -1: none
  int first;     // position
  int count;
  int length;       // of the sequence
  int first_token;  // of the sequence
};

__device__ PositionTile find_positions(const AttentionBackwardParameters& p, int idx) {
  const int lane = threadIdx.x % 32;
  int base = 0;
  for (int s0 = 0; s0 < p.sequences; s0 += 32) {
    const int s = s0 + lane;
    const int begin = s < p.sequences ? p.q_starts[s] : 0;
    const int length = s < p.sequences ? p.q_starts[s + 1] - begin : 0;
    const int tiles = (length + 63) / 64;
    int sum = tiles;
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += other;
    }
    const int mine = base + sum - tiles;
    const unsigned found = __ballot_sync(~0u, idx >= mine && idx < mine + tiles);
    if (found) {
      const int source = __ffs(found) - 1;
      const int first = (idx - __shfl_sync(~0u, mine, source)) * 64;
      const int all = __shfl_sync(~0u, length, source);
      return {s0 + source, first, min(64, all - first), all, __shfl_sync(~0u, begin, source)};
    }
    base += __shfl_sync(~0u, sum, 31);
  }
  return {-1, 0, 0, 0, 0};
}

__device__ const bf16* page_of(const AttentionBackwardParameters& p, const void* pages,
                               int sequence, int block, int kv_head) {
  const int64_t page = p.page_table[static_cast<int64_t>(sequence) * p.max_pages + block];
  return static_cast<const bf16*>(pages) + (page * p.kv_heads + kv_head) * 64 * p.head_dim;
}

// Starts copying 64 rows that lie `pitch` apart; rows from `count` on become zero.
template <int kDim>
__device__ void load_rows(uint32_t target, const bf16* rows, int64_t pitch, int count,
                          int head_dim) {
  for (int item = threadIdx.x; item < 64 * (kDim / 8); item += kThreads) {
    const int row = item / (kDim / 8);
    const int piece = item % (kDim / 8);
    const bool inside = row < count && piece * 8 < head_dim;
    copy_async_16(piece_address<kDim>(target, row, piece),
                  rows + (inside ? row * pitch + piece * 8 : 0), inside ? 16 : 0);
  }
}

// What a thread of a query tile works on: rows lane / 4 and lane / 4 + 8 of its warp's sixteen.
struct QueryRows {
  int64_t token[2];  // of the batch
  int position[2];   // -1: none
  __device__ QueryRows(const PositionTile& tile) {
    const int first = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = first + 8 * h;
      position[h] = r < tile.count ? tile.first + r : -1;
      token[h] = tile.first_token + tile.first + min(r, tile.count - 1);
    }
  }
  template <int kDim>
  __device__ void load(uint32_t (&fragment)[kDim / 16][4], const void* rows,
                       const AttentionBackwardParameters& p, int head) const {
    const bf16* row[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      row[h] = position[h] >= 0
                   ? static_cast<const bf16*>(rows) + (token[h] * p.heads + head) * p.head_dim
                   : nullptr;
    }
    load_queries<kDim>(fragment, row, p.head_dim);
  }
};

template <int kDim>
__global__ void __launch_bounds__(kThreads)
    statistics_kernel(const __grid_constant__ AttentionBackwardParameters p) {
  extern __shared__ __align__(128) unsigned char memory[];
  const uint32_t buffers = shared_address(memory);
  wait_for_previous_kernel();
  let_next_kernel_start();
  const PositionTile tile = find_positions(p, static_cast<int>(blockIdx.x));
  if (tile.sequence < 0) return;
  const int head = static_cast<int>(blockIdx.y);
  const int kv_head = head / (p.heads / p.kv_heads);
  const int quarter = threadIdx.x % 4;
  const QueryRows rows(tile);
  uint32_t q[kDim / 16][4];
  rows.load<kDim>(q, p.q, p, head);
  const int num_blocks = tile.first / 64 + 1;
  float max[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};
  const auto load = [&](int block) {
    load_block<kDim>(buffers + block % 2 * kBlockBytes<kDim>,
                     page_of(p, p.keys, tile.sequence, block, kv_head), p.head_dim);
    copy_async_commit();
  };
  load(0);
  for (int block = 0; block < num_blocks; ++block) {
    if (block + 1 < num_blocks) {
      load(block + 1);
      copy_async_wait<1>();
    } else {
      copy_async_wait<0>();
    }
    __syncthreads();
    float s[4][2][4];
    float best[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int g = 0; g < 4; ++g) {
      score_keys<kDim>(s[g], q, buffers + block % 2 * kBlockBytes<kDim>, 16 * g);
#pragma unroll
      for (int t = 0; t < 2; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = block * 64 + 16 * g + 8 * t + 2 * quarter + i % 2;
          float& v = s[g][t][i];
          v = key <= rows.position[i / 2] ? v * p.scale : -INFINITY;
          best[i / 2] = fmaxf(best[i / 2], v);
        }
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float next = fmaxf(max[h], row_max4(best[h]));
      float part = 0;
#pragma unroll
      for (int g = 0; g < 4; ++g) {
#pragma unroll
        for (int t = 0; t < 2; ++t) {
#pragma unroll
          for (int i = 2 * h; i < 2 * h + 2; ++i)
            part += s[g][t][i] == -INFINITY ? 0.0f : exp_device(s[g][t][i] - next);
        }
      }
      sum[h] = fmaf(sum[h], decay(max[h], next), row_sum4(part));
      max[h] = next;
    }
    __syncthreads();
  }
  // D = row_sum(d_out * out): a quarter of the dimensions per lane.
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int64_t row = rows.token[h] * p.heads + head;
    const bf16* out = static_cast<const bf16*>(p.out) + row * p.head_dim;
    const bf16* d_out = static_cast<const bf16*>(p.d_out) + row * p.head_dim;
    float d = 0;
    for (int i = 2 * quarter; i < p.head_dim; i += 8) {
      d = fmaf(__bfloat162float(out[i]), __bfloat162float(d_out[i]), d);
      d = fmaf(__bfloat162float(out[i + 1]), __bfloat162float(d_out[i + 1]), d);
    }
    d = row_sum4(d);
    if (quarter == 0 && rows.position[h] >= 0)
      p.statistics[row] = make_float4(max[h] * kLog2E, 1.0f / sum[h], d, 0.0f);
  }
}

// p and ds of sixteen rows and sixteen columns; kMasked: only where `inside(row half, column)`.
template <bool kMasked>
struct Gradient {
  uint32_t p[4];
  uint32_t ds[4];
  template <class Statistics, class Inside>
  __device__ Gradient(const float (&s)[2][4], const float (&dp)[2][4], float scale,
                      Statistics&& statistics, Inside&& inside) {
    const float scale2 = scale * kLog2E;
    float probability[2][4];
    float score[2][4];
#pragma unroll
    for (int t = 0; t < 2; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float4 of = statistics(i / 2, 8 * t + i % 2);
        float v = exp2_approx(fmaf(s[t][i], scale2, -of.x)) * of.y;
        if (kMasked && !inside(i / 2, 8 * t + i % 2)) v = 0;
        probability[t][i] = v;
        score[t][i] = (v * (dp[t][i] - of.z)) * scale;
      }
    }
#pragma unroll
    for (int t = 0; t < 2; ++t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        p[2 * t + h] = pack_bf16(probability[t][2 * h], probability[t][2 * h + 1]);
        ds[2 * t + h] = pack_bf16(score[t][2 * h], score[t][2 * h + 1]);
      }
    }
  }
};

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

template <int kDim>
__global__ void __launch_bounds__(kThreads, kDim == 64 ? 4 : 2)
    query_gradient_kernel(const __grid_constant__ AttentionBackwardParameters p) {
  extern __shared__ __align__(128) unsigned char memory[];
  const uint32_t buffers = shared_address(memory);
  wait_for_previous_kernel();
  let_next_kernel_start();
  const PositionTile tile = find_positions(p, static_cast<int>(blockIdx.x));
  if (tile.sequence < 0) return;
  const int head = static_cast<int>(blockIdx.y);
  const int kv_head = head / (p.heads / p.kv_heads);
  const int quarter = threadIdx.x % 4;
  const QueryRows rows(tile);
  uint32_t q[kDim / 16][4];
  uint32_t d_out[kDim / 16][4];
  rows.load<kDim>(q, p.q, p, head);
  rows.load<kDim>(d_out, p.d_out, p, head);
  float4 statistics[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) statistics[h] = p.statistics[rows.token[h] * p.heads + head];
  float dq[kDim / 8][4] = {};
  const int num_blocks = tile.first / 64 + 1;
  const auto load = [&](int block) {
    const uint32_t target = buffers + block % 2 * 2 * kBlockBytes<kDim>;
    load_block<kDim>(target, page_of(p, p.keys, tile.sequence, block, kv_head), p.head_dim);
    load_block<kDim>(target + kBlockBytes<kDim>,
                     page_of(p, p.values, tile.sequence, block, kv_head), p.head_dim);
    copy_async_commit();
  };
  load(0);
  for (int block = 0; block < num_blocks; ++block) {
    if (block + 1 < num_blocks) {
      load(block + 1);
      copy_async_wait<1>();
    } else {
      copy_async_wait<0>();
    }
    __syncthreads();
    const uint32_t keys = buffers + block % 2 * 2 * kBlockBytes<kDim>;
    const auto visit = [&]<bool kMasked>() {
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        float s[2][4];
        float dp[2][4];
        score_keys<kDim>(s, q, keys, 16 * g);
        score_keys<kDim>(dp, d_out, keys + kBlockBytes<kDim>, 16 * g);
        const int first_key = block * 64 + 16 * g + 2 * quarter;
        const Gradient<kMasked> gradient(
            s, dp, p.scale, [&](int half, int) { return statistics[half]; },
            [&](int half, int column) { return first_key + column <= rows.position[half]; });
#pragma unroll
        for (int d = 0; d < kDim; d += 16)
          add_values<kDim>(dq[d / 8], dq[d / 8 + 1], gradient.ds, keys, 16 * g, d);
      }
    };
    if (block + 1 == num_blocks) {
      visit.template operator()<true>();
    } else {
      visit.template operator()<false>();
    }
    __syncthreads();
  }
  write_rows<kDim>(dq, p.head_dim, [&](int h) {
    return rows.position[h] < 0 ? nullptr : p.gradient_row(rows.token[h], head);
  });
}

template <int kDim>
__global__ void __launch_bounds__(kThreads, kDim == 64 ? 3 : 2)
    key_gradient_kernel(const __grid_constant__ AttentionBackwardParameters p) {
  extern __shared__ __align__(128) unsigned char memory[];
  const uint32_t buffers = shared_address(memory);
  auto* statistics = reinterpret_cast<float4*>(memory + 4 * kBlockBytes<kDim>);  // [2][64 queries]
  wait_for_previous_kernel();
  let_next_kernel_start();
  const PositionTile tile = find_positions(p, static_cast<int>(blockIdx.x));
  if (tile.sequence < 0) return;
  const int kv_head = static_cast<int>(blockIdx.y);
  const int group = p.heads / p.kv_heads;
  const int lane = threadIdx.x % 32;
  const int first_row = threadIdx.x / 32 * 16 + lane / 4;
  uint32_t k[kDim / 16][4];
  uint32_t v[kDim / 16][4];
  {
    const bf16* rows[2];
    const bf16* page = page_of(p, p.keys, tile.sequence, tile.first / 64, kv_head);
    for (int h = 0; h < 2; ++h) rows[h] = page + (first_row + 8 * h) * p.head_dim;
    load_queries<kDim>(k, rows, p.head_dim);
    page = page_of(p, p.values, tile.sequence, tile.first / 64, kv_head);
    for (int h = 0; h < 2; ++h) rows[h] = page + (first_row + 8 * h) * p.head_dim;
    load_queries<kDim>(v, rows, p.head_dim);
  }
  float dk[kDim / 8][4] = {};
  float dv[kDim / 8][4] = {};
  const int first_block = tile.first / 64;
  const int blocks = (tile.length + 63) / 64 - first_block;  // of queries, per head
  const int64_t pitch = static_cast<int64_t>(p.heads) * p.head_dim;
  const auto load = [&](int step) {
    const int head = kv_head * group + step / blocks;
    const int first = (first_block + step % blocks) * 64;
    const int count = min(64, tile.length - first);
    const int64_t token = tile.first_token + first;
    const uint32_t target = buffers + step % 2 * 2 * kBlockBytes<kDim>;
    const int64_t offset = (token * p.heads + head) * p.head_dim;
    load_rows<kDim>(target, static_cast<const bf16*>(p.q) + offset, pitch, count, p.head_dim);
    load_rows<kDim>(target + kBlockBytes<kDim>, static_cast<const bf16*>(p.d_out) + offset, pitch,
                    count, p.head_dim);
    if (threadIdx.x < 64) {
      const int row = static_cast<int>(threadIdx.x);
      copy_async_16(shared_address(statistics + step % 2 * 64 + row),
                    p.statistics + (token + min(row, count - 1)) * p.heads + head, 16);
    }
    copy_async_commit();
  };
  const int steps = group * blocks;
  load(0);
  for (int step = 0; step < steps; ++step) {
    if (step + 1 < steps) {
      load(step + 1);
      copy_async_wait<1>();
    } else {
      copy_async_wait<0>();
    }
    __syncthreads();
    const uint32_t queries = buffers + step % 2 * 2 * kBlockBytes<kDim>;
    const float4* of_query = statistics + step % 2 * 64;
    const int first = (first_block + step % blocks) * 64;
    const auto visit = [&]<bool kMasked>() {
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        float s[2][4];
        float dp[2][4];
        score_keys<kDim>(s, k, queries, 16 * g);
        score_keys<kDim>(dp, v, queries + kBlockBytes<kDim>, 16 * g);
        const int column0 = 16 * g + 2 * (lane % 4);
        const Gradient<kMasked> gradient(
            s, dp, p.scale, [&](int, int column) { return of_query[column0 + column]; },
            [&](int half, int column) {
              const int query = first + column0 + column;
              return tile.first + first_row + 8 * half <= query && query < tile.length;
            });
#pragma unroll
        for (int d = 0; d < kDim; d += 16) {
          add_values<kDim>(dv[d / 8], dv[d / 8 + 1], gradient.p, queries + kBlockBytes<kDim>,
                           16 * g, d);
          add_values<kDim>(dk[d / 8], dk[d / 8 + 1], gradient.ds, queries, 16 * g, d);
        }
      }
    };
    if (first == tile.first || first + 64 > tile.length) {
      visit.template operator()<true>();
    } else {
      visit.template operator()<false>();
    }
    __syncthreads();
  }
  const auto row_of = [&](int h, int head) {
    const int row = first_row + 8 * h;
    return row < tile.count ? p.gradient_row(tile.first_token + tile.first + row, head) : nullptr;
  };
  write_rows<kDim>(dk, p.head_dim, [&](int h) { return row_of(h, p.heads + kv_head); });
  write_rows<kDim>(dv, p.head_dim,
                   [&](int h) { return row_of(h, p.heads + p.kv_heads + kv_head); });
}

template <int kDim>
void launch_tiled(const Context& context, const AttentionBackwardParameters& p, int64_t tokens) {
  constexpr std::size_t kKeyBytes = 4 * kBlockBytes<kDim> + 2 * 64 * sizeof(float4);
  static const bool once = (allow_shared(query_gradient_kernel<kDim>, 4 * kBlockBytes<kDim>),
                            allow_shared(key_gradient_kernel<kDim>, kKeyBytes), true);
  (void)once;
  const auto tiles = static_cast<unsigned>(tokens / 64 + p.sequences);
  const dim3 by_head(tiles, static_cast<unsigned>(p.heads));
  launch(context, {.grid = by_head, .block = dim3(kThreads), .shared_bytes = 2 * kBlockBytes<kDim>},
         statistics_kernel<kDim>, p);
  launch(context,
         {.grid = dim3(tiles, static_cast<unsigned>(p.kv_heads)),
          .block = dim3(kThreads),
          .shared_bytes = kKeyBytes},
         key_gradient_kernel<kDim>, p);
  launch(context, {.grid = by_head, .block = dim3(kThreads), .shared_bytes = 4 * kBlockBytes<kDim>},
         query_gradient_kernel<kDim>, p);
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
  const bool tiled = args.q.dtype == DType::BF16 && p.head_dim % 8 == 0;
  if (tiled && p.head_dim <= 64) return launch_tiled<64>(context, p, tokens);
  if (tiled && p.head_dim <= 128) return launch_tiled<128>(context, p, tokens);
  attention_backward_plain(context, args.q.dtype, p, tokens);
}

}  // namespace dsmoe::kernels::cuda

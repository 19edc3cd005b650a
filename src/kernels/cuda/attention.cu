// Attention. Three kernels that give one another's bits where their shapes overlap:
//   many queries: attention_many.cu;
//   few queries:  16 rows, four warps share keys and dimensions, and a cluster of blocks takes the
//                 spans in parallel;
//   plain:        fp32, or head sizes beyond 128.
#include <cooperative_groups.h>

#include <algorithm>

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"

namespace dsmoe::kernels::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int kThreads = 128;
constexpr int kSpan = static_cast<int>(kBlocksPerSpan);

template <int kDim>
constexpr int kBlockBytes = 64 * kDim * 2;

// --- few queries
// -----------------------------------------------------------------------------------------------------------
// What a block of the cluster offers the others after its span.
template <int kDim>
struct SpanResult {
  float max[16];
  float sum[16];
  float o[16 * kDim];
};

template <int kDim>
__global__ void __launch_bounds__(kThreads)
    attention_few(const __grid_constant__ AttentionParameters p) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char memory[];
  const uint32_t buffers = shared_address(memory);
  auto& result = *reinterpret_cast<SpanResult<kDim>*>(memory + 4 * kBlockBytes<kDim>);
  __shared__ float group_max[4][16];
  __shared__ float group_sum[4][16];
  __shared__ __align__(128) bf16 numerators[16 * 64];
  cg::cluster_group cluster = cg::this_cluster();
  const int ranks = static_cast<int>(cluster.num_blocks());
  const int rank = static_cast<int>(cluster.block_rank());
  wait_for_previous_kernel();
  let_next_kernel_start();
  const QueryTile tile = find_tile<16>(p, static_cast<int>(blockIdx.x) / ranks);
  if (tile.sequence < 0) return;  // the whole cluster
  const int kv_head = static_cast<int>(blockIdx.y);
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int quarter = lane % 4;

  const bf16* row[2];
  int position[2];
  int last_position = 0;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = lane / 4 + 8 * h;
    row[h] = r < tile.num_rows ? static_cast<const bf16*>(p.q) + query_offset(p, tile, kv_head, r)
                               : nullptr;
    position[h] = r < tile.num_rows ? query_position(p, tile, r) : -1;
    last_position = max(last_position, position[h]);
  }
  last_position = __reduce_max_sync(~0u, last_position);
  uint32_t q[kDim / 16][4];
  load_queries<kDim>(q, row, p.head_dim);
  const int num_blocks = last_position / 64 + 1;
  const int num_spans = (num_blocks + kSpan - 1) / kSpan;
  const uint32_t p_base = shared_address(numerators);

  // This thread's share of the output: elements threadIdx.x + kThreads * (rank + ranks * i) of the
  // 16 x kDim.
  constexpr int kShare = 16 * kDim / kThreads;
  float total_o[kShare];
  float total_max[kShare];
  float total_sum[kShare];

  for (int first_span = 0; first_span < num_spans; first_span += ranks) {
    const int span = first_span + rank;
    if (span < num_spans) {
      const int begin = span * kSpan;
      const int end = min(num_blocks, begin + kSpan);
      float row_max[2] = {-INFINITY, -INFINITY};
      float row_sum[2] = {0, 0};
      float o[kDim / 32][4] = {};
      load_kv_block<kDim>(p, tile.sequence, kv_head, begin, buffers, buffers + kBlockBytes<kDim>);
      for (int block = begin; block < end; ++block) {
        const uint32_t keys = buffers + (block % 2) * 2 * kBlockBytes<kDim>;
        const uint32_t next = buffers + ((block + 1) % 2) * 2 * kBlockBytes<kDim>;
        if (block + 1 < end) {
          load_kv_block<kDim>(p, tile.sequence, kv_head, block + 1, next, next + kBlockBytes<kDim>);
          copy_async_wait<1>();
        } else {
          copy_async_wait<0>();
        }
        __syncthreads();
        float s[2][4];
        score_keys<kDim>(s, q, keys, 16 * warp);
        float best[2] = {-INFINITY, -INFINITY};
#pragma unroll
        for (int t = 0; t < 2; ++t) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int key = block * 64 + 16 * warp + 8 * t + 2 * quarter + i % 2;
            s[t][i] = key <= position[i / 2] ? s[t][i] * p.scale : -INFINITY;
            best[i / 2] = fmaxf(best[i / 2], s[t][i]);
          }
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          best[h] = row_max4(best[h]);
          if (quarter == 0) group_max[warp][lane / 4 + 8 * h] = best[h];
        }
        __syncthreads();
        float c[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int r = lane / 4 + 8 * h;
          float best_of_block = row_max[h];
          for (int g = 0; g < 4; ++g) best_of_block = fmaxf(best_of_block, group_max[g][r]);
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
          if (quarter == 0) group_sum[warp][r] = part;
        }
        __syncthreads();
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int r = lane / 4 + 8 * h;
          const float block_sum =
              ((group_sum[0][r] + group_sum[1][r]) + group_sum[2][r]) + group_sum[3][r];
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
            add_values<kDim>(o[d / 8], o[d / 8 + 1], a, keys + kBlockBytes<kDim>, 16 * g,
                             warp * (kDim / 4) + d);
          }
        }
        __syncthreads();
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int r = lane / 4 + 8 * h;
        if (warp == 0 && quarter == 0) {
          result.max[r] = row_max[h];
          result.sum[r] = row_sum[h];
        }
#pragma unroll
        for (int j = 0; j < kDim / 32; ++j) {
          const int d = warp * (kDim / 4) + 8 * j + 2 * quarter;
          result.o[r * kDim + d] = o[j][2 * h];
          result.o[r * kDim + d + 1] = o[j][2 * h + 1];
        }
      }
    }
    cluster.sync();
    for (int other = 0; other < ranks && first_span + other < num_spans; ++other) {
      const SpanResult<kDim>& next = *cluster.map_shared_rank(&result, other);
#pragma unroll
      for (int i = 0; i < kShare; ++i) {
        if (i >= kShare / ranks) break;
        const int element = threadIdx.x + kThreads * (rank + ranks * i);
        const int r = element / kDim;
        if (first_span + other == 0) {
          total_max[i] = next.max[r];
          total_sum[i] = next.sum[r];
          total_o[i] = next.o[element];
        } else {
          const Merge merge(total_max[i], next.max[r]);
          total_max[i] = merge.max;
          total_sum[i] = merge(total_sum[i], next.sum[r]);
          total_o[i] = merge(total_o[i], next.o[element]);
        }
      }
    }
    cluster.sync();
  }
#pragma unroll
  for (int i = 0; i < kShare; ++i) {
    if (i >= kShare / ranks) break;
    const int element = threadIdx.x + kThreads * (rank + ranks * i);
    const int r = element / kDim;
    const int d = element % kDim;
    if (r < tile.num_rows && d < p.head_dim) {
      static_cast<bf16*>(p.out)[query_offset(p, tile, kv_head, r) + d] =
          __float2bfloat16_rn(total_o[i] / total_sum[i]);
    }
  }
#endif
}

// --- plain
// -----------------------------------------------------------------------------------------------------------------
constexpr int kPlainShare = 16;  // dimensions per lane: head sizes up to 512

// One warp per token and head. Lane l scores keys l and l + 32 of a block, then owns dimensions l +
// 32 i.
template <class Operand>
__global__ void __launch_bounds__(32)
    attention_plain(const __grid_constant__ AttentionParameters p) {
  __shared__ float numerator[64];
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int token = static_cast<int>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  const int lane = threadIdx.x;
  const int kv_head = head / (p.heads / p.kv_heads);
  int sequence = 0;
  while (p.q_starts[sequence + 1] <= token) ++sequence;
  const int position = p.position[token];
  const Operand* q = static_cast<const Operand*>(p.q) +
                     (static_cast<int64_t>(token) * p.heads + head) * p.head_dim;
  float total_max = -INFINITY, total_sum = 0;
  float total_o[kPlainShare] = {};
  float max = -INFINITY, sum = 0;
  float o[kPlainShare] = {};
  const int num_blocks = position / 64 + 1;
  for (int block = 0; block < num_blocks; ++block) {
    const int64_t page = p.page_table[static_cast<int64_t>(sequence) * p.max_pages + block];
    const int64_t offset = (page * p.kv_heads + kv_head) * 64 * p.head_dim;
    const Operand* keys = static_cast<const Operand*>(p.keys) + offset;
    const Operand* values = static_cast<const Operand*>(p.values) + offset;
    float s[2];
    for (int h = 0; h < 2; ++h) {
      const int key = lane + 32 * h;
      float acc = 0;
      for (int segment = 0; segment < p.head_dim; segment += 256) {
        float chain = 0;
        for (int d = segment; d < min(p.head_dim, segment + 256); ++d) {
          chain = fmaf(widen(q[d]), widen(keys[key * p.head_dim + d]), chain);
        }
        acc = acc + chain;
      }
      s[h] = block * 64 + key <= position ? acc * p.scale : -INFINITY;
    }
    float best = fmaxf(s[0], s[1]);
    for (int step = 16; step > 0; step /= 2) best = fmaxf(best, __shfl_xor_sync(~0u, best, step));
    const float next = fmaxf(max, best);
    const float c = decay(max, next);
    max = next;
    __syncwarp();
    for (int h = 0; h < 2; ++h) {
      s[h] = s[h] == -INFINITY ? 0.0f : expf(s[h] - max);
      Operand rounded;
      round_into(rounded, s[h]);
      numerator[lane + 32 * h] = widen(rounded);
    }
    float block_sum = s[0] + s[1];
    for (int step = 16; step > 0; step /= 2) block_sum += __shfl_xor_sync(~0u, block_sum, step);
    sum = fmaf(sum, c, block_sum);
    __syncwarp();
    for (int i = 0; i < kPlainShare; ++i) {
      const int d = lane + 32 * i;
      if (d >= p.head_dim) break;
      float acc = o[i] * c;
      for (int key = 0; key < 64; ++key)
        acc = fmaf(numerator[key], widen(values[key * p.head_dim + d]), acc);
      o[i] = acc;
    }
    if (block % kSpan == kSpan - 1 || block + 1 == num_blocks) {
      const Merge merge(total_max, max);
      total_max = merge.max;
      const bool only = block < kSpan;
      total_sum = only ? sum : merge(total_sum, sum);
      for (int i = 0; i < kPlainShare; ++i) {
        total_o[i] = only ? o[i] : merge(total_o[i], o[i]);
        o[i] = 0;
      }
      max = -INFINITY;
      sum = 0;
    }
  }
  Operand* out =
      static_cast<Operand*>(p.out) + (static_cast<int64_t>(token) * p.heads + head) * p.head_dim;
  for (int i = 0; i < kPlainShare; ++i) {
    if (lane + 32 * i < p.head_dim) round_into(out[lane + 32 * i], total_o[i] / total_sum);
  }
}

template <int kDim>
void launch_tiled(const Context& context, const AttentionParameters& p, int64_t tokens) {
  const int64_t rows = tokens * (p.heads / p.kv_heads);
  const auto grid_y = static_cast<unsigned>(p.kv_heads);
  if (rows > 16 * p.sequences || p.log_sums || !has_clusters())
    return attention_of_many(context, p, tokens);
  const std::size_t bytes = 4 * kBlockBytes<kDim> + sizeof(SpanResult<kDim>);
  static const bool once = (allow_shared(attention_few<kDim>, bytes), true);
  (void)once;
  // Spans side by side as far as the multiprocessors would else be idle: ranks without a span cost
  // a start each, and positions are not known here.
  const auto tiles = static_cast<unsigned>(rows / 16 + p.sequences);
  const auto room = static_cast<unsigned>(2 * num_multiprocessors());
  unsigned cluster = 1;
  while (cluster < 8 && static_cast<int>(cluster) * kSpan < p.max_pages &&
         2 * cluster * tiles * grid_y <= room) {
    cluster *= 2;
  }
  launch(context,
         {.grid = dim3(tiles * cluster, grid_y),
          .block = dim3(kThreads),
          .shared_bytes = bytes,
          .cluster = cluster},
         attention_few<kDim>, p);
}

}  // namespace

void attention_forward(const Context& context, const AttentionForward& args) {
  const int64_t tokens = args.q.dim(0);
  if (tokens == 0) return;
  DSMOE_CHECK(args.kv.layout == WeightLayout::row_major,
              "attention on CUDA: KV pages must be row-major");
  const AttentionParameters p{.q = args.q.data,
                              .keys = args.kv.keys,
                              .values = args.kv.values,
                              .q_starts = args.q_starts.as<int32_t>(),
                              .position = args.position.as<int32_t>(),
                              .page_table = args.page_table.as<int32_t>(),
                              .out = args.out.data,
                              .log_sums = args.log_sums ? args.log_sums.as<float>() : nullptr,
                              .scale = args.scale,
                              .sequences = static_cast<int32_t>(args.page_table.dim(0)),
                              .max_pages = static_cast<int32_t>(args.page_table.dim(1)),
                              .heads = static_cast<int32_t>(args.q.dim(1)),
                              .kv_heads = static_cast<int32_t>(args.kv.num_kv_heads),
                              .head_dim = static_cast<int32_t>(args.q.dim(2))};
  // The choice depends on head_dim and type alone, except between kernels of equal bits.
  if (args.q.dtype == DType::BF16 && p.head_dim % 8 == 0 && p.head_dim <= 64)
    return launch_tiled<64>(context, p, tokens);
  if (args.q.dtype == DType::BF16 && p.head_dim % 8 == 0 && p.head_dim <= 128)
    return launch_tiled<128>(context, p, tokens);
  DSMOE_CHECK(p.head_dim <= 32 * kPlainShare,
              "attention on CUDA: head size {}; at most {} is supported", p.head_dim,
              32 * kPlainShare);
  const LaunchShape shape{
      .grid = dim3(static_cast<unsigned>(tokens), static_cast<unsigned>(p.heads)),
      .block = dim3(32)};
  if (args.q.dtype == DType::BF16) return launch(context, shape, attention_plain<bf16>, p);
  launch(context, shape, attention_plain<float>, p);
}

}  // namespace dsmoe::kernels::cuda

// Attention. Three kernels that give one another's bits where their shapes overlap:
//   many queries: attention_many.cu;
//   few queries:  16 rows, four warps share keys and dimensions, and a cluster of blocks takes the
//                 spans in parallel;
//   plain:        fp32, or head sizes beyond 128.
#include <cooperative_groups.h>

#include <algorithm>

#include "kernels/cuda/attention/attention_few.cuh"
#include "kernels/cuda/device/elements.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/stream/launch.h"

namespace dsmoe::kernels::cuda {
namespace {

namespace cg = cooperative_groups;

// --- few queries
// -----------------------------------------------------------------------------------------------------------
// Blocks that fit a multiprocessor at once: a batch of 32 sequences and 16 heads is one wave.
constexpr int kFewBlocks = 4;

template <int kDim>
__global__ void __launch_bounds__(kFewQueriesThreads, kFewBlocks)
    attention_few(const __grid_constant__ AttentionParameters p) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char bytes[];
  auto& memory = *reinterpret_cast<SpanMemory<kDim>*>(bytes);
  cg::cluster_group cluster = cg::this_cluster();
  MergedRow<kDim> merged{.rank = static_cast<int>(cluster.block_rank()),
                         .ranks = static_cast<int>(cluster.num_blocks())};
  // Where queries, keys and values lie was uploaded before the first kernel: it is read, and what
  // keys and values are there brought nearer, while the kernel ahead still runs.
  const QueryTile tile = find_tile<16>(p, static_cast<int>(blockIdx.x) / merged.ranks);
  const int kv_head = static_cast<int>(blockIdx.y);
  SpanQueries<kDim> queries(p, tile);
  const int num_spans = queries.num_spans();
  if (tile.sequence >= 0 && merged.rank < num_spans)
    prefetch_block<kDim>(p, tile, kv_head, merged.rank * kSpan);
  wait_for_previous_kernel();
  let_next_kernel_start();
  if (tile.sequence < 0) return;  // the whole cluster
  if (merged.rank < num_spans) {
    start_span<kDim>(p, tile, kv_head, merged.rank, memory);
    queries.load(p, tile, kv_head);
  }
  if (num_spans == 1) {
    // One block's work: no need to wait for the others.
    if (merged.rank > 0) return;
    attend_span<kDim>(p, tile, kv_head, 0, queries, memory);
    __syncthreads();
    write_span<kDim>(p, tile, kv_head, memory.result);
    return;
  }
  for (int first_span = 0; first_span < num_spans; first_span += merged.ranks) {
    const int span = first_span + merged.rank;
    if (span < num_spans) {
      if (first_span > 0) start_span<kDim>(p, tile, kv_head, span, memory);
      attend_span<kDim>(p, tile, kv_head, span, queries, memory);
    }
    cluster.sync();
    for (int other = 0; other < merged.ranks && first_span + other < num_spans; ++other)
      merged.add(*cluster.map_shared_rank(&memory.result, other), first_span + other == 0);
    cluster.sync();
  }
  merged.write(p, tile, kv_head);
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
    const float next = fmaxf(max, warp_max(fmaxf(s[0], s[1])));
    const float c = decay(max, next);
    max = next;
    __syncwarp();
    for (int h = 0; h < 2; ++h) {
      s[h] = s[h] == -INFINITY ? 0.0f : expf(s[h] - max);
      Operand rounded;
      round_into(rounded, s[h]);
      numerator[lane + 32 * h] = widen(rounded);
    }
    sum = fmaf(sum, c, warp_sum(s[0] + s[1]));
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
  constexpr std::size_t bytes = sizeof(SpanMemory<kDim>);
  allow_shared_once<attention_few<kDim>>(bytes);
  // Spans side by side as far as the multiprocessors would else be idle: ranks without a span cost
  // a start each, and positions are not known here.
  const auto tiles = static_cast<unsigned>((rows + 15 * p.sequences) / 16);
  const auto room = static_cast<unsigned>(2 * num_multiprocessors());
  unsigned cluster = 1;
  while (cluster < 8 && static_cast<int>(cluster) * kSpan < p.max_pages &&
         2 * cluster * tiles * grid_y <= room) {
    cluster *= 2;
  }
  launch(context,
         {.grid = dim3(tiles * cluster, grid_y),
          .block = dim3(kFewQueriesThreads),
          .shared_bytes = bytes,
          .cluster = cluster},
         attention_few<kDim>, p);
}

}  // namespace

void attention_forward(const Context& context, const AttentionForward& args) {
  const int64_t tokens = args.q.dim(0);
  if (tokens == 0) return;
  DSMOE_CHECK(args.kv.shape.layout == WeightLayout::row_major,
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
                              .pages = static_cast<int32_t>(args.kv.num_pages),
                              .max_pages = static_cast<int32_t>(args.page_table.dim(1)),
                              .heads = static_cast<int32_t>(args.q.dim(1)),
                              .kv_heads = static_cast<int32_t>(args.kv.shape.heads),
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

// The router: logits, scores, selection and gates in one kernel.
//
// Logits. k runs in segments of 256, added ascending. bf16 activations meet the fp32 centroid split
// exactly into three bf16 parts; a segment is three ascending chains of k16 tensor-core steps,
// joined (low + middle) + high. Within 32 values of k, lane quarter q of a step takes values 8 q +
// {0..3}, the next step 8 q + {4..7}, so that all loads are 16 bytes wide. fp32 activations: an FMA
// chain per segment. Up to 4,096 tokens a cluster of eight blocks shares a tile of 8 or 32 tokens:
// each takes segments s = rank (mod 8), then selects for an eighth of them. Beyond, a block takes
// 32 tokens, its eight warps the segments. The sums are the same either way.
#include <cooperative_groups.h>

#include "kernels/cuda/moe/router.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/stream/launch.h"

namespace dsmoe::kernels::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int kCluster = 8;
template <int kRanks>
constexpr int kWarpsOf = kRanks == 1 ? 8 : 4;
constexpr int kMaxExpertsRouted = 512;

using Parameters = RouterParameters;

// Launches under way take a set each, in turn. A kernel leaves its set as it found it.
constexpr int kSets = 64;
struct RouterSets {
  DeviceArray<unsigned> memory{2 * kSets};
  unsigned turn = 0;

  RouterSets() {
    unsigned start[kSets][2];
    for (auto& pair : start) pair[0] = ~0u, pair[1] = 0;
    check(cudaMemcpy(memory.data(), start, sizeof(start), cudaMemcpyHostToDevice), "router sets");
    check(cudaStreamSynchronize(nullptr), "router sets");
  }
};

// Eight consecutive values, zeros past the end of the row.
__device__ void load_activation(uint32_t (&v)[4], const bf16* row, int k, int size) {
  if (size % 8 == 0) {
    const uint4 raw = k < size ? *reinterpret_cast<const uint4*>(row + k) : uint4{};
    v[0] = raw.x, v[1] = raw.y, v[2] = raw.z, v[3] = raw.w;
    return;
  }
  const auto* bits = reinterpret_cast<const unsigned short*>(row);
  for (int i = 0; i < 4; ++i) {
    const uint32_t low = k + 2 * i < size ? bits[k + 2 * i] : 0;
    const uint32_t high = k + 2 * i + 1 < size ? bits[k + 2 * i + 1] : 0;
    v[i] = low | (high << 16);
  }
}
template <int kTiles>
__device__ void store_sums(const Parameters& p, const float (&sum)[3][kTiles][4], int first_expert,
                           float* partial) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int e = first_expert + lane / 4 + 8 * (i / 2);
      const int token = 8 * t + 2 * (lane % 4) + i % 2;
      if (e < p.experts)
        partial[token * p.experts + e] = (sum[2][t][i] + sum[1][t][i]) + sum[0][t][i];
    }
  }
}

// One segment of 16 experts times kTiles x 8 tokens, bf16 activations. `ready`: the centroids,
// where they were loaded ahead.
template <int kTiles>
__device__ void segment_sums(const Parameters& p, int first_expert, int first_token, int k_begin,
                             float* partial, SegmentCentroids& ready) {
  const int lane = threadIdx.x % 32;
  const auto activation = [&](uint32_t(&v)[kTiles][4], int k0) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const int token = min(first_token + 8 * t + lane / 4, p.tokens - 1);
      load_activation(v[t], static_cast<const bf16*>(p.x) + static_cast<int64_t>(token) * p.hidden,
                      k0 + 8 * (lane % 4), p.hidden);
    }
  };
  float sum[3][kTiles][4] = {};
  if constexpr (kTiles == 1) {
    uint32_t v[kSegment / 32][1][4];
#pragma unroll
    for (int block = 0; block < kSegment / 32; ++block) activation(v[block], k_begin + 32 * block);
#pragma unroll
    for (int block = 0; block < kSegment / 32; ++block) add_block<1>(sum, ready.c[block], v[block]);
  } else {
    const int k_end = min(p.hidden, k_begin + kSegment);
#pragma unroll 2
    for (int k0 = k_begin; k0 < k_end; k0 += 32) {
      float c[2][8];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int e = min(first_expert + lane / 4 + 8 * half, p.experts - 1);
        load_centroid(c[half], p.centroids + static_cast<int64_t>(e) * p.hidden,
                      k0 + 8 * (lane % 4), p.hidden);
      }
      uint32_t v[kTiles][4];
      activation(v, k0);
      add_block<kTiles>(sum, c, v);
    }
  }
  store_sums<kTiles>(p, sum, first_expert, partial);
}

// The same for fp32 activations, by all threads of the block.
__device__ void segment_sums_f32(const Parameters& p, int num_tokens, int first_token, int k_begin,
                                 float* partial) {
  const int k_end = min(p.hidden, k_begin + kSegment);
  for (int item = threadIdx.x; item < num_tokens * p.experts; item += blockDim.x) {
    const int token = min(first_token + item / p.experts, p.tokens - 1);
    const float* x = static_cast<const float*>(p.x) + static_cast<int64_t>(token) * p.hidden;
    const float* c = p.centroids + static_cast<int64_t>(item % p.experts) * p.hidden;
    float chain = 0;
    for (int k = k_begin; k < k_end; ++k) chain = fmaf(x[k], c[k], chain);
    partial[item] = chain;
  }
}

// The blocks that share a tile of tokens. One block is a cluster of its own, on any device.
template <int kRanks>
struct Cluster {
#if __CUDA_ARCH__ >= 900
  __device__ int rank() const { return static_cast<int>(cg::this_cluster().block_rank()); }
  __device__ void sync() const { cg::this_cluster().sync(); }
  template <class T>
  __device__ T* of(T* shared, int rank) const {
    return cg::this_cluster().map_shared_rank(shared, rank);
  }
#else
  __device__ int rank() const {
    __trap();
    return 0;
  }
  __device__ void sync() const { __trap(); }
  template <class T>
  __device__ T* of(T* shared, int) const {
    return shared;
  }
#endif
};
template <>
struct Cluster<1> {
  __device__ int rank() const { return 0; }
  __device__ void sync() const { __syncthreads(); }
  template <class T>
  __device__ T* of(T* shared, int) const {
    return shared;
  }
};

// Shared memory: [segments of this block][tokens of the tile][experts], then per warp two rows of
// experts and kMaxTopK.
template <int kTiles, int kPerLane, bool kFloat, int kRanks>
__global__ void __launch_bounds__(kWarpsOf<kRanks> * 32)
    router_kernel(const __grid_constant__ Parameters p) {
  constexpr int kTokens = 8 * kTiles;
  constexpr int kWarps = kWarpsOf<kRanks>;
  extern __shared__ float shared[];
  __shared__ unsigned lowest_bad[kCluster];
  __shared__ unsigned block_bad[kWarps];
  const Cluster<kRanks> cluster;
  const int rank = cluster.rank();
  const int warp = threadIdx.x / 32;
  const int first_token = static_cast<int>(blockIdx.x) / kRanks * kTokens;
  const int num_segments = (p.hidden + kSegment - 1) / kSegment;
  const int local_segments = (num_segments + kRanks - 1) / kRanks;
  const int tile = kTokens * p.experts;
  // Centroids are weights: nothing that the kernel ahead writes.
  SegmentCentroids ready;
  if constexpr (kTiles == 1 && !kFloat && kRanks > 1) ready.load(p, warp * 16, rank * kSegment);
  wait_for_previous_kernel();
  let_next_kernel_start();

  if constexpr (kFloat) {
    for (int local = 0; local * kRanks + rank < num_segments; ++local) {
      segment_sums_f32(p, kTokens, first_token, (local * kRanks + rank) * kSegment,
                       shared + local * tile);
    }
  } else if constexpr (kRanks > 1) {
    for (int local = 0; local * kRanks + rank < num_segments; ++local) {
      const int k = (local * kRanks + rank) * kSegment;
      for (int e = warp * 16; e < p.experts; e += kWarps * 16) {
        if (kTiles == 1 && (local > 0 || e >= kWarps * 16)) ready.load(p, e, k);
        segment_sums<kTiles>(p, e, first_token, k, shared + local * tile, ready);
      }
    }
  } else {
    const int units = num_segments * ((p.experts + 15) / 16);
    for (int unit = warp; unit < units; unit += kWarps) {
      const int s = unit % num_segments;
      if constexpr (kTiles == 1) ready.load(p, unit / num_segments * 16, s * kSegment);
      segment_sums<kTiles>(p, unit / num_segments * 16, first_token, s * kSegment,
                           shared + s * tile, ready);
    }
  }
  cluster.sync();

  float* s = shared + local_segments * tile + warp * (2 * p.experts + kMaxTopK);
  unsigned bad = ~0u;
  constexpr int kShare = kTokens / kRanks;  // tokens this block selects for
  for (int mine = warp; mine < kShare; mine += kWarps) {
    const int inside = rank * kShare + mine;
    const int token = first_token + inside;
    if (token >= p.tokens) break;
    for (int e = threadIdx.x % 32; e < p.experts; e += 32) {
      float logit = 0;
#pragma unroll 8
      for (int seg = 0; seg < num_segments; ++seg) {
        const float* other = cluster.of(shared, seg % kRanks);
        logit += other[seg / kRanks * tile + inside * p.experts + e];
      }
      s[e] = logit;
    }
    __syncwarp();
    if (!select_token<kPerLane>(p, token, s, s + p.experts, s + 2 * p.experts))
      bad = min(bad, static_cast<unsigned>(token));
    __syncwarp();
  }
  // The lowest bad token: of the cluster through block 0, of the grid through the last to finish.
  if (threadIdx.x % 32 == 0) block_bad[warp] = bad;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (unsigned other : block_bad) bad = min(bad, other);
    cluster.of(lowest_bad, 0)[rank] = bad;
  }
  cluster.sync();
  if (rank == 0 && threadIdx.x == 0) {
    for (int r = 0; r < kRanks; ++r) bad = min(bad, lowest_bad[r]);
    const unsigned tiles = gridDim.x / kRanks;
    if (tiles == 1) {
      *p.bad_token = static_cast<int32_t>(bad);
    } else {
      if (bad != ~0u) atomicMin(p.scratch, bad);
      __threadfence();
      if (atomicInc(p.scratch + 1, tiles - 1) == tiles - 1) {
        *p.bad_token = static_cast<int32_t>(atomicExch(p.scratch, ~0u));
      }
    }
  }
}

// Returns false when the tile does not fit into shared memory.
template <int kTiles, int kPerLane, bool kFloat, int kRanks>
bool launch_router(const Context& context, const Parameters& p) {
  constexpr int kWarps = kWarpsOf<kRanks>;
  const auto kernel = router_kernel<kTiles, kPerLane, kFloat, kRanks>;
  const int segments = ((p.hidden + kSegment - 1) / kSegment + kRanks - 1) / kRanks;
  const std::size_t bytes = 4u * (static_cast<std::size_t>(segments) * 8 * kTiles * p.experts +
                                  kWarps * (2 * p.experts + kMaxTopK));
  if (bytes + 1024 > static_cast<std::size_t>(shared_memory_limit())) return false;
  if (bytes > 40 * 1024) allow_shared(kernel, bytes);
  const unsigned tiles = static_cast<unsigned>((p.tokens + 8 * kTiles - 1) / (8 * kTiles));
  launch(context,
         {.grid = dim3(tiles * kRanks),
          .block = dim3(kWarps * 32),
          .shared_bytes = bytes,
          .cluster = kRanks},
         kernel, p);
  return true;
}

template <int kTiles, bool kFloat, int kRanks>
bool launch_tiles(const Context& context, const Parameters& p) {
  if (p.experts <= 64) return launch_router<kTiles, 2, kFloat, kRanks>(context, p);
  if (p.experts <= 256) return launch_router<kTiles, 8, kFloat, kRanks>(context, p);
  return launch_router<kTiles, 16, kFloat, kRanks>(context, p);
}

unsigned* next_set(const Context& context) {
  auto& sets = state_of<RouterSets>(context);
  return sets.memory.data() + 2 * (sets.turn++ % kSets);
}

}  // namespace

void prepare_router(const Context& context) { state_of<RouterSets>(context); }

void router_forward(const Context& context, const RouterForward& args) {
  const auto tokens = static_cast<int32_t>(args.x.dim(0));
  DSMOE_CHECK(args.centroids.n <= kMaxExpertsRouted && args.rule.top_k <= kMaxTopK &&
                  args.rule.num_groups <= 32,
              "router on CUDA: {} experts, top {}, {} groups; at most {}, {} and 32 are supported",
              args.centroids.n, args.rule.top_k, args.rule.num_groups, kMaxExpertsRouted, kMaxTopK);
  const auto optional = [](const TensorView& view) { return view ? view.as<int32_t>() : nullptr; };
  if (tokens == 0) {
    check(cudaMemsetAsync(args.bad_token.data, 0xff, 4, stream_of(context)), "router of no tokens");
    return;
  }
  const Parameters p{.rule = args.rule,
                     .x = args.x.data,
                     .centroids = static_cast<const float*>(args.centroids.data),
                     .bias = args.selection_bias ? args.selection_bias.as<float>() : nullptr,
                     .experts_of_token = optional(args.experts_of_token),
                     .replayed = optional(args.replayed_index),
                     .logits = args.logits ? args.logits.as<float>() : nullptr,
                     .affinity = args.affinity.as<float>(),
                     .index = args.index.as<int32_t>(),
                     .gate = args.gate.as<float>(),
                     .bad_token = args.bad_token.as<int32_t>(),
                     .scratch = next_set(context),
                     .tokens = tokens,
                     .experts = static_cast<int32_t>(args.centroids.n),
                     .hidden = static_cast<int32_t>(args.centroids.k)};
  bool fits = false;
  if (!has_clusters()) {
    fits = args.x.dtype == DType::BF16 ? (tokens > 64 && launch_tiles<4, false, 1>(context, p)) ||
                                             launch_tiles<1, false, 1>(context, p)
                                       : launch_tiles<1, true, 1>(context, p);
  } else if (args.x.dtype == DType::BF16) {
    fits = (tokens > 4096 && launch_tiles<4, false, 1>(context, p)) ||
           (tokens > 64 && launch_tiles<4, false, kCluster>(context, p)) ||
           launch_tiles<1, false, kCluster>(context, p);
  } else {
    fits = launch_tiles<1, true, kCluster>(context, p);
  }
  DSMOE_CHECK(fits, "router on CUDA: {} experts of {} hidden values exceed shared memory",
              p.experts, p.hidden);
}

}  // namespace dsmoe::kernels::cuda

// The router: logits, scores, selection and gates in one kernel.
//
// Logits. k runs in segments of 256, added ascending. bf16 activations meet the fp32 centroid split exactly into three bf16
// parts; a segment is three ascending chains of k16 tensor-core steps, joined (low + middle) + high. Within 32 values of k, lane
// quarter q of a step takes values 8 q + {0..3}, the next step 8 q + {4..7}, so that all loads are 16 bytes wide. fp32 activations:
// an FMA chain per segment. Few tokens (here): a cluster of eight blocks shares a tile of 8, each takes segments s = rank (mod
// 8), then selects for one of them. Many tokens: router_many.cu, the same sums.
#include <cooperative_groups.h>

#include <atomic>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/router.cuh"

namespace dsmoe::kernels::cuda {
namespace {

namespace cg = cooperative_groups;

using Parameters = RouterParameters;
constexpr int kCluster = 8;
constexpr int kWarps = 4;

__device__ unsigned scratch_memory[64][2];

// The centroid values one lane needs for a segment of 16 experts: 256 k of two experts, a quarter of each 32.
struct SegmentCentroids {
  float c[kSegment / 32][2][8];

  __device__ void load(const Parameters& p, int first_expert, int k_begin) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int block = 0; block < kSegment / 32; ++block) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int e = min(first_expert + lane / 4 + 8 * half, p.experts - 1);
        load_centroid(c[block][half], p.centroids + static_cast<int64_t>(e) * p.hidden, k_begin + 32 * block + 8 * (lane % 4),
                      p.hidden);
      }
    }
  }
};

// One segment of 16 experts times 8 tokens, bf16 activations.
__device__ void segment_sums(const Parameters& p, const SegmentCentroids& centroids, int first_expert, int first_token,
                             int k_begin, float* partial) {
  const int lane = threadIdx.x % 32;
  const int own = min(first_token + lane / 4, p.tokens - 1);
  const bf16* x = static_cast<const bf16*>(p.x) + static_cast<int64_t>(own) * p.hidden;
  uint32_t v[kSegment / 32][4];
#pragma unroll
  for (int block = 0; block < kSegment / 32; ++block) {
    load_activation(v[block], x, k_begin + 32 * block + 8 * (lane % 4), p.hidden);
  }
  float sum[3][4] = {};
#pragma unroll
  for (int block = 0; block < kSegment / 32; ++block) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      uint32_t a[3][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* pair = centroids.c[block][i % 2] + 4 * step + 2 * (i / 2);
        split(pair[0], pair[1], a[0][i], a[1][i], a[2][i]);
      }
      const uint32_t b[2] = {v[block][2 * step], v[block][2 * step + 1]};
#pragma unroll
      for (int part = 0; part < 3; ++part) mma_16x8x16(sum[part], a[part], b);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int e = first_expert + lane / 4 + 8 * (i / 2);
    const int token = 2 * (lane % 4) + i % 2;
    if (e < p.experts) partial[token * p.experts + e] = (sum[2][i] + sum[1][i]) + sum[0][i];
  }
}

// The same for fp32 activations, by all threads of the block.
__device__ void segment_sums_f32(const Parameters& p, int first_token, int k_begin, float* partial) {
  const int k_end = min(p.hidden, k_begin + kSegment);
  for (int item = threadIdx.x; item < 8 * p.experts; item += blockDim.x) {
    const int token = min(first_token + item / p.experts, p.tokens - 1);
    const float* x = static_cast<const float*>(p.x) + static_cast<int64_t>(token) * p.hidden;
    const float* c = p.centroids + static_cast<int64_t>(item % p.experts) * p.hidden;
    float chain = 0;
    for (int k = k_begin; k < k_end; ++k) chain = fmaf(x[k], c[k], chain);
    partial[item] = chain;
  }
}

// Shared memory: [segments of this block][8 tokens][experts], then two rows of experts and kMaxTopK.
template <int kPerLane, bool kFloat>
__global__ void __launch_bounds__(kWarps * 32) router_kernel(const __grid_constant__ Parameters p) {
  extern __shared__ float shared[];
  __shared__ unsigned bad_of_rank[kCluster];
  cg::cluster_group cluster = cg::this_cluster();
  const int rank = static_cast<int>(cluster.block_rank());
  const int warp = threadIdx.x / 32;
  const int first_token = static_cast<int>(blockIdx.x) / kCluster * 8;
  const int num_segments = (p.hidden + kSegment - 1) / kSegment;
  const int local_segments = (num_segments + kCluster - 1) / kCluster;
  const int tile = 8 * p.experts;
  // Centroids are weights: nothing that the kernel ahead writes.
  SegmentCentroids centroids;
  if constexpr (!kFloat) centroids.load(p, warp * 16, rank * kSegment);
  wait_for_previous_kernel();
  let_next_kernel_start();

  for (int local = 0; local * kCluster + rank < num_segments; ++local) {
    const int k = (local * kCluster + rank) * kSegment;
    if constexpr (kFloat) {
      segment_sums_f32(p, first_token, k, shared + local * tile);
    } else {
      for (int e = warp * 16; e < p.experts; e += kWarps * 16) {
        if (local > 0 || e >= kWarps * 16) centroids.load(p, e, k);
        segment_sums(p, centroids, e, first_token, k, shared + local * tile);
      }
    }
  }
  cluster.sync();

  const int token = first_token + rank;
  if (warp == 0) {
    bool finite = true;
    if (token < p.tokens) {
      float* s = shared + local_segments * tile;
      for (int e = threadIdx.x; e < p.experts; e += 32) {
        float logit = 0;
#pragma unroll 8
        for (int seg = 0; seg < num_segments; ++seg) {
          logit += cluster.map_shared_rank(shared, seg % kCluster)[seg / kCluster * tile + rank * p.experts + e];
        }
        s[e] = logit;
      }
      __syncwarp();
      finite = select_token<kPerLane>(p, token, s, s + p.experts, s + 2 * p.experts);
    }
    if (threadIdx.x == 0) cluster.map_shared_rank(bad_of_rank, 0)[rank] = finite ? ~0u : static_cast<unsigned>(token);
  }
  cluster.sync();
  if (rank == 0 && threadIdx.x == 0) {
    unsigned bad = ~0u;
    for (unsigned other : bad_of_rank) bad = min(bad, other);
    report_bad(p, bad, gridDim.x / kCluster);
  }
}

template <int kPerLane, bool kFloat>
void launch_few(const Context& context, const Parameters& p) {
  const auto kernel = router_kernel<kPerLane, kFloat>;
  const int segments = ((p.hidden + kSegment - 1) / kSegment + kCluster - 1) / kCluster;
  const std::size_t bytes = 4u * (static_cast<std::size_t>(segments) * 8 * p.experts + 2 * p.experts + kMaxTopK);
  DSMOE_CHECK(bytes <= 220 * 1024, "router on CUDA: {} experts of {} hidden values exceed shared memory", p.experts,
              p.hidden);
  if (bytes > 40 * 1024) allow_shared(kernel, bytes);
  const unsigned tiles = static_cast<unsigned>((p.tokens + 7) / 8);
  launch(context,
         {.grid = dim3(tiles * kCluster), .block = dim3(kWarps * 32), .shared_bytes = bytes, .cluster = kCluster}, kernel,
         p);
}

template <bool kFloat>
void launch_few(const Context& context, const Parameters& p) {
  if (p.experts <= 64) return launch_few<2, kFloat>(context, p);
  if (p.experts <= 256) return launch_few<8, kFloat>(context, p);
  launch_few<16, kFloat>(context, p);
}

unsigned* next_scratch() {
  static unsigned* const base = [] {
    void* pointer = nullptr;
    check(cudaGetSymbolAddress(&pointer, scratch_memory), "router scratch");
    unsigned start[64][2];
    for (auto& pair : start) pair[0] = ~0u, pair[1] = 0;
    check(cudaMemcpy(pointer, start, sizeof(start), cudaMemcpyHostToDevice), "router scratch");
    return static_cast<unsigned*>(pointer);
  }();
  static std::atomic<unsigned> turn{0};
  return base + 2 * (turn.fetch_add(1) % 64);
}

}  // namespace

void prepare_router() { next_scratch(); }

void router_forward(const Context& context, const RouterForward& args) {
  const auto tokens = static_cast<int32_t>(args.x.dim(0));
  DSMOE_CHECK(args.centroids.n <= kMaxExpertsRouted && args.rule.top_k <= kMaxTopK && args.rule.num_groups <= 32,
              "router on CUDA: {} experts, top {}, {} groups; at most {}, {} and 32 are supported", args.centroids.n,
              args.rule.top_k, args.rule.num_groups, kMaxExpertsRouted, kMaxTopK);
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
                     .scratch = next_scratch(),
                     .tokens = tokens,
                     .experts = static_cast<int32_t>(args.centroids.n),
                     .hidden = static_cast<int32_t>(args.centroids.k)};
  if (args.x.dtype == DType::F32) return launch_few<true>(context, p);
  if (tokens > 256 && launch_router_many(context, p)) return;
  launch_few<false>(context, p);
}

}  // namespace dsmoe::kernels::cuda

// The router for many tokens: 128 to a cluster of four blocks, 16 to a warp, 64 experts at a time.
//
// Block r of the cluster takes segments s = r (mod 4), then selects for a quarter of the tokens.
// Centroids are split once per block and lie in shared memory in the order of the k16 steps (router.cu), 128 k at a time, two
// buffers; activations go straight to registers. The next piece of both is on its way while the current one is multiplied.
#include <cooperative_groups.h>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/router.cuh"

namespace dsmoe::kernels::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int kRanks = 4;
constexpr int kThreads = 256;
constexpr int kTokens = 128;
constexpr int kPiece = 128;                    // k
constexpr int kPartBytes = 64 * kPiece * 2;    // one bf16 part of 64 experts
constexpr int kBufferBytes = 3 * kPartBytes;

// Row e of a part: 256 bytes; pieces of 16 bytes are permuted so that eight neighbouring rows never meet in a bank.
__device__ uint32_t part_address(uint32_t base, int e, int piece) { return base + e * 256 + ((piece & 8) | ((piece ^ e) & 7)) * 16; }

// A thread's share of a piece: four runs of eight values, experts thread / 16 + 16 i, values 8 (thread % 16) on.
struct Share {
  float c[4][8];

  __device__ void load(const RouterParameters& p, int first_expert, int k_begin) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int e = min(first_expert + static_cast<int>(threadIdx.x) / 16 + 16 * i, p.experts - 1);
      load_centroid(c[i], p.centroids + static_cast<int64_t>(e) * p.hidden, k_begin + 8 * (threadIdx.x % 16), p.hidden);
    }
  }
  // Values 4 t + {0, 1} of the run go to places 2 q of step t, values 4 t + {2, 3} to 8 + 2 q, q the run's quarter of 32.
  __device__ void store(uint32_t buffer) const {
    const int run = threadIdx.x % 16;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int e = static_cast<int>(threadIdx.x) / 16 + 16 * i;
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        uint32_t part[3];
        split(c[i][2 * pair], c[i][2 * pair + 1], part[0], part[1], part[2]);
        const int piece = run / 4 * 4 + pair;  // 16-byte piece: 8 places
        const uint32_t place = part_address(buffer, e, piece) + run % 4 * 4;
#pragma unroll
        for (int j = 0; j < 3; ++j) asm volatile("st.shared.u32 [%0], %1;" ::"r"(place + j * kPartBytes), "r"(part[j]) : "memory");
      }
    }
  }
};

struct Activations {
  uint32_t v[kPiece / 32][2][4];

  __device__ void load(const bf16* const (&row)[2], int k_begin, int hidden) {
#pragma unroll
    for (int block = 0; block < kPiece / 32; ++block) {
#pragma unroll
      for (int t = 0; t < 2; ++t) load_activation(v[block][t], row[t], k_begin + 32 * block + 8 * (threadIdx.x % 4), hidden);
    }
  }
};

// Shared memory: two buffers of split centroids; sums [segments of this block][128][experts]; per warp two rows of experts and
// kMaxTopK.
template <int kPerLane>
__global__ void __launch_bounds__(kThreads, 1) router_many_kernel(const __grid_constant__ RouterParameters p) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ unsigned block_bad;
  cg::cluster_group cluster = cg::this_cluster();
  const int rank = static_cast<int>(cluster.block_rank());
  const uint32_t buffers = shared_address(memory);
  auto* partial = reinterpret_cast<float*>(memory + 2 * kBufferBytes);
  const int tile = kTokens * p.experts;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int cluster_token = static_cast<int>(blockIdx.x) / kRanks * kTokens;
  const int num_segments = (p.hidden + kSegment - 1) / kSegment;
  const int local_segments = (num_segments + kRanks - 1) / kRanks;
  if (threadIdx.x == 0) block_bad = ~0u;
  wait_for_previous_kernel();
  let_next_kernel_start();
  const bf16* row[2];
#pragma unroll
  for (int t = 0; t < 2; ++t) {
    const int token = min(cluster_token + warp * 16 + 8 * t + lane / 4, p.tokens - 1);
    row[t] = static_cast<const bf16*>(p.x) + static_cast<int64_t>(token) * p.hidden;
  }
  // Piece i of this block; past the end of k its values are zero.
  const auto piece_begin = [&](int i) { return (i / 2 * kRanks + rank) * kSegment + i % 2 * kPiece; };
  const int pieces = 2 * local_segments;
  for (int e0 = 0; e0 < p.experts; e0 += 64) {
    float sum[4][3][2][4] = {};
    Share share;
    Activations x;
    share.load(p, e0, piece_begin(0));
    x.load(row, piece_begin(0), p.hidden);
    __syncthreads();
    share.store(buffers);
    __syncthreads();
    for (int piece = 0; piece < pieces; ++piece) {
      const uint32_t buffer = buffers + piece % 2 * kBufferBytes;
      Activations next;
      if (piece + 1 < pieces) {
        share.load(p, e0, piece_begin(piece + 1));
        next.load(row, piece_begin(piece + 1), p.hidden);
      }
      // Fragment j of a step: part j % 3 of experts 16 (j / 3) on; loaded one ahead of its use.
      const auto fragment = [&](uint32_t (&a)[4], int step, int j) {
        load_matrix_x4(a, part_address(buffer + j % 3 * kPartBytes, 16 * (j / 3) + lane % 16, 2 * step + lane / 16));
      };
      uint32_t a[2][4];
      fragment(a[0], 0, 0);
#pragma unroll
      for (int i = 0; i < 12 * kPiece / 16; ++i) {
        const int step = i / 12;
        const int j = i % 12;
        if (i + 1 < 12 * kPiece / 16) fragment(a[(i + 1) % 2], (i + 1) / 12, (i + 1) % 12);
#pragma unroll
        for (int t = 0; t < 2; ++t) {
          const uint32_t b[2] = {x.v[step / 2][t][step % 2 * 2], x.v[step / 2][t][step % 2 * 2 + 1]};
          mma_16x8x16(sum[j / 3][j % 3][t], a[i % 2], b);
        }
      }
      if (piece + 1 < pieces) {
        share.store(buffers + (piece + 1) % 2 * kBufferBytes);
        x = next;
      }
      if (piece % 2 == 1) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            const int expert = e0 + 16 * e + lane / 4 + 8 * (i % 4 / 2);
            const int token = warp * 16 + 8 * (i / 4) + 2 * (lane % 4) + i % 2;
            float& low = sum[e][2][i / 4][i % 4];
            float& middle = sum[e][1][i / 4][i % 4];
            float& high = sum[e][0][i / 4][i % 4];
            if (expert < p.experts) partial[piece / 2 * tile + token * p.experts + expert] = (low + middle) + high;
            low = middle = high = 0;
          }
        }
      }
      __syncthreads();
    }
  }
  cluster.sync();
  float* s = partial + local_segments * tile + warp * (2 * p.experts + kMaxTopK);
  for (int t = warp; t < kTokens / kRanks; t += kThreads / 32) {
    const int inside = rank * (kTokens / kRanks) + t;
    const int token = cluster_token + inside;
    if (token >= p.tokens) break;
    for (int e = lane; e < p.experts; e += 32) {
      float logit = 0;
#pragma unroll 8
      for (int seg = 0; seg < num_segments; ++seg) {
        logit += cluster.map_shared_rank(partial, seg % kRanks)[seg / kRanks * tile + inside * p.experts + e];
      }
      s[e] = logit;
    }
    __syncwarp();
    if (!select_token<kPerLane>(p, token, s, s + p.experts, s + 2 * p.experts) && lane == 0) {
      atomicMin(&block_bad, static_cast<unsigned>(token));
    }
    __syncwarp();
  }
  cluster.sync();
  if (threadIdx.x == 0) report_bad(p, block_bad, gridDim.x);
}

template <int kPerLane>
bool launch_many(const Context& context, const RouterParameters& p) {
  const int segments = ((p.hidden + kSegment - 1) / kSegment + kRanks - 1) / kRanks;
  const std::size_t bytes = 2 * kBufferBytes + 4u * (static_cast<std::size_t>(segments) * kTokens * p.experts +
                                                     kThreads / 32 * (2 * p.experts + kMaxTopK));
  if (bytes > 224 * 1024) return false;
  allow_shared(router_many_kernel<kPerLane>, bytes);
  const auto tiles = static_cast<unsigned>((p.tokens + kTokens - 1) / kTokens);
  launch(context, {.grid = dim3(tiles * kRanks), .block = dim3(kThreads), .shared_bytes = bytes, .cluster = kRanks},
         router_many_kernel<kPerLane>, p);
  return true;
}

}  // namespace

bool launch_router_many(const Context& context, const RouterParameters& p) {
  return p.experts <= 64 ? launch_many<2>(context, p) : p.experts <= 256 ? launch_many<8>(context, p) : false;
}

}  // namespace dsmoe::kernels::cuda

// The router for many tokens: 128 to a block, 16 to a warp, 64 experts at a time.
//
// Centroids are split once per block and lie in shared memory in the order of the k16 steps (router.cu), 128 k at a time, two
// buffers; activations go straight to registers. The next piece of both is on its way while the current one is multiplied.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/router.cuh"

namespace dsmoe::kernels::cuda {
namespace {

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

// Shared memory: two buffers of split centroids; logits [128][experts]; per warp a row of experts and kMaxTopK.
template <int kPerLane>
__global__ void __launch_bounds__(kThreads, 1) router_many_kernel(const __grid_constant__ RouterParameters p) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ unsigned block_bad;
  const uint32_t buffers = shared_address(memory);
  auto* logits = reinterpret_cast<float*>(memory + 2 * kBufferBytes);
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int first_token = static_cast<int>(blockIdx.x) * kTokens + warp * 16;
  const int pieces = (p.hidden + kPiece - 1) / kPiece;
  if (threadIdx.x == 0) block_bad = ~0u;
  wait_for_previous_kernel();
  let_next_kernel_start();
  const bf16* row[2];
#pragma unroll
  for (int t = 0; t < 2; ++t) {
    row[t] = static_cast<const bf16*>(p.x) + static_cast<int64_t>(min(first_token + 8 * t + lane / 4, p.tokens - 1)) * p.hidden;
  }
  for (int e0 = 0; e0 < p.experts; e0 += 64) {
    float total[4][2][4] = {};
    float sum[4][3][2][4] = {};
    Share share;
    Activations x;
    share.load(p, e0, 0);
    x.load(row, 0, p.hidden);
    __syncthreads();
    share.store(buffers);
    __syncthreads();
    for (int piece = 0; piece < pieces; ++piece) {
      const uint32_t buffer = buffers + piece % 2 * kBufferBytes;
      Activations next;
      if (piece + 1 < pieces) {
        share.load(p, e0, (piece + 1) * kPiece);
        next.load(row, (piece + 1) * kPiece, p.hidden);
      }
#pragma unroll
      for (int step = 0; step < kPiece / 16; ++step) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
#pragma unroll
          for (int part = 0; part < 3; ++part) {
            uint32_t a[4];
            load_matrix_x4(a, part_address(buffer + part * kPartBytes, 16 * e + lane % 16, 2 * step + lane / 16));
#pragma unroll
            for (int t = 0; t < 2; ++t) {
              const uint32_t b[2] = {x.v[step / 2][t][step % 2 * 2], x.v[step / 2][t][step % 2 * 2 + 1]};
              mma_16x8x16(sum[e][part][t], a, b);
            }
          }
        }
      }
      if (piece + 1 < pieces) {
        share.store(buffers + (piece + 1) % 2 * kBufferBytes);
        x = next;
      }
      if ((piece + 1) * kPiece % kSegment == 0 || piece + 1 == pieces) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            float& low = sum[e][2][i / 4][i % 4];
            float& middle = sum[e][1][i / 4][i % 4];
            float& high = sum[e][0][i / 4][i % 4];
            total[e][i / 4][i % 4] += (low + middle) + high;
            low = middle = high = 0;
          }
        }
      }
      __syncthreads();
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int expert = e0 + 16 * e + lane / 4 + 8 * (i % 4 / 2);
        const int token = warp * 16 + 8 * (i / 4) + 2 * (lane % 4) + i % 2;
        if (expert < p.experts) logits[token * p.experts + expert] = total[e][i / 4][i % 4];
      }
    }
  }
  __syncwarp();
  float* selection = logits + kTokens * p.experts + warp * (p.experts + kMaxTopK);
  for (int t = 0; t < 16 && first_token + t < p.tokens; ++t) {
    float* s = logits + (warp * 16 + t) * p.experts;
    if (!select_token<kPerLane>(p, first_token + t, s, selection, selection + p.experts) && lane == 0) {
      atomicMin(&block_bad, static_cast<unsigned>(first_token + t));
    }
    __syncwarp();
  }
  __syncthreads();
  if (threadIdx.x == 0) report_bad(p, block_bad, gridDim.x);
}

template <int kPerLane>
bool launch_many(const Context& context, const RouterParameters& p) {
  const std::size_t bytes = 2 * kBufferBytes + 4u * (static_cast<std::size_t>(kTokens) * p.experts + 8 * (p.experts + kMaxTopK));
  if (bytes > 224 * 1024) return false;
  allow_shared(router_many_kernel<kPerLane>, bytes);
  const auto blocks = static_cast<unsigned>((p.tokens + kTokens - 1) / kTokens);
  launch(context, {.grid = dim3(blocks), .block = dim3(kThreads), .shared_bytes = bytes}, router_many_kernel<kPerLane>, p);
  return true;
}

}  // namespace

bool launch_router_many(const Context& context, const RouterParameters& p) {
  return p.experts <= 64 ? launch_many<2>(context, p) : p.experts <= 256 ? launch_many<8>(context, p) : false;
}

}  // namespace dsmoe::kernels::cuda

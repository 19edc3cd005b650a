// Products of a few rows: each warp streams sixteen weight rows through its own ring of shared
// memory and multiplies them by up to eight rows of x, in one ascending chain of k16 steps.
//
// Nothing between warps: a warp waits for its own copies only. Weights never depend on what the
// kernel ahead writes, so a ring is filled before that kernel has finished.
#pragma once

#include "kernels/cuda/device/elements.cuh"
#include "kernels/cuda/device/reduce.cuh"

namespace dsmoe::kernels::cuda {

constexpr int kFewThreads = kReduceThreads;
constexpr int kFewWarps = kFewThreads / 32;
constexpr int kMaxFewTokens = 4;
constexpr int kStageK = 256;  // k of a stage
constexpr int kStagePitch =
    kStageK * 2 + 16;  // bytes of a row: eight neighbours never meet in a bank
constexpr int kStageBytes = 16 * kStagePitch;

// Bytes of a row of x in shared memory: zeros up to a multiple of 32 k, and an odd number of
// 16-byte pieces.
__host__ __device__ constexpr int x_pitch(int k) { return (k + 31) / 32 * 64 + 16; }

// Sixteen rows of one matrix or of two, as two groups of eight neighbours.
struct WeightRows {
  const bf16* low;   // rows 0 to 7
  const bf16* high;  // rows 8 to 15
  int k;             // length and pitch of a row
};

// The units first, first + step, ... below `end` of one warp; describe(unit) gives the rows of
// each. start(), then multiply() once per unit.
template <int kStages, class Describe>
struct RowStream {
  uint32_t ring;  // kStages * kStageBytes of shared memory
  Describe describe;
  int unit;
  int end;
  int step;
  WeightRows rows = {};
  int k0 = 0;
  int put = 0;
  int get = 0;
  uint64_t policy;

  __device__ RowStream(uint32_t memory, int first, int last, int stride, Describe d)
      : ring(memory), describe(d), unit(first), end(last), step(stride), policy(read_once()) {
    if (unit < end) rows = describe(unit);
  }

  // Fills the ring, or so many stages of it. Loops stay loops where they run once: code that is not
  // in the instruction cache costs more than the branch.
  __device__ void start(int stages = kStages - 1) {
    __syncwarp();  // the ring's last reader
    go_on(stages);
  }
  // The next stages; kStages - 1 in all before the first multiply().
  __device__ void go_on(int stages) {
#pragma unroll 1
    for (int s = 0; s < stages; ++s) fetch();
  }

  // Starts the next stage, if there is one.
  __device__ void fetch() {
    if (unit < end) {
      const int lane = threadIdx.x % 32;
      const int k = k0 + lane * 8;
      const int bytes = k < rows.k ? 16 : 0;
      const uint32_t target = ring + put * kStageBytes + lane * 16;
      const bf16* low = rows.low + (bytes ? k : 0);
      const bf16* high = rows.high + (bytes ? k : 0);
#pragma unroll 2
      for (int r = 0; r < 8; ++r) {
        copy_async_16(target + r * kStagePitch, low + static_cast<int64_t>(r) * rows.k, bytes,
                      policy);
        copy_async_16(target + (r + 8) * kStagePitch, high + static_cast<int64_t>(r) * rows.k,
                      bytes, policy);
      }
      k0 += kStageK;
      if (k0 >= rows.k) {
        k0 = 0;
        unit += step;
        if (unit < end) rows = describe(unit);
      }
    }
    copy_async_commit();
    put = put + 1 == kStages ? 0 : put + 1;
  }

  // sum = rows x for one unit of length k and kTiles times eight rows of x. `x`: where this lane
  // finds its row of x for ldmatrix (x_row_address); the next eight rows lie `tile_bytes` further.
  template <int kTiles>
  __device__ void multiply(float (&sum)[kTiles][4], int k, uint32_t x, uint32_t tile_bytes) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (auto& tile : sum) {
#pragma unroll
      for (float& s : tile) s = 0;
    }
    for (int begin = 0; begin < k; begin += kStageK) {
      copy_async_wait<kStages - 2>();
      __syncwarp();
      fetch();
      const uint32_t a = ring + get * kStageBytes + (lane % 16) * kStagePitch + lane / 16 * 16;
      const uint32_t b = x + begin * 2;
      get = get + 1 == kStages ? 0 : get + 1;
      if (begin + kStageK <= k) {
        // Fragments are read one step ahead of the chain of products; the last step reads the first
        // again, which nobody uses.
        Fragments<2, kTiles> now, next;
        now.load(a, b, tile_bytes);
#pragma unroll 1
        for (int bytes = 0; bytes < kStageK * 2; bytes += 128) {
          next.load(a + bytes + 64, b + bytes + 64, tile_bytes);
          now.multiply(sum);
          const int ahead = (bytes + 128) % (kStageK * 2);
          now.load(a + ahead, b + ahead, tile_bytes);
          next.multiply(sum);
        }
      } else {
        int k32 = 0;
        for (; begin + k32 + 16 < k; k32 += 32)
          step32<2>(sum, a + k32 * 2, b + k32 * 2, tile_bytes);
        if (begin + k32 < k) step32<1>(sum, a + k32 * 2, b + k32 * 2, tile_bytes);
      }
    }
  }

  // What kSteps k16 steps multiply.
  template <int kSteps, int kTiles>
  struct Fragments {
    uint32_t w[kSteps][4];
    uint32_t x[kTiles][4];

    __device__ void load(uint32_t a, uint32_t b, uint32_t tile_bytes) {
#pragma unroll
      for (int s = 0; s < kSteps; ++s) load_matrix_x4(w[s], a + s * 32);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) load_matrix_x4(x[t], b + t * tile_bytes);
    }
    __device__ void multiply(float (&sum)[kTiles][4]) const {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
          const uint32_t column[2] = {x[t][2 * s], x[t][2 * s + 1]};
          mma_16x8x16(sum[t], w[s], column);
        }
      }
    }
  };
  template <int kSteps, int kTiles>
  __device__ static void step32(float (&sum)[kTiles][4], uint32_t a, uint32_t b,
                                uint32_t tile_bytes) {
    Fragments<kSteps, kTiles> fragments;
    fragments.load(a, b, tile_bytes);
    fragments.multiply(sum);
  }
};

// Lane l of ldmatrix names row l % 8, values 8 (l / 8) .. of it. Rows past the last repeat it;
// their columns of the result are not used.
__device__ inline uint32_t x_row_address(uint32_t row) { return row + threadIdx.x % 32 / 8 * 16; }

// x [tokens, k] bf16 of memory into shared rows, through the second-level cache: other blocks may
// have written it.
__device__ inline void load_rows(unsigned char* target, const bf16* x, int rows, int k) {
  const int pieces = x_pitch(k) / 16 - 1;
  for (int i = threadIdx.x; i < rows * pieces; i += kFewThreads) {
    const int row = i / pieces;
    const int piece = i % pieces;
    uint4 value = make_uint4(0, 0, 0, 0);
    if (piece * 8 < k)
      value = __ldcg(reinterpret_cast<const uint4*>(x + static_cast<int64_t>(row) * k) + piece);
    *reinterpret_cast<uint4*>(target + row * x_pitch(k) + piece * 16) = value;
  }
}

// The same without waiting: the copies belong to the thread's next group.
__device__ inline void fetch_rows(uint32_t target, const bf16* x, int rows, int k) {
  const int pieces = x_pitch(k) / 16 - 1;
#pragma unroll 1
  for (int row = 0; row < rows; ++row) {
#pragma unroll 1
    for (int piece = threadIdx.x; piece < pieces; piece += kFewThreads) {
      const bool inside = piece * 8 < k;
      copy_async_16(target + row * x_pitch(k) + piece * 16,
                    x + static_cast<int64_t>(row) * k + (inside ? piece * 8 : 0), inside ? 16 : 0);
    }
  }
}

// A thread's first eight weights of a norm: they do not wait for the kernel ahead, and come from
// memory.
struct NormWeights {
  const float* weight;
  float first[8] = {};

  __device__ NormWeights(const float* weights, int k) : weight(weights) {
    const int i = static_cast<int>(threadIdx.x) * 8;
    if (weight && i < k) load_eight(first, weight, i, k);
  }
};

// round(norm(u)) into shared rows: the sums of rms_norm_kernel.
__device__ inline void load_normalised(unsigned char* target, const float* u,
                                       const NormWeights& weights, float eps, int rows, int k,
                                       float* memory) {
  for (int row = 0; row < rows; ++row) {
    const float* values = u + static_cast<int64_t>(row) * k;
    float sum = 0;
    float v[8];
    for (int i = threadIdx.x * 8; i < k; i += kFewThreads * 8) {
      load_eight(v, values, i, k);
#pragma unroll
      for (float value : v) sum = fmaf(value, value, sum);
    }
    sum = block_sum(sum, memory);
    const float inverse = 1.0f / sqrtf(sum / static_cast<float>(k) + eps);
    auto* out = reinterpret_cast<bf16*>(target + row * x_pitch(k));
    for (int i = threadIdx.x * 8; i < (k + 31) / 32 * 32; i += kFewThreads * 8) {
      float w[8] = {};
      if (i < k) {
        if (k > kFewThreads * 8) load_eight(v, values, i, k);
        if (i < kFewThreads * 8) {
#pragma unroll
          for (int j = 0; j < 8; ++j) w[j] = weights.first[j];
        } else {
          load_eight(w, weights.weight, i, k);
        }
#pragma unroll
        for (int j = 0; j < 8; ++j) w[j] = (v[j] * inverse) * w[j];
      }
      store_eight(w, out, i, 8);
    }
  }
}

}  // namespace dsmoe::kernels::cuda

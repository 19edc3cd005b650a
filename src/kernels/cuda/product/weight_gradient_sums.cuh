// Weight gradients: the sums of a tile on their way between memory and wgmma's registers.
#pragma once

#include "kernels/cuda/product/weight_gradient_tiles.cuh"

namespace dsmoe::kernels::cuda {

// A warpgroup's two m64 parts; sums[part][4 j ..] belong to columns 8 j ...
constexpr int kParts = 2;

// A tile as it lies in d_weight.
struct SumsTile {
  float* corner;
  int rows;
  int columns;
  __device__ SumsTile(const GradientProblem& of, const GradientPlace& at) {
    const int first_row = of.swapped ? at.first_n : at.first_m;
    const int first_column = of.swapped ? at.first_m : at.first_n;
    corner = of.d_weight + of.slot(at.matrix) * of.distance +
             static_cast<int64_t>(first_row) * of.pitch + first_column;
    rows = min(of.swapped ? of.tile_n : kTileM, (of.swapped ? of.n : of.m) - first_row);
    columns = min(of.swapped ? kTileM : of.tile_n, (of.swapped ? of.m : of.n) - first_column);
  }
};

// What a matrix without rows gets where its sums start from zero; by a warp.
__device__ inline void clear_sums(const GradientProblem& of, const GradientPlace& at) {
  const SumsTile tile(of, at);
  for (int row = 0; row < tile.rows; ++row) {
    for (int column = threadIdx.x % 32; column < tile.columns; column += 32)
      tile.corner[static_cast<int64_t>(row) * of.pitch + column] = 0;
  }
}

// Lanes whose bit kLane is not set give `second` for the `first` of those with it.
template <int kLane>
__device__ inline void exchange(float& first, float& second) {
  const bool set = (threadIdx.x & kLane) != 0;
  const float got = __shfl_xor_sync(~0u, set ? first : second, kLane);
  first = set ? got : first;
  second = set ? second : got;
}
// wgmma leaves 32 bytes of a row of d_weight side by side; after this, and before it where they
// were read, 64: half the accesses.
template <bool kSwapped, int kSums>
__device__ void exchange_all(float (&sums)[kParts][kSums]) {
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
#pragma unroll
    for (int i = 0; i < kSums / 8; ++i) {
      float* own = sums[part] + 8 * i;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if constexpr (kSwapped) {
          exchange<1>(own[k / 2 * 4 + k % 2], own[k / 2 * 4 + k % 2 + 2]);
        } else {
          exchange<4>(own[k], own[k + 4]);
        }
      }
    }
  }
}

// Where a thread's exchanged sums lie.
struct SumsAt {
  float* first;
  int64_t pitch;
  int rows_left;     // of m, from the thread's first on
  int columns_left;  // of n
  bool whole;        // nothing of the warpgroup's part lies outside

  __device__ SumsAt(const GradientProblem& of, const GradientPlace& at, int consumer) {
    const int lane = threadIdx.x % 32;
    const int first_m = at.first_m + consumer * 64 * kParts;
    int m = first_m + threadIdx.x % 128 / 32 * 16;
    int n = at.first_n;
    if (of.swapped) {
      m += lane / 4 + 8 * (lane % 2);
      n += lane % 4 / 2 * 4;
    } else {
      m += lane / 8 * 2;
      n += lane % 8 * 2;
    }
    pitch = of.pitch;
    first = of.d_weight + of.slot(at.matrix) * of.distance +
            (of.swapped ? n * pitch + m : m * pitch + n);
    rows_left = of.m - m;
    columns_left = of.n - n;
    whole = first_m + 64 * kParts <= of.m && at.first_n + kTileN <= of.n;
  }

  // body(sums, address): two neighbours of a row.
  template <bool kWhole, int kSums, class Body>
  __device__ void straight(float (&sums)[kParts][kSums], Body&& body) const {
    float* line = first;
#pragma unroll
    for (int i = 0; i < 2 * kParts; ++i, line += (i % 2 ? 8 : 56) * pitch) {
      const bool inside = 64 * (i / 2) + 8 * (i % 2) < rows_left;
      float* next = line + pitch;
#pragma unroll
      for (int j = 0; j < kSums / 4; ++j) {
        float* own = sums[i / 2] + 4 * j + 2 * (i % 2);
        if (kWhole || (inside && 8 * (j - j % 2) < columns_left))
          body(own[0], own[1], (j % 2 ? next : line) + 8 * (j - j % 2));
      }
    }
  }
  // body(sum, address)
  template <bool kWhole, int kSums, class Body>
  __device__ void swapped(float (&sums)[kParts][kSums], Body&& body) const {
    float* line = first;
#pragma unroll
    for (int j = 0; j < kSums / 4; ++j, line += 8 * pitch) {
      float* row = line;
#pragma unroll
      for (int k = 0; k < 4; ++k, row += pitch) {
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          if (kWhole || (64 * part < rows_left && 8 * j < columns_left))
            body(sums[part][4 * j + k], row + 64 * part);
        }
      }
    }
  }
};

// Loads and stores pass the cache by, which is for the rows: nobody reads sums again soon.
template <int kSums>
__device__ void read_sums(const GradientProblem& of, const SumsAt& at,
                          float (&sums)[kParts][kSums]) {
  const bool whole = kSums == kTileN / 2 && at.whole;
  if (of.swapped) {
    const auto read = [](float& sum, const float* from) { sum = __ldcs(from); };
    whole ? at.swapped<true>(sums, read) : at.swapped<false>(sums, read);
    exchange_all<true>(sums);
  } else {
    const auto read = [](float& a, float& b, const float* from) {
      const float2 pair = __ldcs(reinterpret_cast<const float2*>(from));
      a = pair.x;
      b = pair.y;
    };
    whole ? at.straight<true>(sums, read) : at.straight<false>(sums, read);
    exchange_all<false>(sums);
  }
}
template <int kSums>
__device__ void write_sums(const GradientProblem& of, const SumsAt& at,
                           float (&sums)[kParts][kSums]) {
  const bool whole = kSums == kTileN / 2 && at.whole;
  if (of.swapped) {
    exchange_all<true>(sums);
    const auto write = [](float sum, float* to) { __stcs(to, sum); };
    whole ? at.swapped<true>(sums, write) : at.swapped<false>(sums, write);
  } else {
    exchange_all<false>(sums);
    const auto write = [](float a, float b, float* to) {
      __stcs(reinterpret_cast<float2*>(to), make_float2(a, b));
    };
    whole ? at.straight<true>(sums, write) : at.straight<false>(sums, write);
  }
}

}  // namespace dsmoe::kernels::cuda

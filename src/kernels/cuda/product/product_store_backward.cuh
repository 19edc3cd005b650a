// The epilogue of the experts' backward pass: from the gradient of an activation, in registers, to
// the gradients of the gate and up products.
#pragma once

#include "kernels/cuda/product/product_tile.cuh"

namespace dsmoe::kernels::cuda {

// One output: d is the gradient of silu(g) u.
struct SwigluGradient {
  float d_gate;
  float d_up;
  __device__ SwigluGradient(float d, float g, float u) {
    const float s = reciprocal_approx(1.0f + exp_device(-g));
    d_up = d * (g * s);
    d_gate = (d * u) * (s * fmaf(g, 1.0f - s, 1.0f));
  }
};

// Sums over 16 outputs: a lane brings its two outputs' part for eight rows and takes one row's sum,
// the eight lanes that share rows added as a tree. Halves of the rows are exchanged, so the adds
// are those of eight separate trees.
__device__ inline float sums_of_sixteen(float (&part)[8]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 4; half > 0; half /= 2) {
    const int step = 16 / half;
    const bool upper = (lane & step) != 0;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float other = upper ? part[i] : part[i + half];
      part[i] = (upper ? part[i + half] : part[i]) + __shfl_xor_sync(~0u, other, step);
    }
  }
  return part[0];
}
// Which of its eight rows a lane has the sum of.
__device__ inline int row_of_sum() {
  const int lane = threadIdx.x % 32;
  return lane / 4 % 2 * 4 + lane / 8 % 2 * 2 + lane / 16;
}

__device__ inline float low_half(uint32_t word) { return __uint_as_float(word << 16); }
__device__ inline float high_half(uint32_t word) { return __uint_as_float(word & 0xffff0000u); }

// Sends for what store_swiglu_backward will read, while the products are still being made.
template <class V>
__device__ void prefetch_swiglu_backward(const ProductFamily& family, const Tile& tile,
                                         int consumer) {
  const SwigluBackward& io = family.swiglu;
  // The activation is for the gate's gradient.
  const void* in[3] = {io.gate_product, io.up_product,
                       io.gate_of_row ? io.activation : io.up_product};
  const int first = tile.first_weight + consumer * V::kParts * 64;
  for (int i = threadIdx.x % 128; i < tile.num_rows * V::kParts; i += 128) {
    const int n = first + i % V::kParts * 64;
    if (n >= family.n) continue;
    const int64_t place = static_cast<int64_t>(tile.first_row + i / V::kParts) * family.n + n;
#pragma unroll
    for (const void* rows : in) prefetch_l2(static_cast<const bf16*>(rows) + place);
  }
}

// 32 rows at a time: gate and up products, and with a gate the activation, come through shared
// memory in pieces of 16 bytes, are replaced there by the results, and go out the same way. A
// thread writes back the pieces it fetched, so the next rows need no barrier of their own; they are
// on their way from memory meanwhile. Results may overwrite what they were made from: a thread
// fetches only rows that it has not written.
template <class V, int kRows, bool kGated>
__device__ void store_swiglu_backward(const ProductFamily& family, const Tile& tile,
                                      int first_weight, int consumer, uint32_t memory,
                                      const float* sums) {
  constexpr int kTensors = kGated ? 3 : 2;
  constexpr uint32_t kGates = 3 * 4096;  // the place of 32 rows' gates
  static_assert(V::kStaging >= kGates + 128);
  const SwigluBackward& io = family.swiglu;
  const int thread = threadIdx.x % 128;
  const int warp = thread / 32;
  const int lane = thread % 32;
  const auto place = [](int row, int piece) { return row * 128 + ((piece ^ (row & 7)) * 16); };
  const void* in[3] = {io.gate_product, io.up_product, io.activation};
  void* out[3] = {io.d_gate_product, io.d_up_product, io.scaled_activation};
  const int group = first_weight / 16 + warp;
  const bool inside = first_weight + thread % 8 * 8 < family.n;
  const int64_t corner =
      static_cast<int64_t>(tile.first_row + thread / 8) * family.n + first_weight + thread % 8 * 8;
  uint4 value[kTensors][2];  // of the rows to come
  float gate_to_come = 0;
  const auto fetch = [&](int c) {
#pragma unroll
    for (int t = 0; t < kTensors; ++t) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = c * 32 + i * 16;
        value[t][i] =
            inside && row + thread / 8 < tile.num_rows
                ? *reinterpret_cast<const uint4*>(static_cast<const bf16*>(in[t]) + corner +
                                                  static_cast<int64_t>(row) * family.n)
                : make_uint4(0, 0, 0, 0);
      }
    }
    if (kGated && thread < 32)
      gate_to_come =
          c * 32 + lane < tile.num_rows ? io.gate_of_row[tile.first_row + c * 32 + lane] : 0.0f;
  };
  fetch(0);
#pragma unroll
  for (int c = 0; c < kRows / 32; ++c) {
    if (c * 32 >= tile.num_rows) break;
#pragma unroll
    for (int t = 0; t < kTensors; ++t) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        store_shared_16(memory + t * 4096 + place(thread / 8 + i * 16, thread % 8), value[t][i]);
    }
    if (kGated && thread < 32) store_shared_float(memory + kGates + lane * 4, gate_to_come);
    if ((c + 1) * 32 < kRows) fetch(c + 1);
    named_sync(2 + consumer, 128);
    float part[8];  // d_activation * activation of this lane's outputs in rows 8 j + 2 (lane % 4) +
                    // {0, 1}
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
      const uint32_t mine = memory + place((j + lane / 16) * 8 + lane % 8, 2 * warp + lane / 8 % 2);
      uint32_t g[4], u[4], h[4];
      load_matrix_x4_trans(g, mine);
      load_matrix_x4_trans(u, mine + 4096);
      if constexpr (kGated) load_matrix_x4_trans(h, mine + 8192);
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        const float* s = sums + 4 * (4 * c + j + pair);
        float2 gate = make_float2(1.0f, 1.0f);
        if constexpr (kGated) {
          gate = load_shared_float2(memory + kGates + (8 * (j + pair) + 2 * (lane % 4)) * 4);
          part[2 * (j + pair)] = s[0] * low_half(h[2 * pair]) + s[2] * low_half(h[2 * pair + 1]);
          part[2 * (j + pair) + 1] =
              s[1] * high_half(h[2 * pair]) + s[3] * high_half(h[2 * pair + 1]);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int w = 2 * pair + half;
          const SwigluGradient low(gate.x * s[2 * half], low_half(g[w]), low_half(u[w]));
          const SwigluGradient high(gate.y * s[2 * half + 1], high_half(g[w]), high_half(u[w]));
          g[w] = pack_bf16(low.d_gate, high.d_gate);
          u[w] = pack_bf16(low.d_up, high.d_up);
          if constexpr (kGated) h[w] = pack_bf16(gate.x * low_half(h[w]), gate.y * high_half(h[w]));
        }
      }
      store_matrix_x4_trans(mine, g[0], g[1], g[2], g[3]);
      store_matrix_x4_trans(mine + 4096, u[0], u[1], u[2], u[3]);
      if constexpr (kGated) store_matrix_x4_trans(mine + 8192, h[0], h[1], h[2], h[3]);
    }
    if constexpr (kGated) {
      const float sum = sums_of_sixteen(part);
      const int which = row_of_sum();
      const int row = c * 32 + which / 2 * 8 + 2 * (lane % 4) + which % 2;
      if (row < tile.num_rows && group * 16 < family.n)
        io.partial_sums[static_cast<int64_t>(group) * family.rows + tile.first_row + row] = sum;
    }
    named_sync(2 + consumer, 128);
#pragma unroll
    for (int t = 0; t < kTensors; ++t) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = c * 32 + i * 16;
        if (inside && row + thread / 8 < tile.num_rows) {
          store_16(static_cast<bf16*>(out[t]) + corner + static_cast<int64_t>(row) * family.n,
                   load_shared_16(memory + t * 4096 + place(thread / 8 + i * 16, thread % 8)));
        }
      }
    }
  }
}

}  // namespace dsmoe::kernels::cuda

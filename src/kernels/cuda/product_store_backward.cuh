// The epilogue of the experts' backward pass: from the gradient of an activation, in registers, to
// the gradients of the gate and up products.
#pragma once

#include "kernels/cuda/product_tile.cuh"

namespace dsmoe::kernels::cuda {

// One output: a = d_out W_down before the gate, h the activation, g and u the products.
struct SwigluGradient {
  float d_gate;
  float d_up;
  float scaled;
  __device__ SwigluGradient(float gate, float a, float h, float g, float u) {
    const float d = gate * a;
    const float s = reciprocal_approx(1.0f + exp_device(-g));
    d_up = d * (g * s);
    d_gate = (d * u) * (s * fmaf(g, 1.0f - s, 1.0f));
    scaled = gate * h;
  }
};

// The sum over 16 outputs of one row: this lane's two, then the eight lanes that share the row.
__device__ inline float sum_of_sixteen(float first, float second) {
  float sum = first + second;
  for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
  return sum;
}

__device__ inline float low_half(uint32_t word) { return __uint_as_float(word << 16); }
__device__ inline float high_half(uint32_t word) { return __uint_as_float(word & 0xffff0000u); }

// Sends for what store_swiglu_backward will read, while the products are still being made.
template <class V>
__device__ void prefetch_swiglu_backward(const ProductFamily& family, const Tile& tile,
                                         int consumer) {
  const SwigluBackward& io = family.swiglu;
  const void* in[3] = {io.activation, io.gate_product, io.up_product};
  const int first = tile.first_weight + consumer * V::kParts * 64;
  for (int i = threadIdx.x % 128; i < tile.num_rows * V::kParts; i += 128) {
    const int n = first + i % V::kParts * 64;
    if (n >= family.n) continue;
    const int64_t place = static_cast<int64_t>(tile.first_row + i / V::kParts) * family.n + n;
#pragma unroll
    for (const void* rows : in) prefetch_l2(static_cast<const bf16*>(rows) + place);
  }
}

// 32 rows at a time: activation, gate and up products come through shared memory in pieces of 16
// bytes, are replaced there by the results, and go out the same way. A thread writes back the
// pieces it fetched, so the next rows need no barrier of their own; they are on their way from
// memory meanwhile. Results may overwrite what they were made from: a thread fetches only rows that
// it has not written.
template <class V, int kRows>
__device__ void store_swiglu_backward(const ProductFamily& family, const Tile& tile,
                                      int first_weight, int consumer, uint32_t memory,
                                      const float* sums) {
  static_assert(V::kStaging >= 3 * 4096);
  const SwigluBackward& io = family.swiglu;
  const int thread = threadIdx.x % 128;
  const int warp = thread / 32;
  const int lane = thread % 32;
  const bool gated = io.gate_of_row != nullptr;
  const auto place = [](int row, int piece) { return row * 128 + ((piece ^ (row & 7)) * 16); };
  const void* in[3] = {io.activation, io.gate_product, io.up_product};
  void* out[3] = {io.scaled_activation, io.d_gate_product, io.d_up_product};
  const int groups = (family.n + 15) / 16;
  const int group = first_weight / 16 + warp;
  const bool inside = first_weight + thread % 8 * 8 < family.n;
  const int64_t corner =
      static_cast<int64_t>(tile.first_row + thread / 8) * family.n + first_weight + thread % 8 * 8;
  uint4 value[3][2];  // of the rows to come
  const auto fetch = [&](int c) {
#pragma unroll
    for (int t = 0; t < 3; ++t) {
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
  };
  fetch(0);
#pragma unroll
  for (int c = 0; c < kRows / 32; ++c) {
    if (c * 32 >= tile.num_rows) break;
#pragma unroll
    for (int t = 0; t < 3; ++t) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        store_shared_16(memory + t * 4096 + place(thread / 8 + i * 16, thread % 8), value[t][i]);
      }
    }
    if ((c + 1) * 32 < kRows) fetch(c + 1);
    named_sync(2 + consumer, 128);
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
      const uint32_t mine = memory + place((j + lane / 16) * 8 + lane % 8, 2 * warp + lane / 8 % 2);
      uint32_t h[4], g[4], u[4];
      load_matrix_x4_trans(h, mine);
      load_matrix_x4_trans(g, mine + 4096);
      load_matrix_x4_trans(u, mine + 8192);
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {  // rows 8 (j + pair) + 2 (lane % 4) + {0, 1}
        const float* s = sums + 4 * (4 * c + j + pair);
        const int row = c * 32 + 8 * (j + pair) + 2 * (lane % 4);
        float gate[2] = {1.0f, 1.0f};
        if (gated) {
          gate[0] = row < tile.num_rows ? io.gate_of_row[tile.first_row + row] : 0.0f;
          gate[1] = row + 1 < tile.num_rows ? io.gate_of_row[tile.first_row + row + 1] : 0.0f;
          const float even =
              sum_of_sixteen(s[0] * low_half(h[2 * pair]), s[2] * low_half(h[2 * pair + 1]));
          const float odd =
              sum_of_sixteen(s[1] * high_half(h[2 * pair]), s[3] * high_half(h[2 * pair + 1]));
          if (lane < 4 && group < groups) {
            float* partial =
                io.partial_sums + static_cast<int64_t>(group) * family.rows + tile.first_row + row;
            if (row < tile.num_rows) partial[0] = even;
            if (row + 1 < tile.num_rows) partial[1] = odd;
          }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int w = 2 * pair + half;
          const SwigluGradient low(gate[0], s[2 * half], low_half(h[w]), low_half(g[w]),
                                   low_half(u[w]));
          const SwigluGradient high(gate[1], s[2 * half + 1], high_half(h[w]), high_half(g[w]),
                                    high_half(u[w]));
          h[w] = pack_bf16(low.scaled, high.scaled);
          g[w] = pack_bf16(low.d_gate, high.d_gate);
          u[w] = pack_bf16(low.d_up, high.d_up);
        }
      }
      store_matrix_x4_trans(mine, h[0], h[1], h[2], h[3]);
      store_matrix_x4_trans(mine + 4096, g[0], g[1], g[2], g[3]);
      store_matrix_x4_trans(mine + 8192, u[0], u[1], u[2], u[3]);
    }
    named_sync(2 + consumer, 128);
#pragma unroll
    for (int t = 0; t < 3; ++t) {
      if (t == 0 && !gated) continue;
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

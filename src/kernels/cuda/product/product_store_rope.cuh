// The epilogue of the projection to q, k and v: rotation, rounding, and the way to q and the KV
// pages, with the bits of a product stored in fp32 and rope_forward.
#pragma once

#include "kernels/cuda/device/elements.cuh"
#include "kernels/cuda/product/product_tile.cuh"
#include "kernels/kv_pages.h"

namespace dsmoe::kernels::cuda {

constexpr int kRopeRows = 32;  // rows the epilogue handles at a time: four threads to a row

// The 64 outputs of a consumer: 32 neighbours in the first half of a head and those they turn with.
struct RopePiece {
  int head;   // query heads, then key heads, then value heads
  int first;  // of the 32, in the head
  __device__ RopePiece(const RopeStore& rope, int first_weight) {
    const int half = rope.head_dim / 2;
    head = first_weight / 2 / half;
    first = first_weight / 2 % half;
  }
  __device__ bool is_query(const RopeStore& rope) const { return head < rope.heads; }
  __device__ bool is_value(const RopeStore& rope) const {
    return head >= rope.heads + rope.kv_heads;
  }
};

// Where a thread's rows of a tile stand in their documents and in the KV cache: read before the
// products, which hide the wait.
template <int kRows>
struct RopePlaces {
  static constexpr int kChunks = kRows > 0 ? kRows / kRopeRows : 1;
  int position[kChunks];
  int slot[kChunks];
  __device__ void load(const RopeStore& rope, const Tile& tile) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int row = tile.first_row + min(c * kRopeRows + static_cast<int>(threadIdx.x) % 128 / 4,
                                           tile.num_rows - 1);
      position[c] = rope.position[row];
      slot[c] = rope.kv_slot[row];
    }
  }
};

// Through shared memory, because a thread's sums are of many rows; two buffers in turn, one barrier
// to a chunk.
template <class V, int kRows>
__device__ void store_rope(const ProductFamily& family, const Tile& tile, int first_weight,
                           int consumer, uint32_t memory, int& turn,
                           const RopePlaces<kRows>& places, const float* sums) {
  static_assert(V::kStaging >= 2 * kRopeRows * 256);
  constexpr int kChunks = kRows / kRopeRows;
  constexpr int kAhead = 2;  // chunks whose sines and cosines are on their way
  const RopeStore& rope = family.rope;
  const RopePiece piece(rope, first_weight);
  if (first_weight >= family.n) return;
  const bool turns = !piece.is_value(rope);
  const int thread = threadIdx.x % 128;
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int half = rope.head_dim / 2;
  // This thread's four, the four 16 further, and those half further: four threads read whole
  // sectors.
  const int own = piece.first + thread % 4 * 4;
  float angle[kAhead][2][8];  // cosines, sines
  const auto load_angles = [&](int c) {
    const int64_t at = static_cast<int64_t>(places.position[c]) * half + own;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 four =
          *reinterpret_cast<const float4*>((i < 2 ? rope.cos : rope.sin) + at + i % 2 * 16);
      float* target = angle[c % kAhead][i / 2] + i % 2 * 4;
      target[0] = four.x, target[1] = four.y, target[2] = four.z, target[3] = four.w;
    }
  };
  if (turns) {
#pragma unroll
    for (int c = 0; c < kAhead && c < kChunks; ++c) load_angles(c);
  }
  float bias[2] = {0, 0};
  if (family.bias) {
    for (int h = 0; h < 2; ++h)
      bias[h] =
          family.bias[piece.head * rope.head_dim + piece.first + h * half + warp * 8 + lane / 4];
  }
  // Sixteen pieces of 16 bytes to a row, permuted so that neither side meets in a bank: the sums'
  // warp writes two neighbouring pieces of every second row, four threads read four pieces of a
  // row.
  const auto place = [](int row, int p) {
    return row * 256 + ((p ^ (row & 2) ^ ((row ^ row >> 2) & 1) * 4) * 16);
  };
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    if (c * kRopeRows >= tile.num_rows) break;
    const uint32_t buffer = memory + turn * kRopeRows * 256;
    turn ^= 1;
#pragma unroll
    for (int j = 0; j < kRopeRows / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = 8 * j + 2 * (lane % 4) + i % 2;
        const int at = i / 2 * 32 + warp * 8 + lane / 4;  // first halves, then second ones
        float y = sums[4 * (c * kRopeRows / 8 + j) + i];
        if (family.bias) y = y + bias[i / 2];
        asm volatile("st.shared.f32 [%0], %1;" ::"r"(buffer + place(row, at / 4) + at % 4 * 4),
                     "f"(y)
                     : "memory");
      }
    }
    named_sync(2 + consumer, 128);
    const int row = thread / 4;
    alignas(16) float value[2][8];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float* four = value[i / 2] + i % 2 * 4;
      asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
                   : "=f"(four[0]), "=f"(four[1]), "=f"(four[2]), "=f"(four[3])
                   : "r"(buffer + place(row, i / 2 * 8 + i % 2 * 4 + thread % 4)));
    }
    if (turns) {
      float(&a)[8] = value[0];
      float(&b)[8] = value[1];
      const float(&cos)[8] = angle[c % kAhead][0];
      const float(&sin)[8] = angle[c % kAhead][1];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float first = fmaf(a[j], cos[j], -(b[j] * sin[j]));
        b[j] = fmaf(b[j], cos[j], a[j] * sin[j]);
        a[j] = first;
      }
      if (c + kAhead < kChunks) load_angles(c + kAhead);
    }
    if (c * kRopeRows + row >= tile.num_rows) continue;
    bf16* target;
    if (piece.is_query(rope)) {
      const int64_t token = tile.first_row + c * kRopeRows + row;
      target = static_cast<bf16*>(rope.q) + (token * rope.heads + piece.head) * rope.head_dim;
    } else {
      const int kv_head = (piece.head - rope.heads) % rope.kv_heads;
      const int64_t page = places.slot[c] / kKeyBlock;
      target = static_cast<bf16*>(turns ? rope.keys : rope.values) +
               ((page * rope.kv_heads + kv_head) * kKeyBlock + places.slot[c] % kKeyBlock) *
                   rope.head_dim;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* four = value[i / 2] + i % 2 * 4;
      *reinterpret_cast<uint2*>(target + own + i / 2 * half + i % 2 * 16) =
          make_uint2(pack_bf16(four[0], four[1]), pack_bf16(four[2], four[3]));
    }
  }
}

}  // namespace dsmoe::kernels::cuda

// From fp32 sums in registers to results in memory: the epilogues of the grouped product.
#pragma once

#include "kernels/cuda/product/product_tile.cuh"

namespace dsmoe::kernels::cuda {

// Writes a chunk of rows, kOutputs wide, that lies in shared memory, in pieces of 16 bytes.
template <class V, int kOutputs>
struct Staging {
  uint32_t memory;  // two buffers
  int consumer;
  int& turn;  // lives across tiles: a short tile must not fill the buffer that the one before is
              // still being read from

  // Pieces of 16 bytes are permuted so that eight neighbouring rows never meet in a bank.
  __device__ static uint32_t place(int row, int piece) {
    const int twist = kOutputs == 64 ? row & 7 : (row >> 1) & 3;
    return row * (kOutputs * 2) + ((piece ^ twist) * 16);
  }
  __device__ uint32_t buffer() const { return memory + turn * V::kChunk * 128; }

  // One barrier per chunk: a buffer is filled again only after the barrier of the chunk between.
  __device__ void write(bf16* out, int num_rows, int num_outputs, int64_t pitch) {
    const int thread = threadIdx.x % 128;
    constexpr int kPieces = kOutputs * 2 / 16;
    named_sync(2 + consumer, 128);
#pragma unroll
    for (int i = 0; i < (V::kChunk * kPieces + 127) / 128; ++i) {
      const int row = (thread + i * 128) / kPieces;
      const int piece = (thread + i * 128) % kPieces;
      if (row < V::kChunk && row < num_rows && piece * 8 < num_outputs) {
        store_16(out + row * pitch + piece * 8, load_shared_16(buffer() + place(row, piece)));
      }
    }
    turn ^= 1;
  }

  // The same by the copy engine, which leaves out what lies past the matrix. Every chunk is a group
  // of its copies, also one that is written (an empty group): so the one before the last has left
  // this buffer.
  __device__ void wait_until_free() const {
    if (threadIdx.x % 128 == 0) tma_store_wait_read<1>();
    named_sync(2 + consumer, 128);
  }
  __device__ void copy(const CUtensorMap& map, int first_output, int first_row) {
    fence_async_proxy();
    named_sync(2 + consumer, 128);
    if (threadIdx.x % 128 == 0) tma_store_2d(&map, buffer(), first_output, first_row);
    turn ^= 1;
  }
};

// bf16 results: transposed through shared memory, because the sums hold one weight row and several
// x rows per thread. Whole chunks leave by the copy engine, while the next are written and
// multiplied; rows past a tile's last belong to the next expert.
template <class V, int kRows>
__device__ void store_rounded(const ProductFamily& family, const Tile& tile, int first_weight,
                              int consumer, uint32_t memory, int& turn, const float* sums) {
  const int warp = threadIdx.x % 128 / 32;
  const int lane = threadIdx.x % 32;
  const int first_output = first_weight;
  Staging<V, 64> staging{memory, consumer, turn};
#pragma unroll
  for (int c = 0; c < kRows / V::kChunk; ++c) {
    if (c * V::kChunk >= tile.num_rows) break;
    const float* s = sums + c * (V::kChunk / 2);
    if constexpr (V::kCopiesRounded) staging.wait_until_free();
#pragma unroll
    for (int j = 0; j < V::kChunk / 8; j += 2) {
      const uint32_t low = pack_bf16(s[4 * j], s[4 * j + 1]);
      const uint32_t high = pack_bf16(s[4 * j + 2], s[4 * j + 3]);
      const int piece = 2 * warp + lane / 8 % 2;
      if constexpr (V::kChunk >= 16) {
        store_matrix_x4_trans(
            staging.buffer() + staging.place((j + lane / 16) * 8 + lane % 8, piece), low, high,
            pack_bf16(s[4 * j + 4], s[4 * j + 5]), pack_bf16(s[4 * j + 6], s[4 * j + 7]));
      } else {
        store_matrix_x2_trans(staging.buffer() + staging.place(lane % 8, piece), low, high);
      }
    }
    const int row = tile.first_row + c * V::kChunk;
    const int left = tile.num_rows - c * V::kChunk;
    if (V::kCopiesRounded && (left >= V::kChunk || family.offsets == nullptr)) {
      staging.copy(family.out_map, first_output, row);
    } else {
      staging.write(
          static_cast<bf16*>(family.out) + static_cast<int64_t>(row) * family.n + first_output,
          left, family.n - first_output, family.n);
    }
    if (V::kCopiesRounded && threadIdx.x % 128 == 0) tma_store_commit();
  }
}

// SwiGLU: weight rows come eight gates, eight ups (or the other way round), so a thread holds both
// of each output.
template <class V, int kRows>
__device__ void store_swiglu(const ProductFamily& family, const Tile& tile, int first_weight,
                             int consumer, uint32_t memory, int& turn, const float* sums) {
  constexpr int kGroups = V::kChunk / 8;
  const int warp = threadIdx.x % 128 / 32;
  const int lane = threadIdx.x % 32;
  const int first_output = first_weight / 2;
  Staging<V, 32> staging{memory, consumer, turn};
#pragma unroll
  for (int c = 0; c < kRows / V::kChunk; ++c) {
    if (c * V::kChunk >= tile.num_rows) break;
    const float* s = sums + c * (V::kChunk / 2);
    const int64_t place =
        (tile.first_row + c * V::kChunk) * static_cast<int64_t>(family.n) + first_output;
    uint32_t h[kGroups] = {};
    const auto emit = [&](void* out) {
      if constexpr (kGroups == 2) {
        store_matrix_x2_trans(staging.buffer() + staging.place(lane % 16, warp), h[0], h[1]);
      } else if constexpr (kGroups >= 4) {
#pragma unroll
        for (int j = 0; j < kGroups; j += 4) {
          store_matrix_x4_trans(
              staging.buffer() + staging.place((j + lane / 8) * 8 + lane % 8, warp), h[j], h[j + 1],
              h[j + 2], h[j + 3]);
        }
      } else {
        store_matrix_x1_trans(staging.buffer() + staging.place(lane % 8, warp), h[0]);
      }
      staging.write(static_cast<bf16*>(out) + place, tile.num_rows - c * V::kChunk,
                    family.n - first_output, family.n);
    };
    if (!family.up_first) {
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        h[j] = pack_bf16(silu_device(s[4 * j]) * s[4 * j + 2],
                         silu_device(s[4 * j + 1]) * s[4 * j + 3]);
      }
    } else {
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        h[j] = pack_bf16(silu_device(s[4 * j + 2]) * s[4 * j],
                         silu_device(s[4 * j + 3]) * s[4 * j + 1]);
      }
    }
    emit(family.out);
    if (family.gate_out) {
#pragma unroll
      for (int j = 0; j < kGroups; ++j) h[j] = pack_bf16(s[4 * j], s[4 * j + 1]);
      emit(family.up_first ? family.up_out : family.gate_out);
#pragma unroll
      for (int j = 0; j < kGroups; ++j) h[j] = pack_bf16(s[4 * j + 2], s[4 * j + 3]);
      emit(family.up_first ? family.gate_out : family.up_out);
    }
  }
}

// fp32 results: eight lanes hold eight neighbouring outputs, a whole 32-byte sector, so they are
// written directly.
template <int kRows>
__device__ void store_dense(const ProductParameters& p, const ProductFamily& family,
                            const Tile& tile, int first_weight, const float* sums) {
  const int lane = threadIdx.x % 32;
  const int first = first_weight + threadIdx.x % 128 / 32 * 16 + lane / 4;
  float* out = static_cast<float*>(family.out);
  float bias[2] = {0, 0};
  for (int half = 0; half < 2; ++half) {
    if (family.bias && first + 8 * half < family.n) bias[half] = family.bias[first + 8 * half];
  }
#pragma unroll
  for (int j = 0; j < kRows / 8; ++j) {
    if (j * 8 >= tile.num_rows) break;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = 8 * j + 2 * (lane % 4) + i % 2;
      const int n = first + 8 * (i / 2);
      if (row < tile.num_rows && n < family.n) {
        const int64_t place = static_cast<int64_t>(tile.first_row + row) * family.n + n;
        float y = sums[4 * j + i];
        if (family.bias) y = y + bias[i / 2];
        out[place] = p.accumulate ? family.base[place] + y : y;
      }
    }
  }
}

// The same for large tiles that are stored: through shared memory, 32 rows at a time in two buffers
// in turn, from where the copy engine takes them while the next are written and multiplied. It
// leaves out what lies past the matrix: a tile's rows end where the matrix does.
template <class V, int kRows>
__device__ void store_dense_copied(const ProductFamily& family, const Tile& tile, int first_weight,
                                   int consumer, uint32_t memory, int& turn, const float* sums) {
  static_assert(V::kStaging >= 2 * 8192);
  const int thread = threadIdx.x % 128;
  const int lane = thread % 32;
  const int column = thread / 32 * 16 + lane / 4;  // and 8 further
  float bias[2] = {0, 0};
  for (int half = 0; half < 2; ++half) {
    const int n = first_weight + column + 8 * half;
    if (family.bias && n < family.n) bias[half] = family.bias[n];
  }
#pragma unroll
  for (int c = 0; c < kRows / 32; ++c) {
    if (c * 32 >= tile.num_rows) break;
    const uint32_t buffer = memory + turn * 8192;
    turn ^= 1;
    if (thread == 0) tma_store_wait_read<1>();  // the buffer's last rows have left
    named_sync(2 + consumer, 128);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = 8 * j + 2 * (lane % 4) + i % 2;
        const int at = column + 8 * (i / 2);
        float y = sums[4 * (4 * c + j) + i];
        if (family.bias) y = y + bias[i / 2];
        const uint32_t place = at / 32 * 4096 + row * 128 + (at % 32 / 4 ^ row % 8) * 16;
        asm volatile("st.shared.f32 [%0], %1;" ::"r"(buffer + place + at % 4 * 4), "f"(y)
                     : "memory");
      }
    }
    fence_async_proxy();
    named_sync(2 + consumer, 128);
    if (thread == 0) {
      for (int box = 0; box < 2; ++box) {
        tma_store_2d(&family.out_map, buffer + box * 4096, first_weight + 32 * box,
                     tile.first_row + 32 * c);
      }
      tma_store_commit();
    }
  }
}

// What large tiles are added to comes closer while they are multiplied: two lines of 128 bytes to a
// row of 64 outputs.
template <class V>
__device__ void prefetch_dense_added(const ProductFamily& family, const Tile& tile, int member) {
  const int thread = threadIdx.x % 128;
  const float* base = family.base + static_cast<int64_t>(tile.first_row) * family.n;
  for (int part = 0; part < V::kParts; ++part) {
    const int n = tile.first_weight + (member * V::kParts + part) * 64 + thread % 2 * 32;
    if (n >= family.n) break;
    for (int row = thread / 2; row < tile.num_rows; row += 64)
      prefetch_l2(base + static_cast<int64_t>(row) * family.n + n);
  }
}

// Large tiles that are added to what is there: through shared memory, 64 rows at a time, so that
// rows of 256 bytes are read and written in pieces of 16. All of a chunk is asked for before its
// first store, which might be where the next load reads, as far as the compiler knows.
template <class V, int kRows>
__device__ void store_dense_added(const ProductFamily& family, const Tile& tile, int first_weight,
                                  int consumer, uint32_t memory, const float* sums) {
  static_assert(V::kStaging >= 64 * 256);
  const int thread = threadIdx.x % 128;
  const int lane = thread % 32;
  const int column = thread / 32 * 16 + lane / 4;
  // Sixteen pieces to a row, permuted so that a warp's writes meet in no bank.
  const auto place = [&](int row, int piece) {
    return memory + row * 256 + ((piece ^ (row & 15)) * 16);
  };
  const int piece = thread % 16;
  const int n = first_weight + piece * 4;
  float4 bias = make_float4(0, 0, 0, 0);
  if (family.bias && n < family.n) bias = *reinterpret_cast<const float4*>(family.bias + n);
#pragma unroll
  for (int c = 0; c < kRows / 64; ++c) {
    if (c * 64 >= tile.num_rows) break;
    const int rows = n < family.n ? tile.num_rows - c * 64 : 0;
    const int64_t first = static_cast<int64_t>(tile.first_row + c * 64) * family.n + n;
    float4 there[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int row = thread / 16 + 8 * i;
      if (row < rows) {
        there[i] = *reinterpret_cast<const float4*>(family.base + first +
                                                    static_cast<int64_t>(row) * family.n);
      }
    }
    named_sync(2 + consumer, 128);  // the rows before have been read
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = 8 * j + 2 * (lane % 4) + i % 2;
        const int at = column + 8 * (i / 2);
        store_shared_float(place(row, at / 4) + at % 4 * 4, sums[4 * (8 * c + j) + i]);
      }
    }
    named_sync(2 + consumer, 128);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int row = thread / 16 + 8 * i;
      if (row >= rows) continue;
      float4 y = load_shared_float4(place(row, piece));
      if (family.bias) y = make_float4(y.x + bias.x, y.y + bias.y, y.z + bias.z, y.w + bias.w);
      store_16(static_cast<float*>(family.out) + first + static_cast<int64_t>(row) * family.n,
               make_uint4(__float_as_uint(there[i].x + y.x), __float_as_uint(there[i].y + y.y),
                          __float_as_uint(there[i].z + y.z), __float_as_uint(there[i].w + y.w)));
    }
  }
}

}  // namespace dsmoe::kernels::cuda

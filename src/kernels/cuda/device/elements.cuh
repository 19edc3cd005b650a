// Reading and writing eight neighbouring values of a row, wide where the row allows it.
#pragma once

#include "kernels/cuda/device/ptx.cuh"

namespace dsmoe::kernels::cuda {

__device__ inline float widen(bf16 value) { return __bfloat162float(value); }
__device__ inline float widen(float value) { return value; }
__device__ inline void round_into(bf16& target, float value) {
  target = __float2bfloat16_rn(value);
}
__device__ inline void round_into(float& target, float value) { target = value; }

// Rows are `size` long; values past the end are zero, and are not written. Rows start 16-byte
// aligned when size % 8 == 0.
__device__ inline void load_eight(float (&v)[8], const bf16* row, int begin, int size) {
  if (size % 8 == 0) {
    const uint4 raw = *reinterpret_cast<const uint4*>(row + begin);
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[2 * i] = __uint_as_float(words[i] << 16);
      v[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
    return;
  }
  for (int i = 0; i < 8; ++i) v[i] = begin + i < size ? widen(row[begin + i]) : 0.0f;
}
__device__ inline void load_eight(float (&v)[8], const float* row, int begin, int size) {
  if (size % 8 == 0) {
    const float4 a = *reinterpret_cast<const float4*>(row + begin);
    const float4 b = *reinterpret_cast<const float4*>(row + begin + 4);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    return;
  }
  for (int i = 0; i < 8; ++i) v[i] = begin + i < size ? row[begin + i] : 0.0f;
}
__device__ inline void store_eight(const float (&v)[8], float* row, int begin, int size) {
  if (size % 8 == 0) {
    *reinterpret_cast<float4*>(row + begin) = make_float4(v[0], v[1], v[2], v[3]);
    *reinterpret_cast<float4*>(row + begin + 4) = make_float4(v[4], v[5], v[6], v[7]);
    return;
  }
  for (int i = 0; i < 8; ++i) {
    if (begin + i < size) row[begin + i] = v[i];
  }
}
__device__ inline void store_eight(const float (&v)[8], bf16* row, int begin, int size) {
  if (size % 8 == 0) {
    *reinterpret_cast<uint4*>(row + begin) = make_uint4(
        pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
    return;
  }
  for (int i = 0; i < 8; ++i) {
    if (begin + i < size) row[begin + i] = __float2bfloat16_rn(v[i]);
  }
}

// One value, or eight that start 16-byte aligned.
template <int kWide, class Operand>
__device__ void load_wide(float (&v)[kWide], const Operand* from) {
  if constexpr (kWide == 8) {
    load_eight(v, from, 0, 8);
  } else {
    static_assert(kWide == 1);
    v[0] = widen(*from);
  }
}
template <int kWide, class Operand>
__device__ void store_wide(const float (&v)[kWide], Operand* to) {
  if constexpr (kWide == 8) {
    store_eight(v, to, 0, 8);
  } else {
    static_assert(kWide == 1);
    round_into(*to, v[0]);
  }
}

// Eight neighbouring values as they lie in memory, so that many loads can be under way in few
// registers.
template <class Operand>
struct RawEight;
template <>
struct RawEight<bf16> {
  uint4 words;
  __device__ void load(const bf16* row, int begin, int size) {
    if (size % 8 == 0) {
      words = *reinterpret_cast<const uint4*>(row + begin);
      return;
    }
    const auto* bits = reinterpret_cast<const unsigned short*>(row);
    const auto at = [&](int i) {
      return begin + i < size ? static_cast<uint32_t>(bits[begin + i]) : 0u;
    };
    words = make_uint4(at(0) | at(1) << 16, at(2) | at(3) << 16, at(4) | at(5) << 16,
                       at(6) | at(7) << 16);
  }
  // Values 4 half .. 4 half + 3.
  __device__ void widen(float (&v)[4], int half) const {
    const uint32_t a = half ? words.z : words.x;
    const uint32_t b = half ? words.w : words.y;
    v[0] = __uint_as_float(a << 16), v[1] = __uint_as_float(a & 0xffff0000u);
    v[2] = __uint_as_float(b << 16), v[3] = __uint_as_float(b & 0xffff0000u);
  }
};
template <>
struct RawEight<float> {
  float values[8];
  __device__ void load(const float* row, int begin, int size) {
    load_eight(values, row, begin, size);
  }
  __device__ void widen(float (&v)[4], int half) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = half ? values[4 + i] : values[i];
  }
};

}  // namespace dsmoe::kernels::cuda

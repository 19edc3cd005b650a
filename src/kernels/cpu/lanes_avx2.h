// F32x16 as two AVX2 registers.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "base/lanes_x86.h"

namespace dsmoe::kernels::DSMOE_TIER {
namespace {

struct F32x16 {
  __m256 lo, hi;
};

DSMOE_HD F32x16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
DSMOE_HD F32x16 broadcast(float x) {
  const __m256 v = _mm256_set1_ps(x);
  return {v, v};
}
DSMOE_HD F32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
DSMOE_HD void store(float* p, F32x16 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
DSMOE_HD F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
DSMOE_HD F32x16 fma_broadcast(const float& x, F32x16 b, F32x16 c) {
  return fma(broadcast(x), b, c);
}
DSMOE_HD F32x16 add(F32x16 a, F32x16 b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
DSMOE_HD F32x16 sub(F32x16 a, F32x16 b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
DSMOE_HD F32x16 mul(F32x16 a, F32x16 b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
DSMOE_HD F32x16 div(F32x16 a, F32x16 b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
DSMOE_HD F32x16 sqrt(F32x16 a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
DSMOE_HD F32x16 max(F32x16 a, F32x16 b) {  // a > b ? a : b
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
DSMOE_HD F32x16 negate(F32x16 a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_xor_ps(a.lo, sign), _mm256_xor_ps(a.hi, sign)};
}

// Lanes below `count` of a, the others of b.
DSMOE_HD F32x16 first_lanes(int64_t count, F32x16 a, F32x16 b) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i lo = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lane);
  const __m256i hi = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count) - 8), lane);
  return {_mm256_blendv_ps(b.lo, a.lo, _mm256_castsi256_ps(lo)),
          _mm256_blendv_ps(b.hi, a.hi, _mm256_castsi256_ps(hi))};
}

DSMOE_HD __m256i load_words(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
DSMOE_HD void store_words(void* p, __m256i a) { _mm256_storeu_si256(static_cast<__m256i*>(p), a); }
DSMOE_HD __m256 low_half(__m256i a) { return _mm256_castsi256_ps(_mm256_slli_epi32(a, 16)); }
DSMOE_HD __m256 high_half(__m256i a) {
  return _mm256_castsi256_ps(_mm256_and_si256(a, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}

// 32 stored bf16: elements 0, 2, 4 ... and 1, 3, 5 ...
DSMOE_HD F32x16 even_bf16(const uint16_t* p) {
  return {low_half(load_words(p)), low_half(load_words(p + 16))};
}
DSMOE_HD F32x16 odd_bf16(const uint16_t* p) {
  return {high_half(load_words(p)), high_half(load_words(p + 16))};
}
// 16 stored bf16 in order.
DSMOE_HD F32x16 load_bf16(const uint16_t* p) {
  const auto widen = [](const uint16_t* eight) __attribute__((always_inline)) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(eight));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  };
  return {widen(p), widen(p + 8)};
}

// Bits 31..16 hold what tensor::to_bf16 gives; the others are zero, so that it is also the rounded
// float.
DSMOE_HD __m256i rounded_bits(__m256 a) {
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
  const __m256i lowest = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i r = _mm256_add_epi32(bits, _mm256_add_epi32(lowest, _mm256_set1_epi32(0x7fff)));
  r = _mm256_and_si256(r, _mm256_set1_epi32(static_cast<int>(0xffff0000u)));
  const __m256i tiny = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x00800000), magnitude);
  const __m256i sign = _mm256_and_si256(bits, _mm256_set1_epi32(static_cast<int>(0x80000000u)));
  r = _mm256_blendv_epi8(r, sign, tiny);
  const __m256i nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f800000));
  return _mm256_blendv_epi8(r, _mm256_set1_epi32(0x7fc00000), nan);
}
DSMOE_HD F32x16 round_bf16(F32x16 a) {
  return {_mm256_castsi256_ps(rounded_bits(a.lo)), _mm256_castsi256_ps(rounded_bits(a.hi))};
}
DSMOE_HD void store_bf16(uint16_t* p, F32x16 a) {
  const __m256i packed = _mm256_packus_epi32(_mm256_srli_epi32(rounded_bits(a.lo), 16),
                                             _mm256_srli_epi32(rounded_bits(a.hi), 16));
  store_words(p, _mm256_permute4x64_epi64(packed, 0xd8));  // packus works within 128-bit halves
}
// Interleaves two rounded vectors: element 2i = even[i], 2i + 1 = odd[i].
DSMOE_HD void store_bf16_pairs(uint16_t* p, F32x16 even, F32x16 odd) {
  store_words(p,
              _mm256_or_si256(_mm256_srli_epi32(rounded_bits(even.lo), 16), rounded_bits(odd.lo)));
  store_words(p + 16,
              _mm256_or_si256(_mm256_srli_epi32(rounded_bits(even.hi), 16), rounded_bits(odd.hi)));
}
DSMOE_HD __m256 flush(__m256 a) {
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i exponent = _mm256_and_si256(bits, _mm256_set1_epi32(0x7f800000));
  const __m256i tiny = _mm256_cmpeq_epi32(exponent, _mm256_setzero_si256());
  const __m256i sign = _mm256_and_si256(bits, _mm256_set1_epi32(static_cast<int>(0x80000000u)));
  return _mm256_castsi256_ps(_mm256_blendv_epi8(bits, sign, tiny));
}
// Denormals to signed zero by hand: the conversions of a load must not depend on arithmetic that
// could be folded away.
DSMOE_HD F32x16 flush(F32x16 a) { return {flush(a.lo), flush(a.hi)}; }

// 32 values in order to those of even and of odd index.
DSMOE_HD void split_even_odd(F32x16 a, F32x16 b, F32x16& even, F32x16& odd) {
  const auto take = [](__m256 x, __m256 y, auto pick) __attribute__((always_inline)) {
    const __m256 mixed = pick(x, y);  // within 128-bit halves: x0 x0' y0 y0' | x1 ...
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(mixed), 0xd8));
  };
  const auto evens = [](__m256 x, __m256 y) { return _mm256_shuffle_ps(x, y, 0x88); };
  const auto odds = [](__m256 x, __m256 y) { return _mm256_shuffle_ps(x, y, 0xdd); };
  even = {take(a.lo, a.hi, evens), take(b.lo, b.hi, evens)};
  odd = {take(a.lo, a.hi, odds), take(b.lo, b.hi, odds)};
}
// Word i from p + i * stride_bytes, any alignment.
DSMOE_HD F32x16 gather_words(const void* p, int32_t stride_bytes) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i offset = _mm256_mullo_epi32(lane, _mm256_set1_epi32(stride_bytes));
  const auto* lo = static_cast<const int*>(p);
  const auto* hi =
      reinterpret_cast<const int*>(static_cast<const char*>(p) + int64_t{8} * stride_bytes);
  return {_mm256_castsi256_ps(_mm256_i32gather_epi32(lo, offset, 1)),
          _mm256_castsi256_ps(_mm256_i32gather_epi32(hi, offset, 1))};
}
// Loaded once, even where two instructions could each load it.
DSMOE_HD F32x16 in_registers(F32x16 a) {
  __asm__("" : "+x"(a.lo), "+x"(a.hi));
  return a;
}
DSMOE_HD F32x16 low_halves(F32x16 a) {
  return {low_half(_mm256_castps_si256(a.lo)), low_half(_mm256_castps_si256(a.hi))};
}
DSMOE_HD F32x16 high_halves(F32x16 a) {
  return {high_half(_mm256_castps_si256(a.lo)), high_half(_mm256_castps_si256(a.hi))};
}

// Sixteen words of 32 bits.
struct I32x16 {
  __m256i lo, hi;
};
DSMOE_HD I32x16 load_bits(const void* p) {
  return {load_words(p), load_words(static_cast<const char*>(p) + 32)};
}
template <int count>  // to the left; negative: to the right
DSMOE_HD I32x16 shift(I32x16 a) {
  if constexpr (count > 0) return {_mm256_slli_epi32(a.lo, count), _mm256_slli_epi32(a.hi, count)};
  if constexpr (count < 0)
    return {_mm256_srli_epi32(a.lo, -count), _mm256_srli_epi32(a.hi, -count)};
  return a;
}
// (a & mask) ^ bits, as floats.
DSMOE_HD F32x16 assemble(I32x16 a, uint32_t mask, uint32_t bits) {
  const __m256i m = _mm256_set1_epi32(static_cast<int>(mask));
  const __m256i b = _mm256_set1_epi32(static_cast<int>(bits));
  return {_mm256_castsi256_ps(_mm256_xor_si256(_mm256_and_si256(a.lo, m), b)),
          _mm256_castsi256_ps(_mm256_xor_si256(_mm256_and_si256(a.hi, m), b))};
}
// Sixteen integers of 8 bits as floats.
DSMOE_HD F32x16 load_int8(const void* p) {
  const __m128i bytes = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(bytes, bytes)))};
}
// Whether each of 16 words without its sign is zero or between the bounds, and has no bit of
// `bits`.
DSMOE_HD bool words_within(const void* p, uint16_t lowest, uint16_t highest, uint16_t bits) {
  const auto word = [](int x) { return _mm256_set1_epi16(static_cast<int16_t>(x)); };
  const __m256i words = load_words(p);
  const __m256i zero = _mm256_setzero_si256();
  const __m256i twice = _mm256_add_epi16(words, words);
  const __m256i above = _mm256_sub_epi16(twice, word(2 * lowest));
  const __m256i clipped = _mm256_min_epu16(above, word(2 * (highest - lowest)));
  const __m256i inside =
      _mm256_or_si256(_mm256_cmpeq_epi16(above, clipped), _mm256_cmpeq_epi16(twice, zero));
  const __m256i without = _mm256_cmpeq_epi16(_mm256_and_si256(words, word(bits)), zero);
  return _mm256_movemask_epi8(_mm256_and_si256(inside, without)) == -1;
}
DSMOE_HD F32x16 fms(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm256_fmsub_ps(a.lo, b.lo, c.lo), _mm256_fmsub_ps(a.hi, b.hi, c.hi)};
}
DSMOE_HD F32x16 fnma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}

DSMOE_HD __m256 low_eight(F32x16 a) { return a.lo; }
DSMOE_HD __m256 high_eight(F32x16 a) { return a.hi; }

DSMOE_HD F32x16 exp(F32x16 a) { return {exp_lanes<Avx2Lanes>(a.lo), exp_lanes<Avx2Lanes>(a.hi)}; }
DSMOE_HD F32x16 sigmoid(F32x16 a) {
  return {sigmoid_lanes<Avx2Lanes>(a.lo), sigmoid_lanes<Avx2Lanes>(a.hi)};
}
DSMOE_HD F32x16 silu(F32x16 a) {
  return {silu_lanes<Avx2Lanes>(a.lo), silu_lanes<Avx2Lanes>(a.hi)};
}

}  // namespace
}  // namespace dsmoe::kernels::DSMOE_TIER

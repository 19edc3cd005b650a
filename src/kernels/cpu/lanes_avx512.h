// F32x16 as one AVX-512 register.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "base/lanes_x86.h"

namespace dsmoe::kernels::DSMOE_TIER {
namespace {

struct F32x16 {
  __m512 v;
};

DSMOE_HD F32x16 zero() { return {_mm512_setzero_ps()}; }
DSMOE_HD F32x16 broadcast(float x) { return {_mm512_set1_ps(x)}; }
DSMOE_HD F32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
DSMOE_HD void store(float* p, F32x16 a) { _mm512_storeu_ps(p, a.v); }
DSMOE_HD F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// fma(broadcast(x), b, c). By hand, because a compiler shares the broadcast of two FMAs, which then
// costs as much as an FMA; as part of each it costs nothing.
DSMOE_HD F32x16 fma_broadcast(const float& x, F32x16 b, F32x16 c) {
  __asm__("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(c.v) : "v"(b.v), "m"(x));
  return c;
}
DSMOE_HD F32x16 add(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
DSMOE_HD F32x16 sub(F32x16 a, F32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
DSMOE_HD F32x16 mul(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
DSMOE_HD F32x16 div(F32x16 a, F32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
DSMOE_HD F32x16 sqrt(F32x16 a) { return {_mm512_sqrt_ps(a.v)}; }
DSMOE_HD F32x16 max(F32x16 a, F32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }  // a > b ? a : b
DSMOE_HD F32x16 negate(F32x16 a) { return {_mm512_xor_ps(a.v, _mm512_set1_ps(-0.0f))}; }

// Lanes below `count` of a, the others of b.
DSMOE_HD F32x16 first_lanes(int64_t count, F32x16 a, F32x16 b) {
  return {_mm512_mask_blend_ps(static_cast<__mmask16>((1u << count) - 1u), b.v, a.v)};
}

// 32 stored bf16: elements 0, 2, 4 ... and 1, 3, 5 ...
DSMOE_HD F32x16 even_bf16(const uint16_t* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16))};
}
DSMOE_HD F32x16 odd_bf16(const uint16_t* p) {
  return {_mm512_castsi512_ps(
      _mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
}
// 16 stored bf16 in order.
DSMOE_HD F32x16 load_bf16(const uint16_t* p) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
}

// Bits 31..16 hold what tensor::to_bf16 gives; the others are zero, so that it is also the rounded
// float.
DSMOE_HD __m512i rounded_bits(F32x16 a) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
  const __m512i lowest = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i r = _mm512_add_epi32(bits, _mm512_add_epi32(lowest, _mm512_set1_epi32(0x7fff)));
  const __mmask16 tiny = _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(0x00800000));
  r = _mm512_mask_mov_epi32(r, tiny, bits);
  const __mmask16 nan = _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(0x7f800000));
  r = _mm512_mask_mov_epi32(r, nan, _mm512_set1_epi32(0x7fc00000));
  const __m512i keep = _mm512_mask_mov_epi32(_mm512_set1_epi32(static_cast<int>(0xffff0000u)), tiny,
                                             _mm512_set1_epi32(static_cast<int>(0x80000000u)));
  return _mm512_and_si512(r, keep);
}
DSMOE_HD F32x16 round_bf16(F32x16 a) { return {_mm512_castsi512_ps(rounded_bits(a))}; }
DSMOE_HD void store_bf16(uint16_t* p, F32x16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded_bits(a), 16)));
}
// Interleaves two rounded vectors: element 2i = even[i], 2i + 1 = odd[i].
DSMOE_HD void store_bf16_pairs(uint16_t* p, F32x16 even, F32x16 odd) {
  _mm512_storeu_si512(
      p, _mm512_or_si512(_mm512_srli_epi32(rounded_bits(even), 16), rounded_bits(odd)));
}
// Denormals to signed zero by hand: the conversions of a load must not depend on arithmetic that
// could be folded away.
DSMOE_HD F32x16 flush(F32x16 a) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const __mmask16 tiny = _mm512_testn_epi32_mask(bits, _mm512_set1_epi32(0x7f800000));
  return {_mm512_castsi512_ps(
      _mm512_mask_and_epi32(bits, tiny, bits, _mm512_set1_epi32(static_cast<int>(0x80000000u))))};
}
// 32 values in order to those of even and of odd index.
DSMOE_HD void split_even_odd(F32x16 a, F32x16 b, F32x16& even, F32x16& odd) {
  const __m512i evens =
      _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odds = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  even = {_mm512_permutex2var_ps(a.v, evens, b.v)};
  odd = {_mm512_permutex2var_ps(a.v, odds, b.v)};
}
// Word i from p + i * stride_bytes, any alignment.
DSMOE_HD F32x16 gather_words(const void* p, int32_t stride_bytes) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i offset = _mm512_mullo_epi32(lane, _mm512_set1_epi32(stride_bytes));
  return {_mm512_castsi512_ps(_mm512_i32gather_epi32(offset, p, 1))};
}
// Loaded once, even where two instructions could each load it.
DSMOE_HD F32x16 in_registers(F32x16 a) {
  __asm__("" : "+v"(a.v));
  return a;
}
DSMOE_HD F32x16 low_halves(F32x16 a) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a.v), 16))};
}
DSMOE_HD F32x16 high_halves(F32x16 a) {
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(a.v),
                                               _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
}

// Sixteen words of 32 bits.
struct I32x16 {
  __m512i v;
};
DSMOE_HD I32x16 load_bits(const void* p) { return {_mm512_loadu_si512(p)}; }
template <int count>  // to the left; negative: to the right
DSMOE_HD I32x16 shift(I32x16 a) {
  if constexpr (count > 0) return {_mm512_slli_epi32(a.v, count)};
  if constexpr (count < 0) return {_mm512_srli_epi32(a.v, -count)};
  return a;
}
// (a & mask) ^ bits, as floats.
DSMOE_HD F32x16 assemble(I32x16 a, uint32_t mask, uint32_t bits) {
  constexpr int kAndXor = 0x6a;
  return {_mm512_castsi512_ps(
      _mm512_ternarylogic_epi32(a.v, _mm512_set1_epi32(static_cast<int>(mask)),
                                _mm512_set1_epi32(static_cast<int>(bits)), kAndXor))};
}
// Sixteen integers of 8 bits as floats.
DSMOE_HD F32x16 load_int8(const void* p) {
  return {
      _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))))};
}
// Whether each of 16 words without its sign is zero or between the bounds, and has no bit of
// `bits`.
DSMOE_HD bool words_within(const void* p, uint16_t lowest, uint16_t highest, uint16_t bits) {
  const auto word = [](int x) { return _mm256_set1_epi16(static_cast<int16_t>(x)); };
  const __m256i words = _mm256_loadu_si256(static_cast<const __m256i*>(p));
  const __m256i twice = _mm256_add_epi16(words, words);
  const __mmask16 nonzero = _mm256_test_epi16_mask(twice, twice);
  const __mmask16 outside = _mm256_mask_cmpgt_epu16_mask(
      nonzero, _mm256_sub_epi16(twice, word(2 * lowest)), word(2 * (highest - lowest)));
  return (outside | _mm256_test_epi16_mask(words, word(bits))) == 0;
}
DSMOE_HD F32x16 fms(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmsub_ps(a.v, b.v, c.v)}; }
DSMOE_HD F32x16 fnma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }

DSMOE_HD __m256 low_eight(F32x16 a) { return _mm512_castps512_ps256(a.v); }
DSMOE_HD __m256 high_eight(F32x16 a) { return _mm512_extractf32x8_ps(a.v, 1); }

DSMOE_HD F32x16 exp(F32x16 a) { return {exp_lanes<Avx512Lanes>(a.v)}; }
DSMOE_HD F32x16 sigmoid(F32x16 a) { return {sigmoid_lanes<Avx512Lanes>(a.v)}; }
DSMOE_HD F32x16 silu(F32x16 a) { return {silu_lanes<Avx512Lanes>(a.v)}; }

}  // namespace
}  // namespace dsmoe::kernels::DSMOE_TIER

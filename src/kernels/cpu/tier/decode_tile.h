// One group of integers as the bf16 tile that a plain panel would hold. AVX-512 only.
#pragma once

#include "kernels/cpu/tier/coded.h"

namespace dsmoe::kernels::DSMOE_TIER {
namespace {

// Two vectors of floats that are bf16 numbers: even k to the low halves of the lanes, odd k to the
// high ones.
DSMOE_HD __m512i pair_exact(F32x16 even, F32x16 odd) {
  const __m512i low = _mm512_castps_si512(even.v);
  constexpr __mmask64 kLowHalves = 0x3333333333333333u;
  return _mm512_mask_alignr_epi8(_mm512_castps_si512(odd.v), kLowHalves, low, low, 2);
}

// What Group::numbers takes. Words of int4 are used eight times: loaded once, because lines of
// groups lie across two lines of the cache.
template <Coding coding>
DSMOE_HD auto integers_of(const char* line) {
  if constexpr (coding == Coding::int4) {
    I32x16 words = load_bits(line);
    __asm__("" : "+v"(words.v));
    return words;
  } else {
    return line;
  }
}

// write(pair of lanes, number of the pair) for the 16 pairs of k.
template <Coding coding, class Numbers, class Write>
DSMOE_HD void for_each_pair(const char* group, const Numbers& numbers, Write&& write) {
  const char* line = group + kGroupScaleBytes;
  constexpr int kPairs = kLineDepth<coding> / 2;
  unrolled<kGroupLines<coding>>([&]<int i>() __attribute__((always_inline)) {
    _mm_prefetch(line + i * kLineBytes + kCodedPrefetchBytes, _MM_HINT_T0);
    const auto from = integers_of<coding>(line + i * kLineBytes);
    unrolled<kPairs>([&]<int pair>() __attribute__((always_inline)) {
      write(pair_exact(numbers.template numbers<2 * pair>(from),
                       numbers.template numbers<2 * pair + 1>(from)),
            i * kPairs + pair);
    });
  });
}

template <Coding coding>
DSMOE_HD void decode_tile(const char* group, char* tile) {
  const auto store_pair = [tile](__m512i pair, int at) __attribute__((always_inline)) {
    _mm512_store_si512(tile + at * 64, pair);
  };
  for_each_pair<coding>(group, Group<coding, Scaling::numbers>(group), store_pair);
}

// Scales that are powers of two, at most 1: integers of 8 bits are bf16 numbers themselves, and the
// scale is taken off their exponents. Saturation keeps zero what is zero.
template <>
DSMOE_HD void decode_tile<Coding::int8>(const char* group, char* tile) {
  constexpr uint16_t kOne = bf16_power(0);
  if (words_within(group, bf16_power(-32), kOne, 0x807f)) {
    const __m512i scale =
        _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(group)));
    const __mmask16 nonzero = _mm512_test_epi32_mask(scale, scale);
    const __m512i below =
        _mm512_mask_sub_epi32(_mm512_set1_epi32(0xffff), nonzero, _mm512_set1_epi32(kOne), scale);
    const __m512i less = _mm512_or_si512(below, _mm512_slli_epi32(below, 16));
    for_each_pair<Coding::int8>(
        group, Group<Coding::int8, Scaling::sums>(group),
        [=](__m512i pair, int at) __attribute__((always_inline)) {
          _mm512_store_si512(tile + at * 64, _mm512_subs_epu16(pair, less));
        });
    return;
  }
  for_each_pair<Coding::int8>(
      group, Group<Coding::int8, Scaling::numbers>(group),
      [=](__m512i pair, int at)
          __attribute__((always_inline)) { _mm512_store_si512(tile + at * 64, pair); });
}

}  // namespace
}  // namespace dsmoe::kernels::DSMOE_TIER

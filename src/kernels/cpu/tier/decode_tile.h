// One group of integers as the bf16 tile that a plain panel would hold. AVX-512 only.
#pragma once

#include "kernels/cpu/tier/coded.h"
#include "kernels/cpu/tier/short_scales.h"

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

// write(pair of lanes, number of the pair) for the pairs of k in some lines of a group.
template <Coding coding, int line_begin, int line_end, class Numbers, class Write>
DSMOE_HD void for_each_pair(const char* group, const Numbers& numbers, Write&& write) {
  constexpr int kPairs = kLineDepth<coding> / 2;
  unrolled<line_end - line_begin>([&]<int i>() __attribute__((always_inline)) {
    const char* line = group + kGroupScaleBytes + (line_begin + i) * kLineBytes;
    ask_behind(line);
    const auto from = integers_of<coding>(line);
    unrolled<kPairs>([&]<int pair>() __attribute__((always_inline)) {
      write(pair_exact(numbers.template numbers<2 * pair>(from),
                       numbers.template numbers<2 * pair + 1>(from)),
            (line_begin + i) * kPairs + pair);
    });
  });
}

// Constants that loops load, a part of a load's work. Left to itself the compiler makes them of
// immediates at every use, which takes the unit that permutes and multiplies tiles.
struct DecodeConstants {
  alignas(64) uint8_t low[64] = {};  // bytes of kNumbers
  alignas(64) uint8_t high[64] = {};
  uint8_t first_byte[16] = {0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12};
  uint8_t first_word[16] = {0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13};
  uint32_t nibbles = 0x0f0f0f0f;
  uint32_t exponents = 0x7f807f80;
  uint32_t ones = 0x3f803f80;
};
constexpr DecodeConstants make_decode_constants() {
  DecodeConstants constants;
  for (int i = 0; i < 64; ++i) {
    constants.low[i] = static_cast<uint8_t>(kNumbers.of[i] & 0xff);
    constants.high[i] = static_cast<uint8_t>(kNumbers.of[i] >> 8);
  }
  return constants;
}
constexpr DecodeConstants kDecodeConstants = make_decode_constants();
DSMOE_HD const DecodeConstants& decode_constants() {
  const DecodeConstants* constants = &kDecodeConstants;
  __asm__("" : "+r"(constants));
  return *constants;
}
DSMOE_HD __m512i in_lanes(const uint8_t (&bytes)[16]) {
  return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
}
DSMOE_HD __m512i in_lanes(const uint32_t& word) {
  return _mm512_set1_epi32(static_cast<int>(word));
}

// The scales of a group for numbers that wait in a table or are the integers themselves: what is to
// be taken off their exponents. Saturation keeps zero what is zero.
class PositiveScales {
 public:
  DSMOE_HD explicit PositiveScales(const char* group)
      : words_(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(group))),
        nonzero_(_mm256_test_epi16_mask(words_, words_)) {}

  // Whether all are zero, or positive, from 2^-32 to below 2 (of 7 bits: to 1), with zeros in the
  // last `bits` bits: turned to the front, these make a number too large.
  template <int bits>
  DSMOE_HD bool end_in_zeros() const {
    constexpr int kLowest = bf16_power(-32) >> bits;
    constexpr int kHighest = (bits == 7 ? bf16_power(0) : bf16_power(1) - 1) >> bits;
    const __m256i turned = _mm256_shrdi_epi16(words_, words_, bits);
    const __m256i above = _mm256_sub_epi16(turned, _mm256_set1_epi16(kLowest));
    return _mm256_mask_cmpgt_epu16_mask(nonzero_, above, _mm256_set1_epi16(kHighest - kLowest)) ==
           0;
  }
  DSMOE_HD __m512i words() const { return _mm512_cvtepu16_epi32(words_); }
  DSMOE_HD __m512i less(const DecodeConstants& constants) const {
    const __m512i twice = _mm512_shuffle_epi8(words(), in_lanes(constants.first_word));
    const __m512i power = _mm512_and_si512(twice, in_lanes(constants.exponents));
    return _mm512_mask_sub_epi32(_mm512_set1_epi32(-1), nonzero_, in_lanes(constants.ones), power);
  }

 private:
  __m256i words_;
  __mmask16 nonzero_;
};

// Scales that are powers of two, at most 1: integers of 8 bits are bf16 numbers themselves.
template <int line_begin, int line_end>
DSMOE_HD void decode_powers(const PositiveScales& scales, const char* group, char* tile) {
  const __m512i less = scales.less(decode_constants());
  for_each_pair<Coding::int8, line_begin, line_end>(
      group, Group<Coding::int8, Scaling::sums>(group),
      [=](__m512i pair, int at) __attribute__((always_inline)) {
        _mm512_store_si512(tile + at * 64, _mm512_subs_epu16(pair, less));
      });
}

// Int4 under scales of three significant bits: tables give the low and the high byte of a number. A
// half of a word holds the same half of four pairs: two bytes with the index of one pair in their
// low and of another in their high four bits.
template <int line_begin, int line_end>
DSMOE_HD void decode_short(const PositiveScales& scales, const char* group, char* tile) {
  const DecodeConstants& constants = decode_constants();
  const __m512i less = scales.less(constants);
  const __m512i classes =
      _mm512_srli_epi32(_mm512_shuffle_epi8(scales.words(), in_lanes(constants.first_byte)), 1);
  const __m512i nibbles = in_lanes(constants.nibbles);
  const __m512i low = _mm512_load_si512(constants.low);
  const __m512i high = _mm512_load_si512(constants.high);
  constexpr __mmask64 kHighBytes = 0xaaaaaaaaaaaaaaaau;
  const auto index = [&](__m512i words) __attribute__((always_inline)) {
    constexpr int kSelect = 0xe2;  // nibbles ? words : classes
    return _mm512_ternarylogic_epi32(words, nibbles, classes, kSelect);
  };
  const auto turned = [](__m512i halves) __attribute__((always_inline)) {
    return _mm512_shrdi_epi16(halves, halves, 8);
  };
  const auto put = [&](int at, __m512i pair) __attribute__((always_inline)) {
    _mm512_store_si512(tile + at * 64, _mm512_subs_epu16(pair, less));
  };
  // The pairs `at` and `at` + 2, from indices in the low and in the high byte. Once by shifts, once
  // by four tables: that divides the work evenly over the units that do one or the other.
  const auto put_by_shifts = [&](int at, __m512i indices) __attribute__((always_inline)) {
    const __m512i low_bytes = turned(_mm512_permutexvar_epi8(indices, low));
    const __m512i high_bytes = _mm512_permutexvar_epi8(indices, high);
    put(at, _mm512_shldi_epi16(high_bytes, low_bytes, 8));
    put(at + 2, _mm512_mask_blend_epi8(kHighBytes, low_bytes, high_bytes));
  };
  const auto put_by_tables = [&](int at, __m512i indices) __attribute__((always_inline)) {
    const __m512i swapped = turned(indices);
    const auto pair = [&](__m512i for_low, __m512i for_high) __attribute__((always_inline)) {
      return _mm512_mask_permutexvar_epi8(_mm512_permutexvar_epi8(for_low, low), kHighBytes,
                                          for_high, high);
    };
    put(at, pair(indices, swapped));
    put(at + 2, pair(swapped, indices));
  };
  unrolled<line_end - line_begin>([&]<int i>() __attribute__((always_inline)) {
    const char* line = group + kGroupScaleBytes + (line_begin + i) * kLineBytes;
    ask_behind(line);
    const __m512i words = _mm512_loadu_si512(line);
    constexpr int kFirst = (line_begin + i) * kLineDepth<Coding::int4> / 2;
    put_by_shifts(kFirst, index(words));
    put_by_tables(kFirst + 1, index(_mm512_srli_epi16(words, 4)));
  });
}

// Part `part` of `parts` of a group's tile.
template <Coding coding, int part = 0, int parts = 1>
DSMOE_HD void decode_tile(const char* group, char* tile) {
  constexpr int kBegin = kGroupLines<coding> * part / parts;
  constexpr int kEnd = kGroupLines<coding> * (part + 1) / parts;
  if constexpr (part == 0) ask_behind(group);
  const PositiveScales scales(group);
  if constexpr (coding == Coding::int8) {
    if (scales.end_in_zeros<7>()) [[likely]]
      return decode_powers<kBegin, kEnd>(scales, group, tile);
  } else {
    if (scales.end_in_zeros<5>()) [[likely]]
      return decode_short<kBegin, kEnd>(scales, group, tile);
  }
  for_each_pair<coding, kBegin, kEnd>(
      group, Group<coding, Scaling::numbers>(group),
      [=](__m512i pair, int at)
          __attribute__((always_inline)) { _mm512_store_si512(tile + at * 64, pair); });
}

}  // namespace
}  // namespace dsmoe::kernels::DSMOE_TIER

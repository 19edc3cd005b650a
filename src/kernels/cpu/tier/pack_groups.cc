// Sixteen rows of integers into one panel: a transposition of words, and of bytes where a word
// holds four. AVX-512 only.
#include "kernels/cpu/tier/coded.h"
#include "kernels/cpu/tier/leaves.h"

namespace dsmoe::kernels::DSMOE_TIER {
namespace {

using cpu::PackGroups;

constexpr int64_t kPieceBytes = 16;  // of a row, transposed at a time

// Word i of the pieces of sixteen rows, for i in [0, 4).
DSMOE_HD void transpose_words(const char* rows, int64_t stride, __m512i (&word)[4]) {
  const auto piece = [&](int64_t row) __attribute__((always_inline)) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows + row * stride));
  };
  __m512i lines[4];  // rows i, 4 + i, 8 + i, 12 + i
  for (int64_t i = 0; i < 4; ++i) {
    __m512i line = _mm512_castsi128_si512(piece(i));
    line = _mm512_inserti32x4(line, piece(4 + i), 1);
    line = _mm512_inserti32x4(line, piece(8 + i), 2);
    lines[i] = _mm512_inserti32x4(line, piece(12 + i), 3);
  }
  const __m512i low01 = _mm512_unpacklo_epi32(lines[0], lines[1]);
  const __m512i high01 = _mm512_unpackhi_epi32(lines[0], lines[1]);
  const __m512i low23 = _mm512_unpacklo_epi32(lines[2], lines[3]);
  const __m512i high23 = _mm512_unpackhi_epi32(lines[2], lines[3]);
  word[0] = _mm512_unpacklo_epi64(low01, low23);
  word[1] = _mm512_unpackhi_epi64(low01, low23);
  word[2] = _mm512_unpacklo_epi64(high01, high23);
  word[3] = _mm512_unpackhi_epi64(high01, high23);
}

// Sixteen words of four bytes to four rows of sixteen.
DSMOE_HD __m512i transpose_bytes(__m512i words) {
  const __m512i in_lane =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  const __m512i across = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_epi32(across, _mm512_shuffle_epi8(words, in_lane));
}

// Words of int4 as panels hold them (layout.h, int4_word): the even four bits in front.
DSMOE_HD __m512i even_nibbles_first(__m512i words) {
  // Exchanges the bits `mask` with those `distance` above them.
  const auto exchange = [](__m512i x, int distance, uint32_t mask) __attribute__((always_inline)) {
    const auto count = static_cast<unsigned>(distance);
    const __m512i differ = _mm512_and_si512(_mm512_xor_si512(x, _mm512_srli_epi32(x, count)),
                                            _mm512_set1_epi32(static_cast<int>(mask)));
    return _mm512_xor_si512(x, _mm512_or_si512(differ, _mm512_slli_epi32(differ, count)));
  };
  return exchange(exchange(words, 4, 0x00f000f0), 8, 0x0000ff00);
}

template <Coding coding>
void pack_rows(const PackGroups& args) {
  constexpr int64_t kRowBytes = kGroupBytes<coding> / 16 - 2;  // of one group, without its scale
  const auto* integers = static_cast<const char*>(args.integers);
  const auto* scales = static_cast<const char*>(args.scales);
  auto* target = static_cast<char*>(args.panel);
  const int64_t stride = args.groups * kRowBytes;
  for (int64_t group = 0; group < args.groups; ++group, integers += kRowBytes) {
    for (int64_t row = 0; row < 16; ++row)
      std::memcpy(target + 2 * row, scales + (row * args.groups + group) * 2, 2);
    target += kGroupScaleBytes;
    for (int64_t byte = 0; byte < kRowBytes; byte += kPieceBytes) {
      __m512i word[4];
      transpose_words(integers + byte, stride, word);
      for (const __m512i& words : word) {
        _mm512_storeu_si512(
            target, coding == Coding::int8 ? transpose_bytes(words) : even_nibbles_first(words));
        target += kLineBytes;
      }
    }
  }
}

}  // namespace

void pack_groups(const PackGroups& args) {
  args.coding == Coding::int8 ? pack_rows<Coding::int8>(args) : pack_rows<Coding::int4>(args);
}

}  // namespace dsmoe::kernels::DSMOE_TIER

// The compression function as the standard writes it, and by the instructions that x86 has for it.
#include "base/sha256.h"

#include <fmt/core.h>
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/cpu_features.h"

namespace dsmoe {
namespace {

// First 32 bits of the fractional parts of the cube roots of the first 64 primes.
alignas(16) constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t load_big_endian(const std::byte* bytes) {
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i) word = word << 8 | std::to_integer<uint32_t>(bytes[i]);
  return word;
}

void compress_block(std::array<uint32_t, 8>& state, const std::byte* block) {
  uint32_t w[64];
  for (int t = 0; t < 16; ++t) w[t] = load_big_endian(block + 4 * t);
  for (int t = 16; t < 64; ++t) {
    const uint32_t s0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ (w[t - 15] >> 3);
    const uint32_t s1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ (w[t - 2] >> 10);
    w[t] = w[t - 16] + s0 + w[t - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (int t = 0; t < 64; ++t) {
    const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRound[t] + w[t];
    const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + t2;
  }
  const uint32_t add[8] = {a, b, c, d, e, f, g, h};
  for (int i = 0; i < 8; ++i) state[i] += add[i];
}

using Compress = void (*)(std::array<uint32_t, 8>&, const std::byte*, std::size_t);

Compress best_compress() {
  static const Compress best =
      cpu_features().sha ? sha256_compress_by_instructions : sha256_compress;
  return best;
}

}  // namespace

void sha256_compress(std::array<uint32_t, 8>& state, const std::byte* blocks, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) compress_block(state, blocks + 64 * i);
}

// The instructions keep the state as two vectors, {a, b, e, f} and {c, d, g, h}, highest lane
// first; two rounds turn the first into the second and make a new first.
__attribute__((target("sha,sse4.1"))) void sha256_compress_by_instructions(
    std::array<uint32_t, 8>& state, const std::byte* blocks, std::size_t count) {
  const __m128i big_endian = _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3);
  const auto [a, b, c, d, e, f, g, h] = std::bit_cast<std::array<int, 8>>(state);
  __m128i abef = _mm_set_epi32(a, b, e, f);
  __m128i cdgh = _mm_set_epi32(c, d, g, h);
  for (; count > 0; --count, blocks += 64) {
    const __m128i abef_before = abef;
    const __m128i cdgh_before = cdgh;
    __m128i w[4];  // the last sixteen words of the schedule, four at a time
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      __m128i& words = w[i % 4];
      if (i < 4) {
        words = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(blocks + 16 * i)),
                                 big_endian);
      } else {
        const __m128i last = w[(i + 3) % 4];
        const __m128i seven_ago = _mm_alignr_epi8(last, w[(i + 2) % 4], 4);
        words = _mm_sha256msg2_epu32(
            _mm_add_epi32(_mm_sha256msg1_epu32(words, w[(i + 1) % 4]), seven_ago), last);
      }
      const __m128i keyed =
          _mm_add_epi32(words, _mm_load_si128(reinterpret_cast<const __m128i*>(kRound + 4 * i)));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, keyed);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(keyed, 0x0e));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  alignas(16) uint32_t feba[4], hgdc[4];
  _mm_store_si128(reinterpret_cast<__m128i*>(feba), abef);
  _mm_store_si128(reinterpret_cast<__m128i*>(hgdc), cdgh);
  state = {feba[3], feba[2], hgdc[3], hgdc[2], feba[1], feba[0], hgdc[1], hgdc[0]};
}

void Sha256::update(std::span<const std::byte> bytes) {
  const std::size_t filled = length_ % 64;
  length_ += bytes.size();
  if (filled > 0) {
    const std::size_t count = std::min(64 - filled, bytes.size());
    std::copy_n(bytes.begin(), count, pending_.begin() + static_cast<std::ptrdiff_t>(filled));
    bytes = bytes.subspan(count);
    if (filled + count < 64) return;
    best_compress()(state_, pending_.data(), 1);
  }
  const std::size_t whole = bytes.size() / 64;
  best_compress()(state_, bytes.data(), whole);
  bytes = bytes.subspan(whole * 64);
  std::copy(bytes.begin(), bytes.end(), pending_.begin());
}

std::string Sha256::finish() {
  const uint64_t bits = length_ * 8;
  std::array<std::byte, 72> padding{std::byte{0x80}};
  const std::size_t zeros = (119 - length_ % 64) % 64;  // after the 0x80, up to 56 modulo 64
  for (int i = 0; i < 8; ++i) padding[1 + zeros + i] = std::byte(bits >> (56 - 8 * i));
  update(std::span(padding).first(1 + zeros + 8));
  std::string digits;
  for (const uint32_t word : state_) digits += fmt::format("{:08x}", word);
  return digits;
}

std::string sha256(std::string_view bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.finish();
}

}  // namespace dsmoe

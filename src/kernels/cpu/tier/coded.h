// From a group of integers to the numbers they stand for, in registers.
#pragma once

#include <utility>

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/tier.h"

namespace dsmoe::kernels::DSMOE_TIER {
namespace {

using cpu::Coding;

constexpr int64_t kGroupDepth = 32;       // k of one group, and of one block of the bf16 rule
constexpr int64_t kGroupScaleBytes = 32;  // sixteen bf16
constexpr int64_t kLineBytes = 64;
constexpr int64_t kCodedPrefetchBytes = 2048;     // into the first cache
constexpr int64_t kCodedFarPrefetchBytes = 6144;  // into the second

// Asks for what lies so far behind a group's scales or one of its lines. A group ends in the middle
// of a line of the cache, which the scales of the next one share: who asks for lines of integers
// alone never asks for that one. In two steps: the first cache has too few buffers to wait for
// memory with all that must be under way.
DSMOE_HD void ask_behind(const char* place) {
  _mm_prefetch(place + kCodedFarPrefetchBytes, _MM_HINT_T1);
  _mm_prefetch(place + kCodedPrefetchBytes, _MM_HINT_T0);
}

template <Coding coding>
constexpr int kLineDepth = coding == Coding::int8 ? 4 : 8;  // k of the sixteen outputs in a line
template <Coding coding>
constexpr int kGroupLines = kGroupDepth / kLineDepth<coding>;
template <Coding coding>
constexpr int64_t kGroupBytes = kGroupScaleBytes + kGroupLines<coding>* kLineBytes;

// Where the scale goes. A power of two commutes with every rounding, so that it may wait for the
// sum of the group's 32 products, as long as nothing overflows or falls below the normal numbers
// (moderate_scales, moderate_values).
enum class Scaling { numbers, sums };

// Values of the operand: zero, or from 2^-80 to 2^60. They are multiples of 2^-87, and so are their
// products with integers and all sums of them; with scales from 2^-32 to 2^32 no step leaves the
// normal numbers.
constexpr uint16_t bf16_power(int exponent) { return static_cast<uint16_t>((127 + exponent) << 7); }
inline bool moderate_values(const uint16_t* x, int64_t size) {
  constexpr uint16_t kLowest = bf16_power(-80);
  constexpr uint16_t kRange = bf16_power(60) - kLowest;
  uint16_t outside = 0;
  for (int64_t i = 0; i < size; ++i) {
    const auto magnitude = static_cast<uint16_t>(x[i] & 0x7fff);
    const auto above = static_cast<uint16_t>(magnitude - kLowest);
    outside |= static_cast<uint16_t>((magnitude != 0) & (above > kRange));
  }
  return outside == 0;
}
// The scales of a group: zero, or from 2^-32 to 2^32, with none of the bits `mantissa`.
DSMOE_HD bool moderate_scales(const char* group, uint16_t mantissa) {
  return words_within(group, bf16_power(-32), bf16_power(32), mantissa);
}

DSMOE_HD F32x16 load_scale(const char* group) {
  return load_bf16(reinterpret_cast<const uint16_t*>(group));
}

// The scales of a group's sixteen outputs; the numbers that integer `idx` of each output in a line
// stands for; and what becomes of the sum of the group's products.
template <Coding coding, Scaling scaling>
class Group;

// v = scale * q has at most 16 significant bits and is rounded to 8. v * (2^16 + 1), rounded to 24
// bits, is v * 2^16 plus that rounding of v, ties to even included; and the difference to v * 2^16
// is exact. The factors are put to the scale, which then has at most 24 bits.
template <>
class Group<Coding::int8, Scaling::numbers> {
 public:
  DSMOE_HD explicit Group(const char* group)
      : scale_both_(mul(broadcast(65537.0f), load_scale(group))),
        scale_high_(mul(broadcast(65536.0f), load_scale(group))) {}
  template <int idx>
  DSMOE_HD F32x16 numbers(const char* line) const {
    const F32x16 q = load_int8(line + idx * 16);
    return fnma(q, scale_high_, mul(q, scale_both_));
  }
  template <int idx, bool>
  DSMOE_HD F32x16 numbers_of_line(const char* line) const {
    return numbers<idx>(line);
  }
  DSMOE_HD F32x16 add_to(F32x16 acc, F32x16 sum) const { return add(acc, sum); }

 private:
  F32x16 scale_both_;
  F32x16 scale_high_;
};

template <>
class Group<Coding::int8, Scaling::sums> {
 public:
  DSMOE_HD explicit Group(const char* group) : scale_(load_scale(group)) {}
  template <int idx>
  DSMOE_HD F32x16 numbers(const char* line) const {
    return load_int8(line + idx * 16);
  }
  template <int idx, bool>
  DSMOE_HD F32x16 numbers_of_line(const char* line) const {
    return numbers<idx>(line);
  }
  DSMOE_HD F32x16 add_to(F32x16 acc, F32x16 sum) const { return fma(sum, scale_, acc); }

 private:
  F32x16 scale_;
};

// An integer's bits, its sign flipped, become the last places of a float whose power of two makes
// them units: 2^e + (q + 8). biased * scale - zero * scale is the number: all three products have
// at most 24 significant bits, so that the subtraction is exact.
template <>
class Group<Coding::int4, Scaling::numbers> {
  static constexpr int kPlaces = 3;  // from bit 4, 8 and 12 on
  static constexpr uint32_t kBias = 8;

 public:
  Group() = default;
  DSMOE_HD explicit Group(const char* group) : scale_(load_scale(group)) {
    for (int place = 0; place < kPlaces; ++place) {
      const auto zero = static_cast<float>((uint32_t{1} << (19 - 4 * place)) + kBias);
      zero_[place] = mul(broadcast(zero), scale_);
    }
  }
  // Words are read from a byte before or behind the line's first, where four bits lie at a place
  // already: that takes no instruction of the units that multiply. What comes along from
  // neighbours is masked; a group's last line does not read behind itself.
  template <int idx, bool last_line>
  DSMOE_HD F32x16 numbers_of_line(const char* line) const {
    constexpr int kByte[8] = {-1, 0, 0, 0, 1, 2, 2, 2};
    constexpr int kBits = nibble(idx);
    if constexpr (last_line && kByte[kBits] > 0) {
      return numbers<idx>(load_bits(line));
    } else {
      return at_bit<4 * kBits - 8 * kByte[kBits]>(load_bits(line + kByte[kBits]));
    }
  }
  template <int idx>
  DSMOE_HD F32x16 numbers(I32x16 words) const {
    constexpr int kShift[8] = {4, 0, 0, 0, -12, -12, -12, -16};
    constexpr int kBits = nibble(idx);
    return at_bit<4 * kBits + kShift[kBits]>(shift<kShift[kBits]>(words));
  }
  DSMOE_HD F32x16 add_to(F32x16 acc, F32x16 sum) const { return add(acc, sum); }

 private:
  // Which four bits of a word are integer `idx`: layout.h, int4_place.
  static constexpr int nibble(int idx) { return idx % 2 * 4 + idx / 2; }

  template <int bit>
  DSMOE_HD F32x16 at_bit(I32x16 words) const {
    static_assert(bit % 4 == 0 && bit >= 4 && bit <= 4 * kPlaces);
    constexpr uint32_t kMask = (2 * kBias - 1) << bit;
    constexpr uint32_t kExponent = static_cast<uint32_t>(127 + 23 - bit) << 23;
    return fms(assemble(words, kMask, kExponent | (kBias << bit)), scale_, zero_[bit / 4 - 1]);
  }

  F32x16 scale_;
  F32x16 zero_[kPlaces];
};

// body.operator()<i>() for i in [0, count).
template <int count, class Body>
DSMOE_HD void unrolled(Body&& body) {
  [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
    (body.template operator()<i>(), ...);
  }
  (std::make_integer_sequence<int, count>{});
}

// Bytes from a panel's start to k, a multiple of 32.
DSMOE_HD int64_t panel_byte(const cpu::ProductBlock& args, int64_t k) {
  switch (args.coding) {
    case Coding::int8:
      return k / kGroupDepth * kGroupBytes<Coding::int8>;
    case Coding::int4:
      return k / kGroupDepth * kGroupBytes<Coding::int4>;
    default:
      return k * (args.weight_type == cpu::Element::bf16 ? 32 : 64);
  }
}

}  // namespace
}  // namespace dsmoe::kernels::DSMOE_TIER

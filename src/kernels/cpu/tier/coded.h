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
constexpr int64_t kWordBytes = 64;        // one word of each output
constexpr int64_t kCodedPrefetchBytes = 2048;

// An integer's bits, its sign flipped, become the last places of a float whose power of two makes
// them units: 2^e + (q + bias). Places are chosen so that a word is shifted as seldom as possible.
template <Coding coding>
struct Place;
template <>
struct Place<Coding::int8> {
  static constexpr int kWords = 8;
  static constexpr int kPerWord = 4;
  static constexpr int kPlaces = 2;
  static constexpr uint32_t kBias = 128;
  static constexpr int kFirstBit[kPlaces] = {7, 15};
  static constexpr int kShift[kPerWord] = {7, 7, -9, -9};
  static constexpr int kPlaceOf[kPerWord] = {0, 1, 0, 1};
};
template <>
struct Place<Coding::int4> {
  static constexpr int kWords = 4;
  static constexpr int kPerWord = 8;
  static constexpr int kPlaces = 4;
  static constexpr uint32_t kBias = 8;
  static constexpr int kFirstBit[kPlaces] = {4, 8, 12, 16};
  static constexpr int kShift[kPerWord] = {4, 0, 0, 0, 0, -12, -12, -12};
  static constexpr int kPlaceOf[kPerWord] = {0, 0, 1, 2, 3, 1, 2, 3};
};

template <Coding coding>
constexpr int64_t kGroupBytes = kGroupScaleBytes + Place<coding>::kWords* kWordBytes;

// 2^e + bias of a place.
template <Coding coding>
constexpr float zero_of_place(int place) {
  using P = Place<coding>;
  return static_cast<float>((uint32_t{1} << (23 - P::kFirstBit[place])) + P::kBias);
}

// Integer `idx` of each word, plus zero_of_place.
template <Coding coding, int idx>
DSMOE_HD F32x16 biased(I32x16 words) {
  using P = Place<coding>;
  constexpr int kBit = P::kFirstBit[P::kPlaceOf[idx]];
  constexpr uint32_t kMask = (2 * P::kBias - 1) << kBit;
  constexpr uint32_t kExponent = static_cast<uint32_t>(127 + 23 - kBit) << 23;
  return assemble(shift<P::kShift[idx]>(words), kMask, kExponent | (P::kBias << kBit));
}

DSMOE_HD F32x16 load_scale(const char* group) {
  return load_bf16(reinterpret_cast<const uint16_t*>(group));
}

// The scales of a group's sixteen outputs, and the numbers that its integers stand for.
template <Coding coding>
class GroupScale;

// scale * q is the number: biased * scale - zero * scale, where all three products have at most 24
// significant bits, so that the subtraction is exact.
template <>
class GroupScale<Coding::int4> {
  using P = Place<Coding::int4>;

 public:
  DSMOE_HD void load(const char* group) {
    scale_ = load_scale(group);
    for (int place = 0; place < P::kPlaces; ++place)
      zero_[place] = mul(broadcast(zero_of_place<Coding::int4>(place)), scale_);
  }
  template <int idx>
  DSMOE_HD F32x16 numbers(I32x16 words) const {
    return fms(biased<Coding::int4, idx>(words), scale_, zero_[P::kPlaceOf[idx]]);
  }

 private:
  F32x16 scale_;
  F32x16 zero_[P::kPlaces];
};

// v = scale * q has at most 16 significant bits and is rounded to 8. v * (2^16 + 1), rounded to 24
// bits, is v * 2^16 plus that rounding of v, ties to even included; and the difference to v * 2^16
// is exact. The factors are put to the scale, which then has at most 24 bits.
template <>
class GroupScale<Coding::int8> {
  using P = Place<Coding::int8>;

 public:
  DSMOE_HD void load(const char* group) {
    const F32x16 scale = load_scale(group);
    scale_both_ = mul(broadcast(65537.0f), scale);
    scale_high_ = mul(broadcast(65536.0f), scale);
  }
  template <int idx>
  DSMOE_HD F32x16 numbers(I32x16 words) const {
    const F32x16 zero = broadcast(zero_of_place<Coding::int8>(P::kPlaceOf[idx]));
    const F32x16 q = sub(biased<Coding::int8, idx>(words), zero);
    return fnma(q, scale_high_, mul(q, scale_both_));
  }

 private:
  F32x16 scale_both_;
  F32x16 scale_high_;
};

// body.operator()<i>() for i in [0, count).
template <int count, class Body>
DSMOE_HD void unrolled(Body&& body) {
  [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
    (body.template operator()<i>(), ...);
  }
  (std::make_integer_sequence<int, count>{});
}

// One group of a panel as a plain bf16 panel holds it.
template <Coding coding>
DSMOE_HD void decode_group(const char* group, uint16_t* out) {
  using P = Place<coding>;
  GroupScale<coding> scale;
  scale.load(group);
  for (int word = 0; word < P::kWords; ++word) {
    const char* line = group + kGroupScaleBytes + word * kWordBytes;
    _mm_prefetch(line + kCodedPrefetchBytes, _MM_HINT_T0);
    const I32x16 words = load_bits(line);
    unrolled<P::kPerWord / 2>([&]<int pair>() __attribute__((always_inline)) {
      store_exact_pairs(out + (word * P::kPerWord / 2 + pair) * 32,
                        scale.template numbers<2 * pair>(words),
                        scale.template numbers<2 * pair + 1>(words));
    });
  }
}

// `depth` k (rounded up to whole groups) of a panel.
inline void decode_panel(Coding coding, const char* panel, int64_t depth, uint16_t* out) {
  for (int64_t k = 0; k < depth; k += kGroupDepth, out += kGroupDepth * 16) {
    if (coding == Coding::int8) {
      decode_group<Coding::int8>(panel, out);
      panel += kGroupBytes<Coding::int8>;
    } else {
      decode_group<Coding::int4>(panel, out);
      panel += kGroupBytes<Coding::int4>;
    }
  }
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

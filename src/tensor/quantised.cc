// The choice of a group's scale: every scale near the one that fits the largest value is tried.
#include "tensor/quantised.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace dsmoe::tensor {
namespace {

constexpr int kLanes = 8;  // partial sums side by side, so that the compiler can use vectors

// What distinguishes the codings: the integers, the scales worth trying as multiples of the largest
// magnitude, and the step between two of them in units of a bf16's last bit.
struct CodingRule {
  float lowest, highest;
  float smallest_scale, largest_scale;
  int step;
};

// int8: powers of two, which need no rounding and which kernels may put off to the end of a sum;
// what that costs is far below what int8 may lose. int4: three significant bits, for the same
// reasons; a scale that fits everything wastes a level where values are normal, so that up to a
// third may be clipped; from -8 to 7 the range is lopsided, and the sign of the scale says which
// side is the longer.
constexpr CodingRule kInt8{-127, 127, 0.75f / 127, 2.0f / 127, 128};
constexpr CodingRule kInt4{-8, 7, 0.65f / 8, 1.25f / 7, 32};

// Nearest even for |x| < 2^22, in plain arithmetic.
inline float nearest(float x) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23
  return (x + kMagic) - kMagic;
}

inline float nearest_integer(const CodingRule& rule, float w, float inverse) {
  return nearest(std::min(std::max(w * inverse, rule.lowest), rule.highest));
}

// round(scale * q) for finite values; the integer addition is the rounding of to_bf16.
inline float rounded(float product) {
  const auto bits = std::bit_cast<uint32_t>(product);
  return std::bit_cast<float>((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u);
}

// Sum of squares of what is lost, times 1 / largest^2 so that it can neither overflow nor vanish.
float squared_error(const CodingRule& rule, const float* w, float scale, float unit) {
  const float inverse = 1 / scale;
  float sums[kLanes] = {};
  for (int64_t i = 0; i < kGroupSize; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const float q = nearest_integer(rule, w[i + lane], inverse);
      const float lost = (w[i + lane] - rounded(scale * q)) * unit;
      sums[lane] += lost * lost;
    }
  }
  float total = 0;
  for (const float sum : sums) total += sum;
  return total;
}

// The scale of least error; 0 when the group is zero or too small for any.
Bf16 choose_scale(const CodingRule& rule, const float* w) {
  float largest = 0;
  for (int64_t i = 0; i < kGroupSize; ++i) largest = std::max(largest, std::fabs(w[i]));
  constexpr float kTooSmall = 0x1p-100f;
  if (largest < kTooSmall) return {0};
  const auto on_grid = [&](float scale) {
    return static_cast<int>(to_bf16(scale).bits) / rule.step * rule.step;
  };
  const int first = on_grid(largest * rule.smallest_scale);
  const int last = on_grid(largest * rule.largest_scale);
  const bool lopsided = rule.lowest != -rule.highest;
  Bf16 best{0};
  float least = INFINITY;
  for (int bits = first; bits <= last; bits += rule.step) {
    for (const int sign : {0, 0x8000}) {
      if (sign != 0 && !lopsided) continue;
      const Bf16 scale{static_cast<uint16_t>(bits | sign)};
      const float error = squared_error(rule, w, to_float(scale), 1 / largest);
      if (error < least) {
        least = error;
        best = scale;
      }
    }
  }
  return best;
}

}  // namespace

std::string_view name_of(WeightCoding coding) {
  switch (coding) {
    case WeightCoding::plain:
      return "plain";
    case WeightCoding::int8:
      return "int8";
    case WeightCoding::int4:
      return "int4";
  }
  return "?";
}

bool is_valid_scale(WeightCoding coding, Bf16 scale) {
  const int magnitude = scale.bits & 0x7fff;
  constexpr int kLimit = (100 + 127) << 7;  // 2^100: far from where sums of products overflow
  return magnitude < kLimit && (coding != WeightCoding::int4 || (magnitude & 7) == 0);
}

std::string_view scale_rule(WeightCoding coding) {
  return coding == WeightCoding::int4
             ? "finite, below 2^100 and of at most five significant bits (the last three of a BF16 "
               "zero)"
             : "finite and below 2^100";
}

TensorSpec coded_spec(WeightCoding coding, const std::string& name, int64_t n, int64_t k) {
  return {.name = name,
          .dtype = stored_type(coding),
          .shape = {n, coded_row_bytes(coding, k)},
          .type_rule = TypeRule::exact};
}

TensorSpec scale_spec(const std::string& name, int64_t n, int64_t k) {
  return {.name = scale_name(name),
          .dtype = DType::BF16,
          .shape = {n, num_groups(k)},
          .type_rule = TypeRule::exact};
}

void quantise_row(WeightCoding coding, const float* row, int64_t k, void* out, Bf16* scales) {
  const CodingRule& rule = coding == WeightCoding::int8 ? kInt8 : kInt4;
  auto* bytes = static_cast<uint8_t*>(out);
  std::memset(bytes, 0, static_cast<std::size_t>(coded_row_bytes(coding, k)));
  for (int64_t group = 0; group < num_groups(k); ++group) {
    const int64_t begin = group * kGroupSize;
    const int64_t count = std::min(kGroupSize, k - begin);
    float w[kGroupSize] = {};
    std::copy_n(row + begin, count, w);
    scales[group] = choose_scale(rule, w);
    if ((scales[group].bits & 0x7fff) == 0) continue;
    const float inverse = 1 / to_float(scales[group]);
    for (int64_t i = 0; i < count; ++i) {
      const int q = static_cast<int>(nearest_integer(rule, w[i], inverse));
      const int64_t place = begin + i;
      if (coding == WeightCoding::int8) {
        bytes[place] = static_cast<uint8_t>(q);
      } else {
        bytes[place / 2] |= static_cast<uint8_t>((q & 15) << (place % 2 * 4));
      }
    }
  }
}

}  // namespace dsmoe::tensor

// bfloat16: the upper half of a float. Rounding as docs/numerics.md fixes it.
#pragma once

#include <bit>
#include <cstdint>

namespace dsmoe::tensor {

struct Bf16 {
  uint16_t bits;
  friend bool operator==(Bf16, Bf16) = default;
};

// Nearest even, denormals to (signed) zero, every NaN to 0x7fc0.
constexpr Bf16 to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {0x7fc0};
  if (magnitude < 0x00800000u) return {static_cast<uint16_t>((bits >> 16) & 0x8000u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

constexpr float to_float(Bf16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

// IEEE half, found in checkpoint files only.
float half_to_float(uint16_t bits);

}  // namespace dsmoe::tensor

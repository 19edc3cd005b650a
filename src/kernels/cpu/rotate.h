// The rotation of one head in F32: a part of it, by halves or by neighbours.
#pragma once

#include <algorithm>

#include "kernels/cpu/tier.h"
#include "kernels/rope.h"

namespace dsmoe::kernels::cpu {

// Neighbours are laid apart into halves and back: the tier turns halves.
class HeadRotation {
 public:
  HeadRotation(const Tier& tier, const Rotation& rotation, int64_t half, int64_t key_width,
               float* scratch)
      : tier_(tier), rotation_(rotation), half_(half), key_width_(key_width), apart_(scratch) {}

  // Floats that it works in.
  static int64_t scratch(int64_t half) { return 4 * half; }

  // `out` is not `head`.
  void turn(const float* head, const float* cos, const float* sin, float* out) const {
    const int64_t begin = rotation_.begin;
    const int64_t end = begin + 2 * half_;
    std::copy(head, head + begin, out);
    std::copy(head + end, head + key_width_, out + end);
    RotateHead part{
        .head = head + begin, .cos = cos, .sin = sin, .half = half_, .out = out + begin};
    if (rotation_.pairs == RotaryPairs::halves) return tier_.rotate(part);
    for (int64_t i = 0; i < half_; ++i) {
      apart_[i] = head[begin + 2 * i];
      apart_[half_ + i] = head[begin + 2 * i + 1];
    }
    part.head = apart_;
    part.out = apart_ + 2 * half_;
    tier_.rotate(part);
    for (int64_t i = 0; i < half_; ++i) {
      out[begin + 2 * i] = part.out[i];
      out[begin + 2 * i + 1] = part.out[half_ + i];
    }
  }

 private:
  const Tier& tier_;
  Rotation rotation_;
  int64_t half_, key_width_;
  float* apart_;  // [2, 2 * half]
};

}  // namespace dsmoe::kernels::cpu

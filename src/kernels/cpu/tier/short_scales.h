// The numbers that an int4 stands for under a scale of at most three significant bits, as a table.
#pragma once

#include <cstdint>

#include "kernels/cpu/tier/coded.h"

namespace dsmoe::kernels::DSMOE_TIER {
namespace {

// Scales of at most three significant bits, +-(1 + c / 4) 2^e: c and the integer choose one of 64
// numbers.
constexpr uint16_t kLaterBits = 0x1f;  // of a bf16's mantissa: behind c

struct alignas(64) NumberTable {
  uint16_t of[64] = {};  // [c][integer] bf16 of (1 + c / 4) q
};
constexpr NumberTable make_number_table() {
  NumberTable table;
  for (int c = 0; c < 4; ++c) {
    for (int code = 0; code < 16; ++code) {
      const int quarters = (4 + c) * (code < 8 ? code : code - 16);
      int magnitude = quarters < 0 ? -quarters : quarters;
      if (magnitude == 0) continue;
      int exponent = 127 + 7 - 2;
      for (; magnitude < 128; magnitude *= 2) --exponent;
      table.of[c * 16 + code] =
          static_cast<uint16_t>((quarters < 0 ? 0x8000 : 0) | (exponent << 7) | (magnitude & 0x7f));
    }
  }
  return table;
}
constexpr NumberTable kNumbers = make_number_table();

}  // namespace
}  // namespace dsmoe::kernels::DSMOE_TIER

// Sixteen rows of a checkpoint tensor into one panel: a transposition of 32-bit words, with conversion.
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/tier/leaves.h"

namespace dsmoe::kernels::DSMOE_TIER {
namespace {

using cpu::Element;
using cpu::PackPanel;

// One element as F32, denormals flushed.
DSMOE_HD float read_one(const PackPanel& args, int64_t row, int64_t k) {
  const auto* source = static_cast<const char*>(args.source);
  const int64_t place = (row - args.lane_begin) * args.k + k;
  uint32_t bits = 0;
  if (args.source_type == Element::bf16) {
    uint16_t half;
    std::memcpy(&half, source + place * 2, 2);
    bits = static_cast<uint32_t>(half) << 16;
  } else {
    std::memcpy(&bits, source + place * 4, 4);
  }
  if ((bits & 0x7f800000u) == 0) bits &= 0x80000000u;
  return __builtin_bit_cast(float, bits);
}

// Any lanes, any k: the border of the matrix.
void pack_slowly(const PackPanel& args, int64_t k_begin) {
  for (int64_t k = k_begin; k < args.k; ++k) {
    for (int lane = args.lane_begin; lane < args.lane_end; ++lane) {
      const float value = read_one(args, lane, k);
      if (args.target_type == Element::bf16) {
        uint16_t rounded[16];
        store_bf16(rounded, broadcast(value));
        static_cast<uint16_t*>(args.panel)[(k / 2) * 32 + lane * 2 + k % 2] = rounded[0];
      } else {
        static_cast<float*>(args.panel)[k * 16 + lane] = value;
      }
    }
  }
}

// Elements k and k + 1 of sixteen rows, denormals flushed.
DSMOE_HD void read_pair(const PackPanel& args, int64_t k, F32x16& even, F32x16& odd) {
  const auto* source = static_cast<const char*>(args.source);
  if (args.source_type == Element::bf16) {
    const F32x16 words = gather_words(source + k * 2, static_cast<int32_t>(args.k * 2));
    even = flush(low_halves(words));
    odd = flush(high_halves(words));
  } else {
    even = flush(gather_words(source + k * 4, static_cast<int32_t>(args.k * 4)));
    odd = flush(gather_words(source + k * 4 + 4, static_cast<int32_t>(args.k * 4)));
  }
}

}  // namespace

void pack(const PackPanel& args) {
  // Gathers take 32-bit byte offsets.
  const bool whole = args.lane_begin == 0 && args.lane_end == 16 && args.k < (int64_t{1} << 24);
  if (!whole) return pack_slowly(args, 0);
  const int64_t pairs_end = args.k / 2 * 2;
  for (int64_t k = 0; k < pairs_end; k += 2) {
    F32x16 even, odd;
    read_pair(args, k, even, odd);
    if (args.target_type == Element::bf16) {
      store_bf16_pairs(static_cast<uint16_t*>(args.panel) + k * 16, even, odd);
    } else {
      float* target = static_cast<float*>(args.panel) + k * 16;
      store(target, even);
      store(target + 16, odd);
    }
  }
  pack_slowly(args, pairs_end);
}

}  // namespace dsmoe::kernels::DSMOE_TIER

// Sixteen rows of a checkpoint tensor into one panel: a transposition of 32-bit words, with
// conversion.
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/tier/leaves.h"

namespace dsmoe::kernels::DSMOE_TIER {
namespace {

using cpu::Element;
using cpu::PackPanel;

// One element as F32, denormals flushed.
DSMOE_HD float read_one(const void* source, Element type, int64_t place) {
  uint32_t bits = 0;
  if (type == Element::bf16) {
    uint16_t half;
    std::memcpy(&half, static_cast<const char*>(source) + place * 2, 2);
    bits = static_cast<uint32_t>(half) << 16;
  } else {
    std::memcpy(&bits, static_cast<const char*>(source) + place * 4, 4);
  }
  if ((bits & 0x7f800000u) == 0) bits &= 0x80000000u;
  return __builtin_bit_cast(float, bits);
}

DSMOE_HD void write_one(void* panel, Element type, int64_t lane, int64_t k, float value) {
  if (type == Element::bf16) {
    uint16_t rounded[16];
    store_bf16(rounded, broadcast(value));
    static_cast<uint16_t*>(panel)[(k / 2) * 32 + lane * 2 + k % 2] = rounded[0];
  } else {
    static_cast<float*>(panel)[k * 16 + lane] = value;
  }
}

// Any lanes, any k: the border of the matrix.
void pack_elements(const PackPanel& args, int64_t k_begin) {
  for (int64_t k = k_begin; k < args.k; ++k) {
    for (int lane = args.lane_begin; lane < args.lane_end; ++lane) {
      const float value =
          read_one(args.source, args.source_type, (lane - args.lane_begin) * args.k + k);
      write_one(args.panel, args.target_type, lane, k, value);
    }
  }
}

// Words of 32 bits that sixteen rows have in one strip of k.
constexpr int64_t kStripBytes = 64;

// Whole strips of sixteen rows; returns the first k behind them.
template <Element source_type>
int64_t pack_strips(const PackPanel& args) {
  constexpr bool kPairs = source_type == Element::bf16;  // a word is two bf16 of neighbouring k
  constexpr int64_t kElement = kPairs ? 2 : 4;
  constexpr int64_t kStrip = kStripBytes / kElement;
  int64_t begin = 0;
  for (; begin + kStrip <= args.k; begin += kStrip) {
    const auto* source = static_cast<const char*>(args.source) + begin * kElement;
    F32x16 words[16];
    for (int64_t row = 0; row < 16; ++row)
      words[row] = load(reinterpret_cast<const float*>(source + row * args.k * kElement));
    transpose_words(words);
    for (int64_t k = 0; k < kStrip; k += 2) {
      const F32x16 even = flush(kPairs ? low_halves(words[k / 2]) : words[k % 16]);
      const F32x16 odd = flush(kPairs ? high_halves(words[k / 2]) : words[(k + 1) % 16]);
      if (args.target_type == Element::bf16) {
        store_bf16_pairs(static_cast<uint16_t*>(args.panel) + (begin + k) * 16, even, odd);
      } else {
        float* target = static_cast<float*>(args.panel) + (begin + k) * 16;
        store(target, even);
        store(target + 16, odd);
      }
    }
  }
  return begin;
}

// Sixteen columns of one row, denormals flushed.
DSMOE_HD F32x16 read_columns(const cpu::PackColumns& args, int64_t row) {
  const int64_t place = row * args.source_stride;
  if (args.source_type == Element::bf16)
    return flush(load_bf16(static_cast<const uint16_t*>(args.source) + place));
  return flush(load(static_cast<const float*>(args.source) + place));
}

void pack_row(const cpu::PackColumns& args, int64_t row) {
  for (int lane = 0; lane < args.columns; ++lane) {
    const float value = read_one(args.source, args.source_type, row * args.source_stride + lane);
    write_one(args.panel, args.target_type, lane, args.k_begin + row, value);
  }
}

}  // namespace

void pack(const PackPanel& args) {
  int64_t done = 0;
  if (args.lane_begin == 0 && args.lane_end == 16) {
    done = args.source_type == Element::bf16 ? pack_strips<Element::bf16>(args)
                                             : pack_strips<Element::f32>(args);
  }
  pack_elements(args, done);
}

void pack_columns(const cpu::PackColumns& args) {
  int64_t row = 0;
  if (args.columns == 16) {
    if (args.k_begin % 2 != 0 && args.rows > 0) pack_row(args, row++);
    for (; row + 2 <= args.rows; row += 2) {
      const int64_t k = args.k_begin + row;
      const F32x16 even = read_columns(args, row);
      const F32x16 odd = read_columns(args, row + 1);
      if (args.target_type == Element::bf16) {
        store_bf16_pairs(static_cast<uint16_t*>(args.panel) + k * 16, even, odd);
      } else {
        store(static_cast<float*>(args.panel) + k * 16, even);
        store(static_cast<float*>(args.panel) + k * 16 + 16, odd);
      }
    }
  }
  for (; row < args.rows; ++row) pack_row(args, row);
}

}  // namespace dsmoe::kernels::DSMOE_TIER

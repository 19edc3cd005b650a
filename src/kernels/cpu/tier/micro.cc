// FMA chains in registers, for every number of rows and panels that fits.
#include "kernels/cpu/tier/micro.h"

#include <utility>

namespace dsmoe::kernels::DSMOE_TIER {
namespace {

// Registers: the chains of all rows, one weight vector each for even and odd k. AVX-512 has 32
// registers; AVX2 has 16, and F32x16 takes two: there even and odd k go one after the other. Panels
// go side by side where the chains of few rows would wait for one another, or for memory.
#if defined(__AVX512F__)
constexpr int kPairRows = 6;
constexpr int kJointChains = 24;  // even and odd chains side by side fit into registers
#else
constexpr int kPairRows = 0;
constexpr int kJointChains = 6;
#endif

// Ask for the panel this far ahead of the FMAs.
constexpr int64_t kPrefetchBytes = 2048;

DSMOE_HD void prefetch_line(const void* p) {
  _mm_prefetch(static_cast<const char*>(p) + kPrefetchBytes, _MM_HINT_T0);
}

enum class Parity { even, odd };

template <Parity parity>
DSMOE_HD F32x16 widen_pairs(const uint16_t* w) {
  if constexpr (parity == Parity::even) {
    return even_bf16(w);
  } else {
    return odd_bf16(w);
  }
}

// One half chain of a block: sixteen FMA steps per row and panel.
template <int kRows, int kPanels, Parity parity>
DSMOE_HD void half_chain(const float* x, const uint16_t* const (&w)[kPanels],
                         F32x16 (&chain)[kRows][kPanels]) {
  for (int r = 0; r < kRows; ++r) {
    for (int p = 0; p < kPanels; ++p) chain[r][p] = zero();
  }
#pragma GCC unroll 2
  for (int j = 0; j < 16; ++j) {
    F32x16 weight[kPanels];
    for (int p = 0; p < kPanels; ++p) {
      if constexpr (parity == Parity::even) prefetch_line(w[p] + j * 32);
      weight[p] = widen_pairs<parity>(w[p] + j * 32);
    }
    for (int r = 0; r < kRows; ++r) {
      const F32x16 value = broadcast(x[r * 32 + j]);
      for (int p = 0; p < kPanels; ++p) chain[r][p] = fma(value, weight[p], chain[r][p]);
    }
  }
}

template <int kRows, int kPanels>
void micro_bf16(const MicroArgs& args) {
  const uint16_t* w[kPanels];
  for (int p = 0; p < kPanels; ++p) w[p] = static_cast<const uint16_t*>(args.weight[p]);
  const float* x = args.x;
  for (int64_t k = 0; k < args.k; k += kBlock) {
    F32x16 even[kRows][kPanels];
    F32x16 odd[kRows][kPanels];
    if constexpr (2 * kRows * kPanels <= kJointChains) {
      for (int r = 0; r < kRows; ++r) {
        for (int p = 0; p < kPanels; ++p) even[r][p] = odd[r][p] = zero();
      }
#pragma GCC unroll 2
      for (int j = 0; j < 16; ++j) {
        for (int p = 0; p < kPanels; ++p) {
          prefetch_line(w[p] + j * 32);
          const F32x16 pairs = in_registers(load(reinterpret_cast<const float*>(w[p] + j * 32)));
          const F32x16 weight_even = low_halves(pairs);
          const F32x16 weight_odd = high_halves(pairs);
          for (int r = 0; r < kRows; ++r) {
            even[r][p] = fma_broadcast(x[r * 32 + j], weight_even, even[r][p]);
            odd[r][p] = fma_broadcast(x[r * 32 + 16 + j], weight_odd, odd[r][p]);
          }
        }
      }
    } else {
      half_chain<kRows, kPanels, Parity::even>(x, w, even);
      half_chain<kRows, kPanels, Parity::odd>(x + 16, w, odd);
    }
    for (int r = 0; r < kRows; ++r) {
      for (int p = 0; p < kPanels; ++p) {
        float* acc = args.acc[p] + r * 16;
        store(acc, add(load(acc), add(even[r][p], odd[r][p])));
      }
    }
    x += kRows * kBlock;
    for (int p = 0; p < kPanels; ++p) w[p] += kBlock * 16;
  }
}

template <int kRows, int kPanels>
void micro_f32(const MicroArgs& args) {
  const float* w[kPanels];
  for (int p = 0; p < kPanels; ++p) w[p] = static_cast<const float*>(args.weight[p]);
  const float* x = args.x;
  for (int64_t segment = 0; segment < args.k; segment += kSegment) {
    const int64_t end = args.k - segment < kSegment ? args.k - segment : kSegment;
    F32x16 chain[kRows][kPanels];
    for (int r = 0; r < kRows; ++r) {
      for (int p = 0; p < kPanels; ++p) chain[r][p] = zero();
    }
    for (int64_t block = 0; block < end; block += kBlock) {
      const int64_t steps = end - block < kBlock ? end - block : kBlock;
      for (int64_t j = 0; j < steps; ++j) {
        F32x16 weight[kPanels];
        for (int p = 0; p < kPanels; ++p) {
          prefetch_line(w[p] + j * 16);
          weight[p] = load(w[p] + j * 16);
        }
        for (int r = 0; r < kRows; ++r) {
          const F32x16 value = broadcast(x[r * 32 + j]);
          for (int p = 0; p < kPanels; ++p) chain[r][p] = fma(value, weight[p], chain[r][p]);
        }
      }
      x += kRows * kBlock;
      for (int p = 0; p < kPanels; ++p) w[p] += steps * 16;
    }
    for (int r = 0; r < kRows; ++r) {
      for (int p = 0; p < kPanels; ++p) {
        float* acc = args.acc[p] + r * 16;
        store(acc, add(load(acc), chain[r][p]));
      }
    }
  }
}

using Micro = void (*)(const MicroArgs&);

struct MicroTable {
  Micro single[kMicroRows];   // [rows - 1], one panel
  Micro pair[kPairRows + 1];  // [rows], two panels
};

template <int... kRow>
constexpr void fill_single(MicroTable& bf16, MicroTable& f32, std::integer_sequence<int, kRow...>) {
  ((bf16.single[kRow] = micro_bf16<kRow + 1, 1>), ...);
  ((f32.single[kRow] = micro_f32<kRow + 1, 1>), ...);
}
template <int... kRow>
constexpr void fill_pair(MicroTable& bf16, MicroTable& f32, std::integer_sequence<int, kRow...>) {
  ((bf16.pair[kRow + 1] = micro_bf16<kRow + 1, 2>), ...);
  ((f32.pair[kRow + 1] = micro_f32<kRow + 1, 2>), ...);
}

struct MicroTables {
  MicroTable bf16{};
  MicroTable f32{};
};

constexpr MicroTables make_micro_tables() {
  MicroTables tables;
  fill_single(tables.bf16, tables.f32, std::make_integer_sequence<int, kMicroRows>{});
  fill_pair(tables.bf16, tables.f32, std::make_integer_sequence<int, kPairRows>{});
  return tables;
}

constexpr MicroTables kMicro = make_micro_tables();

}  // namespace

void multiply_panels(Element rule, RowBlocks blocks, int num_panels, const MicroArgs& args) {
  const MicroTable& table = rule == Element::bf16 ? kMicro.bf16 : kMicro.f32;
  if (num_panels == 2 && blocks.rows <= kPairRows) return table.pair[blocks.rows](args);
  const int64_t padded = padded_to_block(args.k);
  for (int p = 0; p < num_panels; ++p) {
    for (int64_t b = 0; b < blocks.count; ++b) {
      const int64_t begin = blocks.begin(b);
      table.single[blocks.begin(b + 1) - begin - 1]({.x = args.x + begin * padded,
                                                     .k = args.k,
                                                     .weight = {args.weight[p]},
                                                     .acc = {args.acc[p] + begin * 16}});
    }
  }
}

}  // namespace dsmoe::kernels::DSMOE_TIER

// FMA chains in registers, for every number of rows and panels that fits.
#include "kernels/cpu/tier/micro.h"

#include <utility>

namespace dsmoe::kernels::DSMOE_TIER {
namespace {

// Registers: rows * panels chains, one weight vector per panel, one broadcast. AVX-512 has 32
// registers; AVX2 has 16, and F32x16 takes two. More rows per weight vector, and more panels per
// broadcast, mean fewer loads per FMA.
#if defined(__AVX512F__)
constexpr int kMicroPanels = 2;
constexpr int kJointChains = 24;  // even and odd chains side by side fit into registers
#else
constexpr int kMicroPanels = 1;
constexpr int kJointChains = 6;
#endif

// Few rows wait for memory: ask for the panel this far ahead. Streams of more rows stay in the
// cache.
constexpr int kPrefetchRows = 4;
constexpr int64_t kPrefetchBytes = 2048;

template <int kRows>
DSMOE_HD void prefetch_line(const void* p) {
  if constexpr (kRows <= kPrefetchRows)
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
      if constexpr (parity == Parity::even) prefetch_line<kRows>(w[p] + j * 32);
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
          prefetch_line<kRows>(w[p] + j * 32);
          const F32x16 weight_even = even_bf16(w[p] + j * 32);
          const F32x16 weight_odd = odd_bf16(w[p] + j * 32);
          for (int r = 0; r < kRows; ++r) {
            even[r][p] = fma(broadcast(x[r * 32 + j]), weight_even, even[r][p]);
            odd[r][p] = fma(broadcast(x[r * 32 + 16 + j]), weight_odd, odd[r][p]);
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
          prefetch_line<kRows>(w[p] + j * 16);
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
  Micro of[kMicroPanels][kMicroRows];  // [panels - 1][rows - 1]
};

template <int kPanels, int... kRow>
constexpr void fill_micro(MicroTable& bf16, MicroTable& f32, std::integer_sequence<int, kRow...>) {
  ((bf16.of[kPanels - 1][kRow] = micro_bf16<kRow + 1, kPanels>), ...);
  ((f32.of[kPanels - 1][kRow] = micro_f32<kRow + 1, kPanels>), ...);
}

struct MicroTables {
  MicroTable bf16{};
  MicroTable f32{};
};

constexpr MicroTables make_micro_tables() {
  MicroTables tables;
  constexpr auto rows = std::make_integer_sequence<int, kMicroRows>{};
  fill_micro<1>(tables.bf16, tables.f32, rows);
  if constexpr (kMicroPanels > 1) fill_micro<kMicroPanels>(tables.bf16, tables.f32, rows);
  return tables;
}

constexpr MicroTables kMicro = make_micro_tables();

}  // namespace

void multiply_panels(Element rule, RowBlocks blocks, int num_panels, const MicroArgs& args) {
  const MicroTable& table = rule == Element::bf16 ? kMicro.bf16 : kMicro.f32;
  const int64_t padded = padded_to_block(args.x_depth > 0 ? args.x_depth : args.k);
  for (int first = 0; first < num_panels; first += kMicroPanels) {
    const int panels = num_panels - first < kMicroPanels ? num_panels - first : kMicroPanels;
    for (int64_t b = 0; b < blocks.count; ++b) {
      const int64_t begin = blocks.begin(b);
      const int64_t rows = blocks.begin(b + 1) - begin;
      MicroArgs call{
          .x = args.x + begin * padded + args.x_begin * rows, .k = args.k, .weight = {}, .acc = {}};
      for (int p = 0; p < panels; ++p) {
        call.weight[p] = args.weight[first + p];
        call.acc[p] = args.acc[first + p] + begin * 16;
      }
      table.of[panels - 1][rows - 1](call);
    }
  }
}

}  // namespace dsmoe::kernels::DSMOE_TIER

// The product micro-kernel: a few widened rows times one or two panels, continuing accumulators
// kept in memory.
#pragma once

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/tier.h"

namespace dsmoe::kernels::DSMOE_TIER {

using cpu::Element;

// Rows of one call at most; micro.cc says why.
#if defined(__AVX512F__)
constexpr int kMicroRows = 12;
#else
constexpr int kMicroRows = 6;
#endif
constexpr int64_t kBlock = 32;     // k of one block of the bf16 rule
constexpr int64_t kSegment = 256;  // k of one chain of the fp32 rule

// Operand rows of one micro-kernel call: [blocks of 32 k][rows][32] floats; for the bf16 rule the
// even k come first. Weights: panels as kernels/layout.h lays them out, starting at the same k.
// Accumulators: [rows][16] per panel.
struct MicroArgs {
  const float* x;
  int64_t k;
  const void* weight[2];
  float* acc[2];
  bool moderate_x = false;  // integers only: see moderate_values
};

// How rows are cut into micro-kernel calls: as few as possible, sizes differing by at most one.
struct RowBlocks {
  int64_t rows;
  int64_t count;
  DSMOE_HD explicit constexpr RowBlocks(int64_t num_rows, int64_t most = kMicroRows)
      : rows(num_rows), count((num_rows + most - 1) / most) {}
  DSMOE_HD constexpr int64_t begin(int64_t block) const { return rows * block / count; }
};

// Every row times `num_panels` (1 or 2) panels. x as widen_rows left it; acc[p] is [rows][16].
void multiply_panels(Element rule, RowBlocks blocks, int num_panels, const MicroArgs& args);

// The same with panels of integers, by the bf16 rule.
void multiply_coded_panels(cpu::Coding coding, RowBlocks blocks, int num_panels,
                           const MicroArgs& args);

namespace {

constexpr int64_t padded_to_block(int64_t k) { return (k + kBlock - 1) / kBlock * kBlock; }

// 32 k of one row, widened, zero behind `count`: even then odd k for the bf16 rule, in order for
// the fp32 rule.
template <Element x_type, Element rule>
DSMOE_HD void widen_block(const void* source, int64_t count, float* out) {
  if constexpr (x_type == Element::bf16) {
    const auto* x = static_cast<const uint16_t*>(source);
    uint16_t padded[kBlock];
    if (count < kBlock) {
      std::memset(padded, 0, sizeof padded);
      std::memcpy(padded, x, static_cast<size_t>(count) * sizeof(uint16_t));
      x = padded;
    }
    if constexpr (rule == Element::bf16) {
      store(out, even_bf16(x));
      store(out + 16, odd_bf16(x));
    } else {
      store(out, load_bf16(x));
      store(out + 16, load_bf16(x + 16));
    }
  } else {
    if (count < kBlock) std::memset(out, 0, kBlock * sizeof(float));
    std::memcpy(out, source, static_cast<size_t>(count < kBlock ? count : kBlock) * sizeof(float));
  }
}

// Widens k values of every row into the layout of MicroArgs, one row block behind the other.
// `row(r)` points at the first.
template <Element x_type, Element rule, class Row>
DSMOE_HD void widen_rows(RowBlocks blocks, int64_t k, float* out, Row&& row) {
  const int64_t padded = padded_to_block(k);
  for (int64_t b = 0; b < blocks.count; ++b) {
    const int64_t begin = blocks.begin(b);
    const int64_t rows = blocks.begin(b + 1) - begin;
    for (int64_t r = 0; r < rows; ++r) {
      const auto* x = static_cast<const char*>(row(begin + r));
      float* target = out + begin * padded + r * kBlock;
      for (int64_t block = 0; block < k; block += kBlock) {
        widen_block<x_type, rule>(x + block * (x_type == Element::bf16 ? 2 : 4), k - block, target);
        target += rows * kBlock;
      }
    }
  }
}

}  // namespace
}  // namespace dsmoe::kernels::DSMOE_TIER

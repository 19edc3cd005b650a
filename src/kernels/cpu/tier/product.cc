// Rows times panels, blocked for the caches, with the epilogues of projections and experts.
#include "kernels/cpu/tier/leaves.h"
#include "kernels/cpu/tier/micro.h"

namespace dsmoe::kernels::DSMOE_TIER {
namespace {

using cpu::Epilogue;
using cpu::kProductOperandFloats;
using cpu::kProductTileFloats;
using cpu::ProductBlock;

constexpr int64_t kChunkRows = 8 * kMicroRows;

constexpr int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
constexpr int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

// Some rows times some panels: small enough that accumulators lie in L1 or L2, and that the widened operand of k_step values
// per row stays in L2 while the panels stream past it.
struct Chunk {
  int64_t row_begin;
  int64_t rows;
  int64_t panel_begin;
  int64_t panels;
};

// Panels are multiplied two at a time: gate and up of one panel, or one panel from each half of the chunk's panels, so
// that memory sees two ascending streams.
struct Streams {
  int64_t steps;       // pairs
  int64_t second;      // panels in the second stream
  const char* base[2];
};

Streams streams_of(const ProductBlock& args, const Chunk& chunk) {
  const int64_t first_byte = chunk.panel_begin * args.panel_bytes;
  const auto* first = static_cast<const char*>(args.weight[0]) + first_byte;
  if (args.epilogue == Epilogue::swiglu) {
    return {chunk.panels, chunk.panels, {first, static_cast<const char*>(args.weight[1]) + first_byte}};
  }
  const int64_t half = (chunk.panels + 1) / 2;
  return {half, chunk.panels - half, {first, first + half * args.panel_bytes}};
}

template <class Store>
DSMOE_HD void for_each_lane_block(const ProductBlock& args, const Chunk& chunk, int64_t panel, Store&& put) {
  const int64_t column = (chunk.panel_begin + panel) * 16;
  const int64_t columns = smaller(16, args.n - column);
  for (int64_t r = 0; r < chunk.rows; ++r) {
    put(r, (chunk.row_begin + r) * args.out_stride + column, column, columns);
  }
}

void store_element(const ProductBlock& args, int64_t place, int64_t columns, F32x16 value) {
  if (args.weight_type == Element::bf16) {
    auto* out = static_cast<uint16_t*>(args.out) + place;
    if (columns == 16) {
      store_bf16(out, value);
    } else {
      store_first_bf16(out, value, columns);
    }
  } else {
    auto* out = static_cast<float*>(args.out) + place;
    if (columns == 16) {
      store(out, value);
    } else {
      store_first(out, value, columns);
    }
  }
}

void store_float(const ProductBlock& args, int64_t place, int64_t column, int64_t columns, F32x16 value) {
  auto* out = static_cast<float*>(args.out) + place;
  if (columns == 16) {
    if (args.bias != nullptr) value = add(value, load(args.bias + column));
    if (args.epilogue == Epilogue::accumulate) value = add(load(out), value);
    store(out, value);
    return;
  }
  if (args.bias != nullptr) value = add(value, load_first(args.bias + column, columns));
  if (args.epilogue == Epilogue::accumulate) value = add(load_first(out, columns), value);
  store_first(out, value, columns);
}

// acc: [panels of stream 0][rows][16], then stream 1.
void finish_chunk(const ProductBlock& args, const Chunk& chunk, const Streams& streams, const float* acc) {
  const float* second = acc + streams.steps * chunk.rows * 16;
  for (int64_t panel = 0; panel < chunk.panels; ++panel) {
    const float* tile = panel < streams.steps ? acc + panel * chunk.rows * 16
                                              : second + (panel - streams.steps) * chunk.rows * 16;
    const float* up = second + panel * chunk.rows * 16;
    for_each_lane_block(args, chunk, panel, [&](int64_t r, int64_t place, int64_t column, int64_t columns) {
      const F32x16 value = load(tile + r * 16);
      switch (args.epilogue) {
        case Epilogue::swiglu: return store_element(args, place, columns, mul(silu(value), load(up + r * 16)));
        case Epilogue::round: return store_element(args, place, columns, value);
        default: return store_float(args, place, column, columns, value);
      }
    });
  }
}

template <Element x_type, Element rule>
void multiply_chunk(const ProductBlock& args, const Chunk& chunk, int64_t k_step) {
  float* operand = args.scratch;
  float* acc = args.scratch + kProductOperandFloats;
  const Streams streams = streams_of(args, chunk);
  float* second = acc + streams.steps * chunk.rows * 16;
  std::memset(acc, 0, static_cast<size_t>((streams.steps + streams.second) * chunk.rows * 16) * sizeof(float));
  const RowBlocks blocks(chunk.rows);
  const int64_t element = x_type == Element::bf16 ? 2 : 4;
  const int64_t bytes_per_k = rule == Element::bf16 ? 32 : 64;
  for (int64_t k = 0; k < args.k; k += k_step) {
    const int64_t count = smaller(k_step, args.k - k);
    widen_rows<x_type, rule>(blocks, count, operand, [&](int64_t r) __attribute__((always_inline)) {
      const int64_t row = chunk.row_begin + r;
      const int64_t source = args.row_index != nullptr ? args.row_index[row] : row;
      return static_cast<const char*>(args.x) + (source * args.x_stride + k) * element;
    });
    for (int64_t step = 0; step < streams.steps; ++step) {
      const int64_t byte = step * args.panel_bytes + k * bytes_per_k;
      multiply_panels(rule, blocks, step < streams.second ? 2 : 1,
                      {.x = operand,
                       .k = count,
                       .weight = {streams.base[0] + byte, streams.base[1] + byte},
                       .acc = {acc + step * chunk.rows * 16, second + step * chunk.rows * 16}});
    }
  }
  finish_chunk(args, chunk, streams, acc);
}

template <Element x_type, Element rule>
void multiply(const ProductBlock& args) {
  const int64_t rows = args.row_end - args.row_begin;
  const int64_t num_chunks = (rows + kChunkRows - 1) / kChunkRows;
  const int64_t chunk_rows = (rows + num_chunks - 1) / num_chunks;
  // Whole segments, so that no chain is cut.
  const int64_t affordable = kProductOperandFloats / chunk_rows / kSegment * kSegment;
  const int64_t k_step = padded_to_block(args.k) <= affordable ? larger(args.k, 1) : affordable;
  const int64_t tiles_per_panel = args.epilogue == Epilogue::swiglu ? 2 : 1;
  const int64_t group = kProductTileFloats / (chunk_rows * 16 * tiles_per_panel);
  for (int64_t panel = args.panel_begin; panel < args.panel_end; panel += group) {
    for (int64_t row = args.row_begin; row < args.row_end; row += chunk_rows) {
      multiply_chunk<x_type, rule>(args,
                                   {.row_begin = row,
                                    .rows = smaller(chunk_rows, args.row_end - row),
                                    .panel_begin = panel,
                                    .panels = smaller(group, args.panel_end - panel)},
                                   k_step);
    }
  }
}

static_assert(kProductOperandFloats / kChunkRows >= kSegment, "a chunk holds at least one segment of k");
static_assert(kProductTileFloats / (kChunkRows * 16 * 2) >= 1, "a chunk holds at least one pair of panels");

}  // namespace

void product(const ProductBlock& args) {
  if (args.row_begin >= args.row_end || args.panel_begin >= args.panel_end) return;
  if (args.weight_type == Element::bf16) return multiply<Element::bf16, Element::bf16>(args);
  if (args.x_type == Element::bf16) return multiply<Element::bf16, Element::f32>(args);
  multiply<Element::f32, Element::f32>(args);
}

}  // namespace dsmoe::kernels::DSMOE_TIER

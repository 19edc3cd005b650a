// How a product is cut into chunks that fit the caches, and what becomes of finished accumulators.
#pragma once

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/tier.h"

namespace dsmoe::kernels::DSMOE_TIER {
namespace {

using cpu::Element;
using cpu::Epilogue;
using cpu::kProductOperandFloats;
using cpu::kProductTileFloats;
using cpu::ProductBlock;

constexpr int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
constexpr int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

// Some rows times some panels: small enough that accumulators lie in L1 or L2, and that the widened
// operand of k_step values per row stays in L2 while the panels stream past it.
struct Chunk {
  int64_t row_begin;
  int64_t rows;
  int64_t panel_begin;
  int64_t panels;
  int64_t tile_rows;  // rows of an accumulator tile, padding included
};

// Panels are multiplied two at a time: gate and up of one panel, or one panel from each half of the
// chunk's panels, so that memory sees two ascending streams.
struct Streams {
  int64_t steps;   // pairs
  int64_t second;  // panels in the second stream
  const char* base[2];
};

inline Streams streams_of(const ProductBlock& args, const Chunk& chunk) {
  const int64_t first_byte = chunk.panel_begin * args.panel_bytes;
  const auto* first = static_cast<const char*>(args.weight[0]) + first_byte;
  if (args.epilogue == Epilogue::swiglu) {
    return {
        chunk.panels, chunk.panels, {first, static_cast<const char*>(args.weight[1]) + first_byte}};
  }
  const int64_t half = (chunk.panels + 1) / 2;
  return {half, chunk.panels - half, {first, first + half * args.panel_bytes}};
}

template <class Store>
DSMOE_HD void for_each_lane_block(const ProductBlock& args, const Chunk& chunk, int64_t panel,
                                  Store&& put) {
  const int64_t column = (chunk.panel_begin + panel) * 16;
  const int64_t columns = smaller(16, args.n - column);
  for (int64_t r = 0; r < chunk.rows; ++r) {
    put(r, (chunk.row_begin + r) * args.out_stride + column, column, columns);
  }
}

inline void store_element(const ProductBlock& args, void* target, int64_t place, int64_t columns,
                          F32x16 value) {
  if (args.weight_type == Element::bf16) {
    auto* out = static_cast<uint16_t*>(target) + place;
    if (columns == 16) {
      store_bf16(out, value);
    } else {
      store_first_bf16(out, value, columns);
    }
  } else {
    auto* out = static_cast<float*>(target) + place;
    if (columns == 16) {
      store(out, value);
    } else {
      store_first(out, value, columns);
    }
  }
}

inline void store_swiglu(const ProductBlock& args, int64_t place, int64_t columns, F32x16 gate,
                         F32x16 up) {
  if (args.kept[0] != nullptr) {
    store_element(args, args.kept[0], place, columns, gate);
    store_element(args, args.kept[1], place, columns, up);
  }
  store_element(args, args.out, place, columns, mul(silu(gate), up));
}

inline void store_float(const ProductBlock& args, int64_t place, int64_t column, int64_t columns,
                        F32x16 value) {
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

// Accumulators before the first k: zero, or the sums that the chains continue.
inline void start_chunk(const ProductBlock& args, const Chunk& chunk, const Streams& streams,
                        float* acc) {
  const int64_t tile_size = chunk.tile_rows * 16;
  std::memset(acc, 0,
              static_cast<size_t>((streams.steps + streams.second) * tile_size) * sizeof(float));
  if (args.start == nullptr) return;
  for (int64_t panel = 0; panel < chunk.panels; ++panel) {
    float* tile = acc + panel * tile_size;  // the second stream follows the first
    for_each_lane_block(
        args, chunk, panel, [&](int64_t r, int64_t place, int64_t, int64_t columns) {
          const float* from = args.start + place;
          store(tile + r * 16, columns == 16 ? load(from) : load_first(from, columns));
        });
  }
}

// put(sums, of the second matrix, place, column, columns) for each row of each panel.
template <class Put>
DSMOE_HD void for_each_sum(const ProductBlock& args, const Chunk& chunk, const Streams& streams,
                           const float* acc, Put&& put) {
  const int64_t tile_size = chunk.tile_rows * 16;
  const float* second = acc + streams.steps * tile_size;
  for (int64_t panel = 0; panel < chunk.panels; ++panel) {
    const float* tile = acc + panel * tile_size;  // the second stream follows the first
    const float* up = second + panel * tile_size;
    for_each_lane_block(
        args, chunk, panel,
        [&](int64_t r, int64_t place, int64_t column, int64_t columns) __attribute__((
            always_inline)) { put(tile + r * 16, up + r * 16, place, column, columns); });
  }
}

// acc: [panels of stream 0][tile_rows][16], then stream 1.
inline void finish_chunk(const ProductBlock& args, const Chunk& chunk, const Streams& streams,
                         const float* acc) {
  switch (args.epilogue) {
    case Epilogue::swiglu:
      return for_each_sum(
          args, chunk, streams, acc,
          [&](const float* gate, const float* up, int64_t place, int64_t, int64_t columns)
              __attribute__((always_inline)) {
                store_swiglu(args, place, columns, load(gate), load(up));
              });
    case Epilogue::round:
      return for_each_sum(
          args, chunk, streams, acc,
          [&](const float* sums, const float*, int64_t place, int64_t, int64_t columns)
              __attribute__((always_inline)) {
                store_element(args, args.out, place, columns, load(sums));
              });
    default:
      return for_each_sum(
          args, chunk, streams, acc,
          [&](const float* sums, const float*, int64_t place, int64_t column, int64_t columns)
              __attribute__((always_inline)) {
                store_float(args, place, column, columns, load(sums));
              });
  }
}

// Cuts the block into chunks of at most max_rows rows (row counts of accumulator tiles are
// multiples of row_unit) and calls multiply_chunk(chunk) for each; for few rows a chunk takes as
// many panels as fit.
template <class MultiplyChunk>
DSMOE_HD void for_each_chunk(const ProductBlock& args, int64_t max_rows, int64_t row_unit,
                             MultiplyChunk&& multiply_chunk) {
  const int64_t rows = args.row_end - args.row_begin;
  const int64_t num_chunks = (rows + max_rows - 1) / max_rows;
  const int64_t chunk_rows = (rows + num_chunks - 1) / num_chunks;
  const int64_t tile_rows = (chunk_rows + row_unit - 1) / row_unit * row_unit;
  const int64_t tiles_per_panel = args.epilogue == Epilogue::swiglu ? 2 : 1;
  const int64_t group = kProductTileFloats / (tile_rows * 16 * tiles_per_panel);
  for (int64_t panel = args.panel_begin; panel < args.panel_end; panel += group) {
    for (int64_t row = args.row_begin; row < args.row_end; row += chunk_rows) {
      multiply_chunk(Chunk{.row_begin = row,
                           .rows = smaller(chunk_rows, args.row_end - row),
                           .panel_begin = panel,
                           .panels = smaller(group, args.panel_end - panel),
                           .tile_rows = tile_rows});
    }
  }
}

DSMOE_HD const char* row_of_x(const ProductBlock& args, int64_t row, int64_t k) {
  const int64_t source = args.row_index != nullptr ? args.row_index[row] : row;
  return static_cast<const char*>(args.x) +
         (source * args.x_stride + k) * (args.x_type == Element::bf16 ? 2 : 4);
}

}  // namespace
}  // namespace dsmoe::kernels::DSMOE_TIER

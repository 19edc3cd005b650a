// Row tiles of an operand times panels by AMX tiles: the loops around TDPBF16PS.
#pragma once

#include "kernels/cpu/tier/chunk.h"
#include "kernels/cpu/tier/tile_sources.h"

namespace dsmoe::kernels::DSMOE_TIER {
namespace {

// Steps of a panel whose weights stay in the second cache until all rows have met them.
constexpr int64_t kPieceSteps = 64;
constexpr int64_t kTallTiles = 4;  // so many row tiles, at most, meet a panel in one go

// Instructions that do nothing, behind an instruction of tiles. Where the other hardware thread of
// a core is busy, tile instructions close behind one another hold each other up; with others in
// between they run up to 1.8 times as fast, and nothing is lost where it is idle
// (docs/performance.md).
template <int count>
DSMOE_HD void pace() {
  __asm__ volatile(".rept %c0\n\tnop\n\t.endr" : : "i"(count));
}

// Sums of one panel: row tile i lies i tiles behind the first. Chains start at `from`, or from zero
// where it is null.
struct Sums {
  const float* from;
  float* to;
};
struct TileArgs {
  const char* x;
  int64_t x_step;    // bytes from step to step: one tile
  int64_t x_stride;  // from row tile to row tile
  Sums sums[2];
  int64_t sum_row;   // bytes from row to row
  int64_t sum_tile;  // floats from row tile to row tile
  int64_t steps;
  bool sums_in_memory;  // rows lie far apart: those of the next panel are asked for
};

// Lines of the sums beside these, which the next panel continues: some at each step.
template <int kRows>
DSMOE_HD void fetch_next_sums(const TileArgs& args, int panel, int64_t step) {
  if (!args.sums_in_memory) return;
  const int64_t rows = (kTileRows + args.steps - 1) / args.steps;
  const auto* next = reinterpret_cast<const char*>(args.sums[panel].to + 16);
  for (int64_t row = step * rows; row < smaller(kTileRows, (step + 1) * rows); ++row) {
    for (int64_t tile = 0; tile < kRows; ++tile)
      _mm_prefetch(next + tile * args.sum_tile * 4 + row * args.sum_row, _MM_HINT_T0);
  }
}

// Tile numbers are part of the instructions, and GCC's intrinsics want them as digits.
template <int tile>
DSMOE_HD void zero_tile() {
  if constexpr (tile == 0) _tile_zero(0);
  if constexpr (tile == 1) _tile_zero(1);
  if constexpr (tile == 2) _tile_zero(2);
  if constexpr (tile == 3) _tile_zero(3);
}
template <int tile>
DSMOE_HD void load_tile(const float* from, int64_t stride) {
  if constexpr (tile == 0) _tile_loadd(0, from, stride);
  if constexpr (tile == 1) _tile_loadd(1, from, stride);
  if constexpr (tile == 2) _tile_loadd(2, from, stride);
  if constexpr (tile == 3) _tile_loadd(3, from, stride);
}
template <int tile>
DSMOE_HD void store_tile(float* to, int64_t stride) {
  if constexpr (tile == 0) _tile_stored(0, to, stride);
  if constexpr (tile == 1) _tile_stored(1, to, stride);
  if constexpr (tile == 2) _tile_stored(2, to, stride);
  if constexpr (tile == 3) _tile_stored(3, to, stride);
}
template <int tile>
DSMOE_HD void start_tile(const TileArgs& args, int panel, int64_t row_tile) {
  const float* from = args.sums[panel].from;
  if (from == nullptr) {
    zero_tile<tile>();
  } else {
    load_tile<tile>(from + row_tile * args.sum_tile, args.sum_row);
  }
}
template <int tile>
DSMOE_HD void finish_tile(const TileArgs& args, int panel, int64_t row_tile) {
  store_tile<tile>(args.sums[panel].to + row_tile * args.sum_tile, args.sum_row);
}

// Up to two row tiles by up to two panels.
template <int kRows, int kPanels, class Tiles>
void multiply_square(const TileArgs& args, const Tiles& weight) {
  constexpr int kPause = Tiles::kPause;
  weight.start();
  keep_order();
  start_tile<0>(args, 0, 0);
  if constexpr (kPanels > 1) start_tile<1>(args, 1, 0);
  if constexpr (kRows > 1) start_tile<2>(args, 0, 1);
  if constexpr (kRows > 1 && kPanels > 1) start_tile<3>(args, 1, 1);
  const bool many_rows = args.x_step == kTileBytes;  // fewer stay in the first cache
  for (int64_t step = 0; step < args.steps; ++step) {
    const char* x = args.x + step * args.x_step;
    _tile_loadd(4, x, 64);
    pace<kPause>();
    _tile_loadd(6, weight.at(0, step), 64);
    pace<kPause>();
    if constexpr (kRows > 1) {
      _tile_loadd(5, x + args.x_stride, 64);
      pace<kPause>();
      if constexpr (kPanels > 1) {
        _tile_loadd(7, weight.at(1, step), 64);
        pace<kPause>();
      }
    }
    _tile_dpbf16ps(0, 4, 6);
    pace<kPause>();
    if (many_rows) weight.prepare_rows(x);
    weight.template prepare<0, kRows>(0, step);
    if constexpr (kPanels > 1) {
      if constexpr (kRows == 1) {
        _tile_loadd(7, weight.at(1, step), 64);
        pace<kPause>();
      }
      _tile_dpbf16ps(1, 4, 7);
      pace<kPause>();
      weight.template prepare<0, kRows>(1, step);
    }
    if constexpr (kRows > 1) {
      _tile_dpbf16ps(2, 5, 6);
      pace<kPause>();
      weight.prepare_rows(x + args.x_stride);
      weight.template prepare<1, 2>(0, step);
      if constexpr (kPanels > 1) {
        _tile_dpbf16ps(3, 5, 7);
        pace<kPause>();
        weight.template prepare<1, 2>(1, step);
      }
    }
    for (int panel = 0; panel < kPanels; ++panel) fetch_next_sums<kRows>(args, panel, step);
  }
  finish_tile<0>(args, 0, 0);
  if constexpr (kPanels > 1) finish_tile<1>(args, 1, 0);
  if constexpr (kRows > 1) finish_tile<2>(args, 0, 1);
  if constexpr (kRows > 1 && kPanels > 1) finish_tile<3>(args, 1, 1);
  keep_order();
}

// Three or four row tiles by one panel, which is read once: reading goes on while tiles multiply.
template <int kRows, class Tiles>
void multiply_tall(const TileArgs& args, const Tiles& weight) {
  constexpr int kPause = 2 * Tiles::kPause;
  weight.start();
  keep_order();
  start_tile<0>(args, 0, 0);
  start_tile<1>(args, 0, 1);
  start_tile<2>(args, 0, 2);
  if constexpr (kRows > 3) start_tile<3>(args, 0, 3);
  for (int64_t step = 0; step < args.steps; ++step) {
    const char* x = args.x + step * args.x_step;
    _tile_loadd(7, weight.at(0, step), 64);
    pace<kPause>();
    _tile_loadd(4, x, 64);
    pace<kPause>();
    _tile_dpbf16ps(0, 4, 7);
    pace<kPause>();
    weight.prepare_rows(x);
    weight.template prepare<0, kRows>(0, step);
    _tile_loadd(5, x + args.x_stride, 64);
    pace<kPause>();
    _tile_dpbf16ps(1, 5, 7);
    pace<kPause>();
    weight.prepare_rows(x + args.x_stride);
    weight.template prepare<1, kRows>(0, step);
    _tile_loadd(6, x + 2 * args.x_stride, 64);
    pace<kPause>();
    _tile_dpbf16ps(2, 6, 7);
    pace<kPause>();
    weight.prepare_rows(x + 2 * args.x_stride);
    weight.template prepare<2, kRows>(0, step);
    if constexpr (kRows > 3) {
      _tile_loadd(4, x + 3 * args.x_stride, 64);
      pace<kPause>();
      _tile_dpbf16ps(3, 4, 7);
      pace<kPause>();
      weight.prepare_rows(x + 3 * args.x_stride);
      weight.template prepare<3, kRows>(0, step);
    }
    fetch_next_sums<kRows>(args, 0, step);
  }
  finish_tile<0>(args, 0, 0);
  finish_tile<1>(args, 0, 1);
  finish_tile<2>(args, 0, 2);
  if constexpr (kRows > 3) finish_tile<3>(args, 0, 3);
  keep_order();
}

template <class Tiles>
void multiply_square(int64_t row_tiles, int64_t panels, const TileArgs& args, const Tiles& weight) {
  if (row_tiles > 1) {
    panels > 1 ? multiply_square<2, 2>(args, weight) : multiply_square<2, 1>(args, weight);
  } else {
    panels > 1 ? multiply_square<1, 2>(args, weight) : multiply_square<1, 1>(args, weight);
  }
}

// All row tiles times one or two panels over all steps.
struct PairOfPanels {
  TileArgs tiles;
  const char* weight[2];  // as they lie
  int64_t row_tiles;
  int64_t panels;
};

// Up to four row tiles: every panel passes once. make(panels, their number) -> their tiles.
template <class MakeTiles>
void multiply_once(const PairOfPanels& pair, MakeTiles&& make) {
  if (pair.row_tiles <= 2) {
    return multiply_square(pair.row_tiles, pair.panels, pair.tiles, make(pair.weight, pair.panels));
  }
  for (int64_t p = 0; p < pair.panels; ++p) {
    const char* const panel[2] = {pair.weight[p], pair.weight[p]};
    TileArgs tiles = pair.tiles;
    tiles.sums[0] = pair.tiles.sums[p];
    const auto weight = make(panel, 1);
    pair.row_tiles > 3 ? multiply_tall<4>(tiles, weight) : multiply_tall<3>(tiles, weight);
  }
}

// Row tiles from `begin` on.
TileArgs rows_from(const TileArgs& all, int64_t begin) {
  TileArgs rows = all;
  rows.x += begin * all.x_stride;
  for (Sums& sums : rows.sums) {
    if (sums.from != nullptr) sums.from += begin * all.sum_tile;
    sums.to += begin * all.sum_tile;
  }
  return rows;
}

// More row tiles: two by two meet both panels, a piece of k at a time.
// make(first step, steps, pass, passes) -> the tiles of a piece for one pass over it.
template <class MakeTiles>
void multiply_many(const PairOfPanels& pair, MakeTiles&& make) {
  TileArgs piece = pair.tiles;
  const int64_t passes = (pair.row_tiles + 1) / 2;
  for (int64_t step = 0; step < pair.tiles.steps; step += kPieceSteps) {
    piece.steps = smaller(kPieceSteps, pair.tiles.steps - step);
    for (int64_t pass = 0; pass < passes; ++pass) {
      multiply_square(pair.row_tiles - 2 * pass, pair.panels, rows_from(piece, 2 * pass),
                      make(step, piece.steps, pass, passes));
    }
    piece.x += kPieceSteps * pair.tiles.x_step;
    for (Sums& sums : piece.sums) sums.from = sums.to;
  }
}

void multiply_plain(const PairOfPanels& pair) {
  if (pair.row_tiles <= kTallTiles) {
    return multiply_once(
        pair, [](const char* const(&panels)[2], int64_t) { return StreamedTiles(panels); });
  }
  multiply_many(pair, [&](int64_t step, int64_t, int64_t pass, int64_t passes) {
    return PassedTiles(pair.weight, step, pass, passes);
  });
}

template <Coding coding>
void multiply_coded(const PairOfPanels& pair, char* decoded) {
  if (pair.row_tiles <= kTallTiles) {
    return multiply_once(pair, [&](const char* const(&panels)[2], int64_t num_panels) {
      return DecodedTiles<coding>(panels, num_panels, pair.tiles.steps, decoded);
    });
  }
  constexpr int64_t kPieceBytes = kPieceSteps * kTileBytes;
  static_assert(2 * kPieceBytes <= cpu::kProductPanelFloats * 4);
  multiply_many(pair, [&](int64_t begin, int64_t steps, int64_t pass, int64_t) {
    for (int64_t panel = 0; pass == 0 && panel < pair.panels; ++panel) {
      for (int64_t step = 0; step < steps; ++step)
        decode_tile<coding>(pair.weight[panel] + (begin + step) * kGroupBytes<coding>,
                            decoded + panel * kPieceBytes + step * kTileBytes);
    }
    return CachedTiles({decoded, decoded + kPieceBytes});
  });
}

void multiply_pair(Coding coding, const PairOfPanels& pair, char* decoded) {
  switch (coding) {
    case Coding::int8:
      return multiply_coded<Coding::int8>(pair, decoded);
    case Coding::int4:
      return multiply_coded<Coding::int4>(pair, decoded);
    default:
      return multiply_plain(pair);
  }
}

}  // namespace
}  // namespace dsmoe::kernels::DSMOE_TIER

// Row tiles of an operand times panels by AMX tiles: the loops around TDPBF16PS.
#pragma once

#include "kernels/cpu/tier/chunk.h"
#include "kernels/cpu/tier/finish_rows.h"
#include "kernels/cpu/tier/tile_sources.h"

namespace dsmoe::kernels::DSMOE_TIER {
namespace {

// Steps of a panel whose weights stay in the second cache until all rows have met them.
constexpr int64_t kPieceSteps = 64;
constexpr int64_t kOnePassTiles = 3;  // so many row tiles, at most, meet two panels in one pass
constexpr int64_t kTwoPassTiles = 5;

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
  FinishRows* beside;   // of the panels before
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
  if constexpr (tile == 4) _tile_zero(4);
  if constexpr (tile == 5) _tile_zero(5);
}
template <int tile>
DSMOE_HD void load_tile(const float* from, int64_t stride) {
  if constexpr (tile == 0) _tile_loadd(0, from, stride);
  if constexpr (tile == 1) _tile_loadd(1, from, stride);
  if constexpr (tile == 2) _tile_loadd(2, from, stride);
  if constexpr (tile == 3) _tile_loadd(3, from, stride);
  if constexpr (tile == 4) _tile_loadd(4, from, stride);
  if constexpr (tile == 5) _tile_loadd(5, from, stride);
}
template <int tile>
DSMOE_HD void store_tile(float* to, int64_t stride) {
  if constexpr (tile == 0) _tile_stored(0, to, stride);
  if constexpr (tile == 1) _tile_stored(1, to, stride);
  if constexpr (tile == 2) _tile_stored(2, to, stride);
  if constexpr (tile == 3) _tile_stored(3, to, stride);
  if constexpr (tile == 4) _tile_stored(4, to, stride);
  if constexpr (tile == 5) _tile_stored(5, to, stride);
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
      weight.template prepare<1, 2>(0, step);
      if constexpr (kPanels > 1) {
        _tile_dpbf16ps(3, 5, 7);
        pace<kPause>();
        weight.template prepare<1, 2>(1, step);
      }
    }
    for (int panel = 0; panel < kPanels; ++panel) fetch_next_sums<kRows>(args, panel, step);
    if constexpr (Tiles::kRoomBeside) args.beside->step();
  }
  finish_tile<0>(args, 0, 0);
  if constexpr (kPanels > 1) finish_tile<1>(args, 1, 0);
  if constexpr (kRows > 1) finish_tile<2>(args, 0, 1);
  if constexpr (kRows > 1 && kPanels > 1) finish_tile<3>(args, 1, 1);
  keep_order();
}

// Three row tiles by up to two panels: six sums leave one register for rows and one for weights. A
// tile of weights is loaded twice, the second time from the first cache; rows come once for both
// panels.
template <int kPanels, class Tiles>
void multiply_three(const TileArgs& args, const Tiles& weight) {
  constexpr int kPause = Tiles::kPause;
  weight.start();
  keep_order();
  start_tile<0>(args, 0, 0);
  start_tile<1>(args, 0, 1);
  start_tile<2>(args, 0, 2);
  if constexpr (kPanels > 1) {
    start_tile<3>(args, 1, 0);
    start_tile<4>(args, 1, 1);
    start_tile<5>(args, 1, 2);
  }
  for (int64_t step = 0; step < args.steps; ++step) {
    const char* x = args.x + step * args.x_step;
    _tile_loadd(6, weight.at(0, step), 64);
    pace<kPause>();
    _tile_loadd(7, x, 64);
    pace<kPause>();
    _tile_dpbf16ps(0, 7, 6);
    pace<kPause>();
    weight.template prepare<0, 3>(0, step);
    if constexpr (kPanels > 1) {
      _tile_loadd(6, weight.at(1, step), 64);
      pace<kPause>();
      _tile_dpbf16ps(3, 7, 6);
      pace<kPause>();
      weight.template prepare<0, 3>(1, step);
    }
    _tile_loadd(7, x + args.x_stride, 64);
    pace<kPause>();
    if constexpr (kPanels > 1) {
      _tile_dpbf16ps(4, 7, 6);
      pace<kPause>();
      weight.template prepare<1, 3>(1, step);
      _tile_loadd(6, weight.at(0, step), 64);
      pace<kPause>();
    }
    _tile_dpbf16ps(1, 7, 6);
    pace<kPause>();
    weight.template prepare<1, 3>(0, step);
    _tile_loadd(7, x + 2 * args.x_stride, 64);
    pace<kPause>();
    _tile_dpbf16ps(2, 7, 6);
    pace<kPause>();
    weight.template prepare<2, 3>(0, step);
    if constexpr (kPanels > 1) {
      _tile_loadd(6, weight.at(1, step), 64);
      pace<kPause>();
      _tile_dpbf16ps(5, 7, 6);
      pace<kPause>();
      weight.template prepare<2, 3>(1, step);
    }
    for (int panel = 0; panel < kPanels; ++panel) fetch_next_sums<3>(args, panel, step);
    if constexpr (Tiles::kRoomBeside) args.beside->step();
  }
  finish_tile<0>(args, 0, 0);
  finish_tile<1>(args, 0, 1);
  finish_tile<2>(args, 0, 2);
  if constexpr (kPanels > 1) {
    finish_tile<3>(args, 1, 0);
    finish_tile<4>(args, 1, 1);
    finish_tile<5>(args, 1, 2);
  }
  keep_order();
}

// Four row tiles by one panel of integers: decoding a tile takes about as long as multiplying four.
template <class Tiles>
void multiply_four(const TileArgs& args, const Tiles& weight) {
  weight.start();
  keep_order();
  start_tile<0>(args, 0, 0);
  start_tile<1>(args, 0, 1);
  start_tile<2>(args, 0, 2);
  start_tile<3>(args, 0, 3);
  for (int64_t step = 0; step < args.steps; ++step) {
    const char* x = args.x + step * args.x_step;
    _tile_loadd(6, weight.at(0, step), 64);
    _tile_loadd(4, x, 64);
    _tile_dpbf16ps(0, 4, 6);
    weight.template prepare<0, 4>(0, step);
    _tile_loadd(5, x + args.x_stride, 64);
    _tile_dpbf16ps(1, 5, 6);
    weight.template prepare<1, 4>(0, step);
    _tile_loadd(4, x + 2 * args.x_stride, 64);
    _tile_dpbf16ps(2, 4, 6);
    weight.template prepare<2, 4>(0, step);
    _tile_loadd(5, x + 3 * args.x_stride, 64);
    _tile_dpbf16ps(3, 5, 6);
    weight.template prepare<3, 4>(0, step);
    fetch_next_sums<4>(args, 0, step);
  }
  finish_tile<0>(args, 0, 0);
  finish_tile<1>(args, 0, 1);
  finish_tile<2>(args, 0, 2);
  finish_tile<3>(args, 0, 3);
  keep_order();
}

// One to three row tiles.
template <class Tiles>
void multiply_rows(int64_t row_tiles, int64_t panels, const TileArgs& args, const Tiles& weight) {
  switch (row_tiles) {
    case 1:
      return panels > 1 ? multiply_square<1, 2>(args, weight) : multiply_square<1, 1>(args, weight);
    case 2:
      return panels > 1 ? multiply_square<2, 2>(args, weight) : multiply_square<2, 1>(args, weight);
    default:
      return panels > 1 ? multiply_three<2>(args, weight) : multiply_three<1>(args, weight);
  }
}

// All row tiles times one or two panels over all steps.
struct PairOfPanels {
  TileArgs tiles;
  const char* weight[2];  // as they lie
  const char* next[2];    // those that come behind them
  int64_t row_tiles;
  int64_t panels;
};

// How often multiply_plain calls beside->step().
int64_t steps_beside(int64_t row_tiles, int64_t steps) {
  return row_tiles <= kOnePassTiles ? steps : row_tiles / 2 * steps;
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

// More row tiles meet both panels two by two, the first three where their number is odd, a piece of
// k at a time: tiles from first(pass) in the first pass over a piece, from later(pass) in the
// others.
template <class First, class Later>
void multiply_many(const PairOfPanels& pair, First&& first, Later&& later) {
  TileArgs piece = pair.tiles;
  const int64_t odd = pair.row_tiles % 2;
  Pass pass{.count = pair.row_tiles / 2};
  for (int64_t step = 0; step < pair.tiles.steps; step += kPieceSteps) {
    piece.steps = smaller(kPieceSteps, pair.tiles.steps - step);
    pass.first_step = step;
    pass.steps = piece.steps;
    pass.idx = 0;
    multiply_rows(2 + odd, pair.panels, piece, first(pass));
    for (pass.idx = 1; pass.idx < pass.count; ++pass.idx)
      multiply_rows(2, pair.panels, rows_from(piece, 2 * pass.idx + odd), later(pass));
    piece.x += kPieceSteps * pair.tiles.x_step;
    for (Sums& sums : piece.sums) sums.from = sums.to;
  }
}

void multiply_plain(const PairOfPanels& pair) {
  if (pair.row_tiles < kOnePassTiles) {
    return multiply_rows(pair.row_tiles, pair.panels, pair.tiles,
                         StreamedTiles(pair.weight, pair.next));
  }
  if (pair.row_tiles == kOnePassTiles)
    return multiply_rows(pair.row_tiles, pair.panels, pair.tiles, CachedTiles(pair.weight));
  const auto multiply = [&]<bool soon>() {
    const auto tiles = [&](const Pass& pass) {
      return PassedTiles<soon>(pair.weight, pair.next, pass);
    };
    multiply_many(pair, tiles, tiles);
  };
  pair.row_tiles > kTwoPassTiles ? multiply.operator()<false>() : multiply.operator()<true>();
}

// Integers are decoded beside the products of the one or the first pass.
template <Coding coding>
void multiply_coded(const PairOfPanels& pair, char* decoded) {
  constexpr int64_t kRing = 4;
  if (pair.row_tiles <= kOnePassTiles) {
    return multiply_rows(
        pair.row_tiles, pair.panels, pair.tiles,
        DecodedTiles<coding, kRing>(pair.weight, pair.panels, pair.tiles.steps, decoded));
  }
  if (pair.row_tiles == 4) {
    for (int64_t panel = 0; panel < pair.panels; ++panel) {
      TileArgs tiles = pair.tiles;
      tiles.sums[0] = pair.tiles.sums[panel];
      multiply_four(tiles, DecodedTiles<coding, kRing>({pair.weight[panel], nullptr}, 1,
                                                       pair.tiles.steps, decoded));
    }
    return;
  }
  constexpr int64_t kPieceBytes = kPieceSteps * kTileBytes;
  static_assert(2 * kPieceBytes <= cpu::kProductPanelFloats * 4);
  multiply_many(
      pair,
      [&](const Pass& pass) {
        const int64_t byte = pass.first_step * kGroupBytes<coding>;
        return DecodedTiles<coding, kPieceSteps>({pair.weight[0] + byte, pair.weight[1] + byte},
                                                 pair.panels, pass.steps, decoded);
      },
      [&](const Pass&) {
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

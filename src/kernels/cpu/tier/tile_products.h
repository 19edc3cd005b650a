// Row tiles of an operand times panels by AMX tiles: the loops around TDPBF16PS, and where the
// panels' tiles come from.
#pragma once

#include "kernels/cpu/tier/chunk.h"
#include "kernels/cpu/tier/decode_tile.h"
#include "kernels/cpu/tier/tiles.h"

namespace dsmoe::kernels::DSMOE_TIER {
namespace {

// Steps of a panel whose weights stay in the second cache until all rows have met them.
constexpr int64_t kPieceSteps = 64;
constexpr int64_t kTallTiles = 4;  // so many row tiles, at most, meet a panel in one go

// Requests hide behind products, loads of tiles often do not (docs/performance.md): what a load
// will want is asked for two steps before, to shorten it. Lines of a tile in parts, to put between
// products.
constexpr int64_t kSoonBytes = 2 * kTileBytes;
template <_mm_hint hint, int part, int parts>
DSMOE_HD void ask_for_tile(const char* tile) {
  constexpr int64_t kLines = kTileBytes / 64;
  for (int64_t line = kLines * part / parts; line < kLines * (part + 1) / parts; ++line)
    _mm_prefetch(tile + line * 64, hint);
}
DSMOE_HD void ask_for_rows(const char* x) { ask_for_tile<_MM_HINT_T0, 0, 1>(x + kSoonBytes); }

// --- where the tiles of up to two panels come from ---

// The second cache.
class CachedTiles {
 public:
  explicit CachedTiles(const char* const (&panels)[2], int64_t first_step = 0)
      : panels_{panels[0] + first_step * kTileBytes, panels[1] + first_step * kTileBytes} {}
  DSMOE_HD void prepare(int64_t) const {}
  DSMOE_HD const char* at(int panel, int64_t step) const {
    return panels_[panel] + step * kTileBytes;
  }
  template <int part, int parts>
  DSMOE_HD void fetch_ahead(int panel, int64_t step) const {
    ask_for_tile<_MM_HINT_T0, part, parts>(at(panel, step) + kSoonBytes);
  }

 private:
  const char* panels_[2];
};

// Memory: what comes kLaterBytes later, about a panel, is asked for into the second cache, a few
// lines between two products. All at once would fill the line buffers, and loads would wait behind
// them.
class StreamedTiles : public CachedTiles {
 public:
  using CachedTiles::CachedTiles;
  template <int part, int parts>
  DSMOE_HD void fetch_ahead(int panel, int64_t step) const {
    constexpr int64_t kLaterBytes = 65536;
    ask_for_tile<_MM_HINT_T1, part, parts>(at(panel, step) + kLaterBytes);
    CachedTiles::fetch_ahead<part, parts>(panel, step);
  }
};

// Panels of integers, decoded two steps ahead of their use into a ring: far enough that what was
// written has left the store buffer, so close that decoding runs beside the products.
template <Coding coding>
class DecodedTiles {
 public:
  DecodedTiles(const char* const (&panels)[2], int64_t num_panels, int64_t steps, char* decoded)
      : panels_{panels[0], panels[1]}, num_panels_(num_panels), steps_(steps), decoded_(decoded) {}
  DSMOE_HD void prepare(int64_t step) const {
    constexpr int64_t kAhead = 2;
    keep_order();
    for (int64_t i = step == 0 ? 0 : step + kAhead; i < smaller(step + kAhead + 1, steps_); ++i) {
      for (int64_t panel = 0; panel < num_panels_; ++panel)
        decode_tile<coding>(panels_[panel] + i * kGroupBytes<coding>, decoded_ + place(panel, i));
    }
    keep_order();
  }
  DSMOE_HD const char* at(int panel, int64_t step) const { return decoded_ + place(panel, step); }
  template <int part, int parts>
  DSMOE_HD void fetch_ahead(int, int64_t) const {}  // decoding does

 private:
  DSMOE_HD static int64_t place(int64_t panel, int64_t step) {
    constexpr int64_t kRing = 4;
    return (panel * kRing + step % kRing) * kTileBytes;
  }
  const char* panels_[2];
  int64_t num_panels_;
  int64_t steps_;
  char* decoded_;
};

// --- row tiles times panels over some steps of k ---

// Sums of one panel: row tile i lies i tiles behind the first. Chains start at `from`, or from zero
// where it is null.
struct Sums {
  const float* from;
  float* to;
};
struct TileArgs {
  const char* x;
  int64_t x_stride;  // bytes from row tile to row tile
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
  keep_order();
  start_tile<0>(args, 0, 0);
  if constexpr (kPanels > 1) start_tile<1>(args, 1, 0);
  if constexpr (kRows > 1) start_tile<2>(args, 0, 1);
  if constexpr (kRows > 1 && kPanels > 1) start_tile<3>(args, 1, 1);
  for (int64_t step = 0; step < args.steps; ++step) {
    const char* x = args.x + step * kTileBytes;
    weight.prepare(step);
    _tile_loadd(4, x, 64);
    _tile_loadd(6, weight.at(0, step), 64);
    _tile_dpbf16ps(0, 4, 6);
    ask_for_rows(x);
    weight.template fetch_ahead<0, kRows>(0, step);
    if constexpr (kPanels > 1) {
      _tile_loadd(7, weight.at(1, step), 64);
      _tile_dpbf16ps(1, 4, 7);
      weight.template fetch_ahead<0, kRows>(1, step);
    }
    if constexpr (kRows > 1) {
      _tile_loadd(5, x + args.x_stride, 64);
      _tile_dpbf16ps(2, 5, 6);
      ask_for_rows(x + args.x_stride);
      weight.template fetch_ahead<1, 2>(0, step);
      if constexpr (kPanels > 1) {
        _tile_dpbf16ps(3, 5, 7);
        weight.template fetch_ahead<1, 2>(1, step);
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
  keep_order();
  start_tile<0>(args, 0, 0);
  start_tile<1>(args, 0, 1);
  start_tile<2>(args, 0, 2);
  if constexpr (kRows > 3) start_tile<3>(args, 0, 3);
  for (int64_t step = 0; step < args.steps; ++step) {
    const char* x = args.x + step * kTileBytes;
    weight.prepare(step);
    _tile_loadd(7, weight.at(0, step), 64);
    _tile_loadd(4, x, 64);
    _tile_dpbf16ps(0, 4, 7);
    ask_for_rows(x);
    weight.template fetch_ahead<0, kRows>(0, step);
    _tile_loadd(5, x + args.x_stride, 64);
    _tile_dpbf16ps(1, 5, 7);
    ask_for_rows(x + args.x_stride);
    weight.template fetch_ahead<1, kRows>(0, step);
    _tile_loadd(6, x + 2 * args.x_stride, 64);
    _tile_dpbf16ps(2, 6, 7);
    ask_for_rows(x + 2 * args.x_stride);
    weight.template fetch_ahead<2, kRows>(0, step);
    if constexpr (kRows > 3) {
      _tile_loadd(4, x + 3 * args.x_stride, 64);
      _tile_dpbf16ps(3, 4, 7);
      ask_for_rows(x + 3 * args.x_stride);
      weight.template fetch_ahead<3, kRows>(0, step);
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

// More row tiles: two by two meet both panels, a piece of k at a time. first(step, steps) gives the
// tiles of a piece for the first rows, again(step) for the others: it is in the second cache then.
template <class First, class Again>
void multiply_many(const PairOfPanels& pair, First&& first, Again&& again) {
  TileArgs piece = pair.tiles;
  for (int64_t step = 0; step < pair.tiles.steps; step += kPieceSteps) {
    piece.steps = smaller(kPieceSteps, pair.tiles.steps - step);
    multiply_square(2, pair.panels, piece, first(step, piece.steps));
    for (int64_t row = 2; row < pair.row_tiles; row += 2)
      multiply_square(pair.row_tiles - row, pair.panels, rows_from(piece, row), again(step));
    piece.x += kPieceSteps * kTileBytes;
    for (Sums& sums : piece.sums) sums.from = sums.to;
  }
}

void multiply_plain(const PairOfPanels& pair) {
  if (pair.row_tiles <= kTallTiles) {
    return multiply_once(
        pair, [](const char* const(&panels)[2], int64_t) { return StreamedTiles(panels); });
  }
  multiply_many(
      pair, [&](int64_t step, int64_t) { return StreamedTiles(pair.weight, step); },
      [&](int64_t step) { return CachedTiles(pair.weight, step); });
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
  const CachedTiles cached({decoded, decoded + kPieceBytes});
  const auto decode = [&](int64_t begin, int64_t steps) {
    for (int64_t panel = 0; panel < pair.panels; ++panel) {
      for (int64_t step = 0; step < steps; ++step)
        decode_tile<coding>(pair.weight[panel] + (begin + step) * kGroupBytes<coding>,
                            decoded + panel * kPieceBytes + step * kTileBytes);
    }
    return cached;
  };
  multiply_many(pair, decode, [&](int64_t) { return cached; });
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

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

// --- where the tiles of up to two panels come from ---

// A cache.
class CachedTiles {
 public:
  explicit CachedTiles(const char* const (&panels)[2], int64_t first_step = 0)
      : panels_{panels[0] + first_step * kTileBytes, panels[1] + first_step * kTileBytes} {}
  DSMOE_HD void prepare(int64_t) const {}
  DSMOE_HD const char* at(int panel, int64_t step) const {
    return panels_[panel] + step * kTileBytes;
  }
  template <int part, int parts>
  DSMOE_HD void fetch_ahead(int, int64_t) const {}

 private:
  const char* panels_[2];
};

// Memory: what comes kPrefetchBytes later is asked for, a few lines between two products. All at
// once would fill the line buffers, and the operand's loads would wait behind them.
class StreamedTiles : public CachedTiles {
 public:
  using CachedTiles::CachedTiles;
  template <int part, int parts>
  DSMOE_HD void fetch_ahead(int panel, int64_t step) const {
    constexpr int64_t kPrefetchBytes = 4096;
    constexpr int64_t kLines = kTileBytes / 64;
    const char* later = at(panel, step) + kPrefetchBytes;
    for (int64_t line = kLines * part / parts; line < kLines * (part + 1) / parts; ++line)
      _mm_prefetch(later + line * 64, _MM_HINT_T1);
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
DSMOE_HD void fetch_next_sums(const TileArgs& args, int64_t step) {
  if (!args.sums_in_memory) return;
  const int64_t rows = (kTileRows + args.steps - 1) / args.steps;
  const auto* next = reinterpret_cast<const char*>(args.sums[0].to + 16);
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
    weight.template fetch_ahead<0, kRows>(0, step);
    if constexpr (kPanels > 1) {
      _tile_loadd(7, weight.at(1, step), 64);
      _tile_dpbf16ps(1, 4, 7);
      weight.template fetch_ahead<0, kRows>(1, step);
    }
    if constexpr (kRows > 1) {
      _tile_loadd(5, x + args.x_stride, 64);
      _tile_dpbf16ps(2, 5, 6);
      weight.template fetch_ahead<1, 2>(0, step);
      if constexpr (kPanels > 1) {
        _tile_dpbf16ps(3, 5, 7);
        weight.template fetch_ahead<1, 2>(1, step);
      }
    }
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
    weight.template fetch_ahead<0, kRows>(0, step);
    _tile_loadd(5, x + args.x_stride, 64);
    _tile_dpbf16ps(1, 5, 7);
    weight.template fetch_ahead<1, kRows>(0, step);
    _tile_loadd(6, x + 2 * args.x_stride, 64);
    _tile_dpbf16ps(2, 6, 7);
    weight.template fetch_ahead<2, kRows>(0, step);
    if constexpr (kRows > 3) {
      _tile_loadd(4, x + 3 * args.x_stride, 64);
      _tile_dpbf16ps(3, 4, 7);
      weight.template fetch_ahead<3, kRows>(0, step);
    }
    fetch_next_sums<kRows>(args, step);
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

// More row tiles than one call takes: threes, and fours where a three would leave a rest. Three by
// one panel keep the units busiest: of four, two would share a register.
class RowGroups {
 public:
  explicit RowGroups(int64_t row_tiles)
      : row_tiles_(row_tiles), count_(row_tiles == 5 ? 2 : row_tiles / 3) {}
  int64_t count() const { return count_; }
  int64_t begin(int64_t group) const { return (row_tiles_ * group + count_ - 1) / count_; }

 private:
  int64_t row_tiles_;
  int64_t count_;
};

// `tiles` holds the sums and the operand of the first row tile.
template <class Tiles>
void multiply_group(const TileArgs& tiles, int64_t begin, int64_t end, const Tiles& weight) {
  TileArgs group = tiles;
  group.x += begin * tiles.x_stride;
  if (group.sums[0].from != nullptr) group.sums[0].from += begin * tiles.sum_tile;
  group.sums[0].to += begin * tiles.sum_tile;
  if (end - begin == 3) return multiply_tall<3>(group, weight);
  end - begin > 3 ? multiply_tall<4>(group, weight) : multiply_square<2, 1>(group, weight);
}

// first(panel, step) gives the tiles of a piece for the first group of rows, again(panel, step) for
// the others: it is in the second cache then.
template <class First, class Again>
void multiply_groups(const PairOfPanels& pair, First&& first, Again&& again) {
  const RowGroups groups(pair.row_tiles);
  for (int64_t p = 0; p < pair.panels; ++p) {
    TileArgs piece = pair.tiles;
    piece.sums[0] = pair.tiles.sums[p];
    for (int64_t step = 0; step < pair.tiles.steps; step += kPieceSteps) {
      piece.steps = smaller(kPieceSteps, pair.tiles.steps - step);
      multiply_group(piece, 0, groups.begin(1), first(pair.weight[p], step, piece.steps));
      for (int64_t group = 1; group < groups.count(); ++group)
        multiply_group(piece, groups.begin(group), groups.begin(group + 1),
                       again(pair.weight[p], step));
      piece.x += kPieceSteps * kTileBytes;
      piece.sums[0].from = piece.sums[0].to;
    }
  }
}

void multiply_plain(const PairOfPanels& pair) {
  if (pair.row_tiles <= kTallTiles) {
    return multiply_once(
        pair, [](const char* const(&panels)[2], int64_t) { return StreamedTiles(panels); });
  }
  multiply_groups(
      pair,
      [](const char* panel, int64_t step, int64_t) {
        return StreamedTiles({panel, panel}, step);
      },
      [](const char* panel, int64_t step) {
        return CachedTiles({panel, panel}, step);
      });
}

template <Coding coding>
void multiply_coded(const PairOfPanels& pair, char* decoded) {
  if (pair.row_tiles <= kTallTiles) {
    return multiply_once(pair, [&](const char* const(&panels)[2], int64_t num_panels) {
      return DecodedTiles<coding>(panels, num_panels, pair.tiles.steps, decoded);
    });
  }
  const CachedTiles cached({decoded, decoded});
  const auto decode = [&](const char* panel, int64_t begin, int64_t steps) {
    for (int64_t step = 0; step < steps; ++step)
      decode_tile<coding>(panel + (begin + step) * kGroupBytes<coding>,
                          decoded + step * kTileBytes);
    return cached;
  };
  multiply_groups(pair, decode, [&](const char*, int64_t) { return cached; });
}
static_assert(kPieceSteps * kTileBytes <= cpu::kProductPanelFloats * 4);

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

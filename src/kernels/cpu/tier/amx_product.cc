// Rows times panels by AMX tiles. A panel of 32 k is a tile as it lies in memory, and TDPBF16PS
// adds in the order of the bf16 rule, so results equal those of the FMA chains bit for bit.
#include "kernels/cpu/tier/chunk.h"
#include "kernels/cpu/tier/decode_tile.h"
#include "kernels/cpu/tier/tiles.h"

namespace dsmoe::kernels::DSMOE_TIER {
namespace {

constexpr int64_t kMostRows = 192;   // of a chunk: so many share the reading of a panel
constexpr int64_t kSplitKRows = 64;  // of a chunk whose k does not fit the operand's memory
// Steps of a panel whose weights stay in the second cache until all rows have met them.
constexpr int64_t kPieceSteps = 64;
constexpr int64_t kTallTiles = 4;  // so many row tiles, at most, meet a panel in one go

// Operand rows as tiles: [row tiles][steps of k][16 rows][32 k], rows and k behind the end zero.
void pack_operand(const ProductBlock& args, const Chunk& chunk, int64_t k_begin, int64_t count,
                  char* tiles) {
  const int64_t steps = (count + kTileK - 1) / kTileK;
  for (int64_t r = 0; r < chunk.tile_rows; ++r) {
    char* target = tiles + (r / kTileRows * steps * kTileRows + r % kTileRows) * 64;
    const char* x = r < chunk.rows ? row_of_x(args, chunk.row_begin + r, k_begin) : nullptr;
    for (int64_t k = 0; k < count; k += kTileK, target += kTileBytes) {
      if (x == nullptr) {
        put_tile_row(target, nullptr, 0);
      } else {
        put_tile_row(target, x + k * 2, smaller(kTileK, count - k));
      }
    }
  }
}

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

// Panels of integers, decoded two steps at a time: so close to their use, the decoding of the next
// ones runs beside the products.
template <Coding coding>
class DecodedTiles {
 public:
  static constexpr int64_t kSteps = 2;
  DecodedTiles(const char* const (&panels)[2], int64_t num_panels, int64_t steps, char* decoded)
      : panels_{panels[0], panels[1]}, num_panels_(num_panels), steps_(steps), decoded_(decoded) {}
  DSMOE_HD void prepare(int64_t step) const {
    if (step % kSteps != 0) return;
    keep_order();
    for (int64_t panel = 0; panel < num_panels_; ++panel) {
      for (int64_t i = step; i < smaller(step + kSteps, steps_); ++i) {
        decode_tile<coding>(panels_[panel] + i * kGroupBytes<coding>, decoded_ + place(panel, i));
      }
    }
    keep_order();
  }
  DSMOE_HD const char* at(int panel, int64_t step) const { return decoded_ + place(panel, step); }
  template <int part, int parts>
  DSMOE_HD void fetch_ahead(int, int64_t) const {}  // decoding does

 private:
  DSMOE_HD static int64_t place(int64_t panel, int64_t step) {
    return (panel * kSteps + step % kSteps) * kTileBytes;
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
};

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

// The scratch memory of a product.
struct Memory {
  char* operand;
  float* acc;
  char* decoded;
  explicit Memory(float* scratch)
      : operand(reinterpret_cast<char*>(scratch)),
        acc(scratch + cpu::kTileOperandFloats),
        decoded(reinterpret_cast<char*>(acc + kProductTileFloats)) {}
};

// Where the sums of a chunk lie: in the product's memory, from where finish_chunk takes them; or,
// where nothing is left to do to them, at their place in `out`.
struct ChunkSums {
  float* first;      // of the first panel
  int64_t panel;     // floats from panel to panel
  int64_t sum_row;   // bytes from row to row
  int64_t sum_tile;  // floats from row tile to row tile
};

bool in_place(const ProductBlock& args, const Chunk& chunk) {
  return args.epilogue == Epilogue::assign && args.bias == nullptr &&
         chunk.rows == chunk.tile_rows && args.n % 16 == 0 &&
         (chunk.tile_rows <= kTallTiles * kTileRows || args.k <= kPieceSteps * kTileK) &&
         args.k > 0;
}

ChunkSums sums_of(const ProductBlock& args, const Chunk& chunk, float* acc) {
  if (!in_place(args, chunk)) {
    return {.first = acc, .panel = chunk.tile_rows * 16, .sum_row = 64, .sum_tile = kTileSums};
  }
  return {.first = static_cast<float*>(args.out) + chunk.row_begin * args.out_stride +
                   chunk.panel_begin * 16,
          .panel = 16,
          .sum_row = args.out_stride * 4,
          .sum_tile = kTileRows * args.out_stride};
}

// Some rows times some panels. k_step: of one packed operand; packed: it is there already.
void multiply_chunk(const ProductBlock& args, const Chunk& chunk, int64_t k_step, bool packed) {
  const Memory memory(args.scratch);
  const Streams streams = streams_of(args, chunk);
  const ChunkSums sums = sums_of(args, chunk, memory.acc);
  const bool placed = in_place(args, chunk);
  if (!placed && (args.start != nullptr || args.k == 0))
    start_chunk(args, chunk, streams, memory.acc);
  for (int64_t k = 0; k < args.k; k += k_step) {
    const int64_t count = smaller(k_step, args.k - k);
    const int64_t steps = (count + kTileK - 1) / kTileK;
    const char* operand = memory.operand;
    if (args.x_tiles) {
      operand = static_cast<const char*>(args.x) + chunk.row_begin / kTileRows * steps * kTileBytes;
    } else if (!packed) {
      pack_operand(args, chunk, k, count, memory.operand);
    }
    const auto sums_at = [&](int64_t panel) -> Sums {
      float* to = sums.first + panel * sums.panel;
      if (k > 0) return {to, to};
      if (args.start == nullptr) return {nullptr, to};
      return {placed ? args.start + (to - static_cast<float*>(args.out)) : to, to};
    };
    for (int64_t pair = 0; pair < streams.steps; ++pair) {
      const int64_t byte = pair * args.panel_bytes + panel_byte(args, k);
      multiply_pair(args.coding,
                    {.tiles = {.x = operand,
                               .x_stride = steps * kTileBytes,
                               .sums = {sums_at(pair), sums_at(streams.steps + pair)},
                               .sum_row = sums.sum_row,
                               .sum_tile = sums.sum_tile,
                               .steps = steps},
                     .weight = {streams.base[0] + byte, streams.base[1] + byte},
                     .row_tiles = chunk.tile_rows / kTileRows,
                     .panels = pair < streams.second ? 2 : 1},
                    memory.decoded);
    }
  }
  if (!placed) finish_chunk(args, chunk, streams, memory.acc);
}

}  // namespace

// Rows are packed once and stay in the second cache while all panels pass them; with a k too long
// for that, pieces of k are packed for every group of panels.
void product_bf16(const ProductBlock& args) {
  const TilesConfigured tiles;
  const int64_t depth = larger(kTileK, (args.k + kTileK - 1) / kTileK * kTileK);
  const int64_t capacity = cpu::kTileOperandFloats * 4 / 2;  // values
  const int64_t fitting = capacity / depth / kTileRows * kTileRows;
  const bool whole = args.x_tiles || fitting >= 2 * kTileRows;
  const int64_t most = args.x_tiles ? kMostRows : whole ? smaller(fitting, kMostRows) : kSplitKRows;
  const int64_t rows = args.row_end - args.row_begin;
  const int64_t chunks = (rows + most - 1) / most;
  const int64_t unit = rows > kTallTiles * kTileRows ? 3 * kTileRows : kTileRows;
  const int64_t chunk_rows = smaller(most, ((rows + chunks - 1) / chunks + unit - 1) / unit * unit);
  const int64_t k_step = whole ? depth : capacity / chunk_rows / kTileK * kTileK;
  const bool swiglu = args.epilogue == Epilogue::swiglu;
  const int64_t sums = chunk_rows * 16 * (swiglu ? 2 : 1);
  const int64_t group = kProductTileFloats / sums / (swiglu ? 1 : 2) * (swiglu ? 1 : 2);
  for (int64_t row = args.row_begin; row < args.row_end; row += chunk_rows) {
    for (int64_t panel = args.panel_begin; panel < args.panel_end; panel += group) {
      const int64_t here = smaller(chunk_rows, args.row_end - row);
      multiply_chunk(args,
                     {.row_begin = row,
                      .rows = here,
                      .panel_begin = panel,
                      .panels = smaller(group, args.panel_end - panel),
                      .tile_rows = (here + kTileRows - 1) / kTileRows * kTileRows},
                     k_step, whole && panel > args.panel_begin);
    }
  }
}

}  // namespace dsmoe::kernels::DSMOE_TIER

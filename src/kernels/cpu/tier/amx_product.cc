// Rows times panels by AMX tiles. A panel of 32 k is a tile as it lies in memory, and TDPBF16PS
// adds in the order of the bf16 rule, so results equal those of the FMA chains bit for bit.
#include "kernels/cpu/tier/chunk.h"
#include "kernels/cpu/tier/decode_tile.h"
#include "kernels/cpu/tier/tiles.h"

namespace dsmoe::kernels::DSMOE_TIER {
namespace {

constexpr int64_t kMostRows = 192;   // of a chunk: so many share the reading of a panel
constexpr int64_t kSplitKRows = 64;  // of a chunk whose k does not fit the operand's memory
// Steps of two panels whose weights stay in the first cache until all rows have met them.
constexpr int64_t kPieceSteps = 16;

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

// Where weights come from: memory, in which case the next lines of the stream are asked for; or the
// first cache.
enum class From { memory, cache };
constexpr int64_t kPrefetchBytes = 2048;

template <From from>
DSMOE_HD void fetch_ahead(const char* weight, int64_t step) {
  if constexpr (from == From::cache) return;
  const char* next = weight + step * kTileBytes + kPrefetchBytes;
  for (int64_t line = 0; line < kTileBytes; line += 64) _mm_prefetch(next + line, _MM_HINT_T0);
}

// Row tiles times panels over some steps of k. Row tile i of the operand and of the sums lies i
// strides behind the first.
struct TileArgs {
  const char* x;
  int64_t x_stride;  // bytes
  const char* weight[2];
  float* acc[2];
  int64_t steps;
};

// Up to two row tiles by up to two panels. Tile numbers are immediate operands: the parameters pick
// the instructions, not the registers.
template <int kRows, int kPanels, From from>
void multiply_square(const TileArgs& args) {
  keep_order();
  _tile_loadd(0, args.acc[0], 64);
  if constexpr (kPanels > 1) _tile_loadd(1, args.acc[1], 64);
  if constexpr (kRows > 1) _tile_loadd(2, args.acc[0] + kTileSums, 64);
  if constexpr (kRows > 1 && kPanels > 1) _tile_loadd(3, args.acc[1] + kTileSums, 64);
  for (int64_t step = 0; step < args.steps; ++step) {
    const int64_t byte = step * kTileBytes;
    _tile_loadd(4, args.x + byte, 64);
    _tile_loadd(6, args.weight[0] + byte, 64);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kPanels > 1) {
      _tile_loadd(7, args.weight[1] + byte, 64);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kRows > 1) {
      _tile_loadd(5, args.x + args.x_stride + byte, 64);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (kPanels > 1) _tile_dpbf16ps(3, 5, 7);
    }
    for (int p = 0; p < kPanels; ++p) fetch_ahead<from>(args.weight[p], step);
  }
  _tile_stored(0, args.acc[0], 64);
  if constexpr (kPanels > 1) _tile_stored(1, args.acc[1], 64);
  if constexpr (kRows > 1) _tile_stored(2, args.acc[0] + kTileSums, 64);
  if constexpr (kRows > 1 && kPanels > 1) _tile_stored(3, args.acc[1] + kTileSums, 64);
  keep_order();
}

// Three or four row tiles by one panel, which is read once: reading goes on while tiles multiply.
template <int kRows>
void multiply_tall(const TileArgs& args) {
  keep_order();
  float* acc = args.acc[0];
  _tile_loadd(0, acc, 64);
  _tile_loadd(1, acc + kTileSums, 64);
  _tile_loadd(2, acc + 2 * kTileSums, 64);
  if constexpr (kRows > 3) _tile_loadd(3, acc + 3 * kTileSums, 64);
  for (int64_t step = 0; step < args.steps; ++step) {
    const char* x = args.x + step * kTileBytes;
    _tile_loadd(7, args.weight[0] + step * kTileBytes, 64);
    _tile_loadd(4, x, 64);
    _tile_dpbf16ps(0, 4, 7);
    _tile_loadd(5, x + args.x_stride, 64);
    _tile_dpbf16ps(1, 5, 7);
    _tile_loadd(6, x + 2 * args.x_stride, 64);
    _tile_dpbf16ps(2, 6, 7);
    if constexpr (kRows > 3) {
      _tile_loadd(4, x + 3 * args.x_stride, 64);
      _tile_dpbf16ps(3, 4, 7);
    }
    fetch_ahead<From::memory>(args.weight[0], step);
  }
  _tile_stored(0, acc, 64);
  _tile_stored(1, acc + kTileSums, 64);
  _tile_stored(2, acc + 2 * kTileSums, 64);
  if constexpr (kRows > 3) _tile_stored(3, acc + 3 * kTileSums, 64);
  keep_order();
}

template <From from>
void multiply_square(int64_t row_tiles, int64_t panels, const TileArgs& args) {
  if (row_tiles > 1) {
    panels > 1 ? multiply_square<2, 2, from>(args) : multiply_square<2, 1, from>(args);
  } else {
    panels > 1 ? multiply_square<1, 2, from>(args) : multiply_square<1, 1, from>(args);
  }
}

// Some steps for all row tiles, which pass the panels two by two: from the second pass on the
// weights are in the first cache.
template <From first>
void multiply_passes(int64_t row_tiles, int64_t panels, TileArgs args) {
  multiply_square<first>(row_tiles, panels, args);
  for (int64_t left = row_tiles - 2; left > 0; left -= 2) {
    args.x += 2 * args.x_stride;
    for (int64_t p = 0; p < panels; ++p) args.acc[p] += 2 * kTileSums;
    multiply_square<From::cache>(left, panels, args);
  }
}

// All row tiles times one or two panels over all steps.
struct PairOfPanels {
  TileArgs tiles;  // panels as they lie
  int64_t row_tiles;
  int64_t panels;
};

void multiply_plain(const PairOfPanels& pair) {
  TileArgs piece = pair.tiles;
  if (pair.row_tiles == 3 || pair.row_tiles == 4) {
    for (int64_t p = 0; p < pair.panels; ++p) {
      piece.weight[0] = pair.tiles.weight[p];
      piece.acc[0] = pair.tiles.acc[p];
      pair.row_tiles > 3 ? multiply_tall<4>(piece) : multiply_tall<3>(piece);
    }
    return;
  }
  const int64_t most = pair.row_tiles <= 2 ? pair.tiles.steps : kPieceSteps;
  for (int64_t step = 0; step < pair.tiles.steps; step += most) {
    piece.steps = smaller(most, pair.tiles.steps - step);
    multiply_passes<From::memory>(pair.row_tiles, pair.panels, piece);
    piece.x += most * kTileBytes;
    for (int64_t p = 0; p < pair.panels; ++p) piece.weight[p] += most * kTileBytes;
  }
}

// Integers are decoded a piece of k at a time, which then serves all rows from the first cache.
template <Coding coding>
void multiply_coded(const PairOfPanels& pair, char* decoded) {
  TileArgs piece = pair.tiles;
  for (int64_t begin = 0; begin < pair.tiles.steps; begin += kPieceSteps) {
    piece.steps = smaller(kPieceSteps, pair.tiles.steps - begin);
    for (int64_t p = 0; p < pair.panels; ++p) {
      char* out = decoded + p * kPieceSteps * kTileBytes;
      const char* group = pair.tiles.weight[p] + begin * kGroupBytes<coding>;
      for (int64_t step = 0; step < piece.steps; ++step)
        decode_tile<coding>(group + step * kGroupBytes<coding>, out + step * kTileBytes);
      piece.weight[p] = out;
    }
    multiply_passes<From::cache>(pair.row_tiles, pair.panels, piece);
    piece.x += kPieceSteps * kTileBytes;
  }
}
static_assert(2 * kPieceSteps * kTileBytes <= cpu::kProductPanelFloats * 4);

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

// Some rows times some panels. k_step: of one packed operand; packed: it is there already.
void multiply_chunk(const ProductBlock& args, const Chunk& chunk, int64_t k_step, bool packed) {
  const Memory memory(args.scratch);
  const int64_t tile_size = chunk.tile_rows * 16;
  const Streams streams = streams_of(args, chunk);
  float* second = memory.acc + streams.steps * tile_size;
  start_chunk(args, chunk, streams, memory.acc);
  for (int64_t k = 0; k < args.k; k += k_step) {
    const int64_t count = smaller(k_step, args.k - k);
    const int64_t steps = (count + kTileK - 1) / kTileK;
    if (!packed) pack_operand(args, chunk, k, count, memory.operand);
    for (int64_t pair = 0; pair < streams.steps; ++pair) {
      const int64_t byte = pair * args.panel_bytes + panel_byte(args, k);
      multiply_pair(args.coding,
                    {.tiles = {.x = memory.operand,
                               .x_stride = steps * kTileBytes,
                               .weight = {streams.base[0] + byte, streams.base[1] + byte},
                               .acc = {memory.acc + pair * tile_size, second + pair * tile_size},
                               .steps = steps},
                     .row_tiles = chunk.tile_rows / kTileRows,
                     .panels = pair < streams.second ? 2 : 1},
                    memory.decoded);
    }
  }
  finish_chunk(args, chunk, streams, memory.acc);
}

}  // namespace

// Rows are packed once and stay in the second cache while all panels pass them; with a k too long
// for that, pieces of k are packed for every group of panels.
void product_bf16(const ProductBlock& args) {
  const TilesConfigured tiles;
  const int64_t depth = larger(kTileK, (args.k + kTileK - 1) / kTileK * kTileK);
  const int64_t capacity = cpu::kTileOperandFloats * 4 / 2;  // values
  const int64_t fitting = capacity / depth / kTileRows * kTileRows;
  const bool whole = fitting >= 2 * kTileRows;
  const int64_t most = whole ? smaller(fitting, kMostRows) : kSplitKRows;
  const int64_t rows = args.row_end - args.row_begin;
  const int64_t chunks = (rows + most - 1) / most;
  const int64_t chunk_rows = ((rows + chunks - 1) / chunks + kTileRows - 1) / kTileRows * kTileRows;
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

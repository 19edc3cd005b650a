// Rows times panels by AMX tiles. A panel of 32 k is a tile as it lies in memory, and TDPBF16PS
// adds in the order of the bf16 rule, so results equal those of the FMA chains bit for bit.
#include <immintrin.h>

#include "kernels/cpu/tier/chunk.h"
#include "kernels/cpu/tier/decode_tile.h"

namespace dsmoe::kernels::DSMOE_TIER {
namespace {

constexpr int64_t kTileRows = 16;
constexpr int64_t kTileK = 32;  // k of one step
constexpr int64_t kTileBytes = 1024;
constexpr int64_t kTileSums = 256;
constexpr int64_t kMostRows = 192;   // of a chunk: so many share the reading of a panel
constexpr int64_t kSplitKRows = 64;  // of a chunk whose k does not fit the operand's memory
// Steps whose weights stay in the first cache, beside the operand's tiles that pass them, until all
// rows have met them.
constexpr int64_t kPieceSteps = 8;
constexpr int64_t kPrefetchSteps = 8;

// Every tile is 16 rows of 64 bytes: accumulators 0-3 (two row tiles by two panels), operands 4 and
// 5, weights 6 and 7.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

// GCC's tile intrinsics do not say that they read and write memory: what comes before this in the
// program is done before what comes behind it.
DSMOE_HD void keep_order() { __asm__ volatile("" : : : "memory"); }

class TilesConfigured {
 public:
  DSMOE_HD TilesConfigured() {
    const TileConfig config;
    __asm__ volatile("" : : "r"(&config) : "memory");
    _tile_loadconfig(&config);
  }
  DSMOE_HD ~TilesConfigured() { _tile_release(); }
  TilesConfigured(const TilesConfigured&) = delete;
  TilesConfigured& operator=(const TilesConfigured&) = delete;
};

// Operand rows as tiles: [row tiles][steps of k][16 rows][32 k], rows and k behind the end zero.
void pack_operand(const ProductBlock& args, const Chunk& chunk, int64_t k_begin, int64_t count,
                  char* tiles) {
  const int64_t steps = (count + kTileK - 1) / kTileK;
  for (int64_t r = 0; r < chunk.tile_rows; ++r) {
    char* target = tiles + (r / kTileRows * steps * kTileRows + r % kTileRows) * 64;
    const char* x = r < chunk.rows ? row_of_x(args, chunk.row_begin + r, k_begin) : nullptr;
    for (int64_t k = 0; k < count; k += kTileK, target += kTileBytes) {
      const int64_t here = x == nullptr ? 0 : smaller(kTileK, count - k);
      if (here == kTileK) {
        _mm512_store_si512(target, _mm512_loadu_si512(x + k * 2));
        continue;
      }
      std::memset(target, 0, 64);
      if (here > 0) std::memcpy(target, x + k * 2, static_cast<size_t>(here) * 2);
    }
  }
}

// Where the weight tiles of one or two panels come from. ahead(step) is called once per step, among
// the tile instructions, and does what later steps need.
template <int kPanels>
class PlainPanels {
 public:
  DSMOE_HD PlainPanels(const char* const* panel, int64_t, char*) : panel_(panel) {}
  DSMOE_HD const char* tile(int p, int64_t step) const { return panel_[p] + step * kTileBytes; }
  DSMOE_HD void ahead(int64_t step) const {
    for (int p = 0; p < kPanels; ++p) {
      const char* next = tile(p, step + kPrefetchSteps);
      for (int64_t line = 0; line < kTileBytes; line += 64) _mm_prefetch(next + line, _MM_HINT_T1);
    }
  }

 private:
  const char* const* panel_;
};

// Integers are decoded one piece ahead, into a ring of two pieces: vector units decode while the
// tile unit multiplies.
template <Coding coding, int kPanels>
class CodedPanels {
 public:
  DSMOE_HD CodedPanels(const char* const* panel, int64_t steps, char* decoded)
      : panel_(panel), steps_(steps), decoded_(decoded) {
    for (int64_t step = 0; step < smaller(kPieceSteps, steps); ++step) decode(step);
    keep_order();
  }
  DSMOE_HD const char* tile(int p, int64_t step) const { return place(p, step); }
  DSMOE_HD void ahead(int64_t step) const {
    if (step + kPieceSteps < steps_) decode(step + kPieceSteps);
    keep_order();
  }

 private:
  DSMOE_HD char* place(int p, int64_t step) const {
    return decoded_ + (p * 2 * kPieceSteps + step % (2 * kPieceSteps)) * kTileBytes;
  }
  DSMOE_HD void decode(int64_t step) const {
    for (int p = 0; p < kPanels; ++p) {
      decode_tile<coding>(panel_[p] + step * kGroupBytes<coding>, place(p, step));
    }
  }

  const char* const* panel_;
  int64_t steps_;
  char* decoded_;
};
static_assert(2 * 2 * kPieceSteps * kTileBytes <= cpu::kProductPanelFloats * 4);

struct RowTiles {
  const char* x[2];  // at step 0
  float* acc[2][2];  // [row tile][panel]
};

// Steps [begin, end) of one or two row tiles by one or two panels. Tile numbers are immediate
// operands: kRowTiles and kPanels pick the instructions, not the registers.
template <int kRowTiles, int kPanels, bool kAhead, class Panels>
DSMOE_HD void multiply_tiles(const RowTiles& rows, const Panels& panels, int64_t begin,
                             int64_t end) {
  keep_order();
  _tile_loadd(0, rows.acc[0][0], 64);
  if constexpr (kPanels > 1) _tile_loadd(1, rows.acc[0][1], 64);
  if constexpr (kRowTiles > 1) _tile_loadd(2, rows.acc[1][0], 64);
  if constexpr (kRowTiles > 1 && kPanels > 1) _tile_loadd(3, rows.acc[1][1], 64);
  for (int64_t step = begin; step < end; ++step) {
    const int64_t byte = step * kTileBytes;
    _tile_loadd(4, rows.x[0] + byte, 64);
    _tile_loadd(6, panels.tile(0, step), 64);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kPanels > 1) {
      _tile_loadd(7, panels.tile(1, step), 64);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kRowTiles > 1) {
      _tile_loadd(5, rows.x[1] + byte, 64);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (kPanels > 1) _tile_dpbf16ps(3, 5, 7);
    }
    if constexpr (kAhead) panels.ahead(step);
  }
  _tile_stored(0, rows.acc[0][0], 64);
  if constexpr (kPanels > 1) _tile_stored(1, rows.acc[0][1], 64);
  if constexpr (kRowTiles > 1) _tile_stored(2, rows.acc[1][0], 64);
  if constexpr (kRowTiles > 1 && kPanels > 1) _tile_stored(3, rows.acc[1][1], 64);
  keep_order();
}

// Every row tile times one pair of panels.
struct PairOfPanels {
  const char* operand;  // [row tiles][steps] tiles
  int64_t steps;
  const char* weight[2];  // panels at the first step
  float* acc[2];          // [row tiles][16][16]
  int64_t row_tiles;
};

template <int kPanels, bool kAhead, class Panels>
DSMOE_HD void multiply_two(const PairOfPanels& pair, const Panels& panels, int64_t first_tile,
                           int64_t begin, int64_t end) {
  const int64_t next = first_tile + 1 < pair.row_tiles ? first_tile + 1 : first_tile;
  const auto x = [&](int64_t tile) { return pair.operand + tile * pair.steps * kTileBytes; };
  const auto acc = [&](int p, int64_t tile) { return pair.acc[p] + tile * kTileSums; };
  const RowTiles rows{
      .x = {x(first_tile), x(next)},
      .acc = {{acc(0, first_tile), acc(1, first_tile)}, {acc(0, next), acc(1, next)}}};
  if (next > first_tile) {
    multiply_tiles<2, kPanels, kAhead>(rows, panels, begin, end);
  } else {
    multiply_tiles<1, kPanels, kAhead>(rows, panels, begin, end);
  }
}

template <class Panels, int kPanels>
void multiply_pair(const PairOfPanels& pair, char* decoded) {
  const Panels panels(pair.weight, pair.steps, decoded);
  const int64_t piece = pair.row_tiles <= 2 ? pair.steps : kPieceSteps;
  for (int64_t begin = 0; begin < pair.steps; begin += piece) {
    const int64_t end = smaller(begin + piece, pair.steps);
    multiply_two<kPanels, true>(pair, panels, 0, begin, end);
    for (int64_t tile = 2; tile < pair.row_tiles; tile += 2)
      multiply_two<kPanels, false>(pair, panels, tile, begin, end);
  }
}

using MultiplyPair = void (*)(const PairOfPanels& pair, char* decoded);

MultiplyPair multiply_pair_of(Coding coding, int64_t panels) {
  switch (coding) {
    case Coding::int8:
      return panels > 1 ? multiply_pair<CodedPanels<Coding::int8, 2>, 2>
                        : multiply_pair<CodedPanels<Coding::int8, 1>, 1>;
    case Coding::int4:
      return panels > 1 ? multiply_pair<CodedPanels<Coding::int4, 2>, 2>
                        : multiply_pair<CodedPanels<Coding::int4, 1>, 1>;
    default:
      return panels > 1 ? multiply_pair<PlainPanels<2>, 2> : multiply_pair<PlainPanels<1>, 1>;
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
    if (!packed) pack_operand(args, chunk, k, count, memory.operand);
    for (int64_t pair = 0; pair < streams.steps; ++pair) {
      const int64_t byte = pair * args.panel_bytes + panel_byte(args, k);
      const int64_t panels = pair < streams.second ? 2 : 1;
      multiply_pair_of(args.coding, panels)(
          {.operand = memory.operand,
           .steps = (count + kTileK - 1) / kTileK,
           .weight = {streams.base[0] + byte, streams.base[1] + byte},
           .acc = {memory.acc + pair * tile_size, second + pair * tile_size},
           .row_tiles = chunk.tile_rows / kTileRows},
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

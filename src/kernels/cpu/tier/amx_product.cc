// Rows times panels by AMX tiles. A panel of 32 k is a tile as it lies in memory, and TDPBF16PS
// adds in the order of the bf16 rule, so results equal those of the FMA chains bit for bit.
#include <immintrin.h>

#include "kernels/cpu/tier/chunk.h"
#include "kernels/cpu/tier/coded.h"

namespace dsmoe::kernels::DSMOE_TIER {
namespace {

constexpr int64_t kTileRows = 16;
constexpr int64_t kTileK = 32;  // k of one step
constexpr int64_t kTileBytes = 1024;
constexpr int64_t kChunkRows = 96;
constexpr int64_t kCodedChunkRows = 192;  // more rows share the work of decoding
constexpr int64_t kPrefetchBytes = 2048;

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

// GCC's tile intrinsics do not say that they read memory: what they read must be written before
// this.
DSMOE_HD void finish_writes(const void* data) { __asm__ volatile("" : : "r"(data) : "memory"); }

class TilesConfigured {
 public:
  DSMOE_HD TilesConfigured() {
    const TileConfig config;
    finish_writes(&config);
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
      if (here < kTileK) std::memset(target, 0, 64);
      if (here > 0) std::memcpy(target, x + k * 2, static_cast<size_t>(here) * 2);
    }
  }
}

struct TileArgs {
  const char* x[2];
  const char* weight[2];
  float* acc[2][2];  // [row tile][panel]
  int64_t steps;
};

DSMOE_HD void prefetch_tile(const char* weight) {
  for (int64_t line = 0; line < kTileBytes; line += 64)
    _mm_prefetch(weight + kPrefetchBytes + line, _MM_HINT_T0);
}

// Tile numbers are immediate operands: kRowTiles and kPanels pick the instructions, not the
// registers.
template <int kRowTiles, int kPanels>
void multiply_tiles(const TileArgs& args) {
  finish_writes(args.x[0]);
  _tile_loadd(0, args.acc[0][0], 64);
  if constexpr (kPanels > 1) _tile_loadd(1, args.acc[0][1], 64);
  if constexpr (kRowTiles > 1) _tile_loadd(2, args.acc[1][0], 64);
  if constexpr (kRowTiles > 1 && kPanels > 1) _tile_loadd(3, args.acc[1][1], 64);
  for (int64_t step = 0; step < args.steps; ++step) {
    const int64_t byte = step * kTileBytes;
    prefetch_tile(args.weight[0] + byte);
    _tile_loadd(4, args.x[0] + byte, 64);
    _tile_loadd(6, args.weight[0] + byte, 64);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kPanels > 1) {
      prefetch_tile(args.weight[1] + byte);
      _tile_loadd(7, args.weight[1] + byte, 64);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kRowTiles > 1) {
      _tile_loadd(5, args.x[1] + byte, 64);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (kPanels > 1) _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, args.acc[0][0], 64);
  if constexpr (kPanels > 1) _tile_stored(1, args.acc[0][1], 64);
  if constexpr (kRowTiles > 1) _tile_stored(2, args.acc[1][0], 64);
  if constexpr (kRowTiles > 1 && kPanels > 1) _tile_stored(3, args.acc[1][1], 64);
}

void multiply_tiles(int64_t row_tiles, int64_t panels, const TileArgs& args) {
  if (row_tiles > 1) {
    panels > 1 ? multiply_tiles<2, 2>(args) : multiply_tiles<2, 1>(args);
  } else {
    panels > 1 ? multiply_tiles<1, 2>(args) : multiply_tiles<1, 1>(args);
  }
}

// Every row tile times one pair of panels, over the steps of one piece of k.
struct PairOfPanels {
  const char* operand;    // [row tiles][all_steps] tiles
  int64_t first_step;     // of this piece within the operand
  int64_t all_steps;      // that the operand holds
  int64_t steps;          // of this piece
  const char* weight[2];  // plain panels at the first step
  float* acc[2];          // [row tiles][16][16]
  int64_t row_tiles;
  int64_t panels;
};

void multiply_pair(const PairOfPanels& pair) {
  for (int64_t t = 0; t < pair.row_tiles; t += 2) {
    const int64_t next = t + 1 < pair.row_tiles ? t + 1 : t;
    const auto tile = [&](int64_t row_tile) {
      return pair.operand + (row_tile * pair.all_steps + pair.first_step) * kTileBytes;
    };
    multiply_tiles(pair.row_tiles - t, pair.panels,
                   {.x = {tile(t), tile(next)},
                    .weight = {pair.weight[0], pair.weight[1]},
                    .acc = {{pair.acc[0] + t * 256, pair.acc[1] + t * 256},
                            {pair.acc[0] + next * 256, pair.acc[1] + next * 256}},
                    .steps = pair.steps});
  }
}

// Integers are decoded a piece of k at a time, which then serves all rows from the first cache.
constexpr int64_t kDecodeSteps = 16;
static_assert(2 * kDecodeSteps * kTileBytes <= cpu::kProductPanelFloats * 4);

void multiply_coded_pair(Coding coding, const PairOfPanels& pair, char* decoded) {
  const int64_t group_bytes =
      coding == Coding::int8 ? kGroupBytes<Coding::int8> : kGroupBytes<Coding::int4>;
  PairOfPanels piece = pair;
  for (int64_t step = 0; step < pair.steps; step += kDecodeSteps) {
    piece.first_step = pair.first_step + step;
    piece.steps = smaller(kDecodeSteps, pair.steps - step);
    for (int64_t p = 0; p < pair.panels; ++p) {
      char* out = decoded + p * kDecodeSteps * kTileBytes;
      decode_panel(coding, pair.weight[p] + step * group_bytes, piece.steps * kTileK,
                   reinterpret_cast<uint16_t*>(out));
      piece.weight[p] = out;
    }
    multiply_pair(piece);
  }
}

void multiply_chunk(const ProductBlock& args, const Chunk& chunk) {
  char* operand = reinterpret_cast<char*>(args.scratch);
  float* acc = args.scratch + kProductOperandFloats;
  char* decoded = reinterpret_cast<char*>(acc + kProductTileFloats);
  const int64_t tile_size = chunk.tile_rows * 16;
  const Streams streams = streams_of(args, chunk);
  float* second = acc + streams.steps * tile_size;
  start_chunk(args, chunk, streams, acc);
  const int64_t k_step = kProductOperandFloats * 4 / (chunk.tile_rows * 2) / kTileK * kTileK;
  for (int64_t k = 0; k < args.k; k += k_step) {
    const int64_t count = smaller(k_step, args.k - k);
    const int64_t steps = (count + kTileK - 1) / kTileK;
    pack_operand(args, chunk, k, count, operand);
    for (int64_t pair = 0; pair < streams.steps; ++pair) {
      const int64_t byte = pair * args.panel_bytes + panel_byte(args, k);
      const PairOfPanels panels{.operand = operand,
                                .first_step = 0,
                                .all_steps = steps,
                                .steps = steps,
                                .weight = {streams.base[0] + byte, streams.base[1] + byte},
                                .acc = {acc + pair * tile_size, second + pair * tile_size},
                                .row_tiles = chunk.tile_rows / kTileRows,
                                .panels = pair < streams.second ? 2 : 1};
      if (args.coding == Coding::plain) {
        multiply_pair(panels);
      } else {
        multiply_coded_pair(args.coding, panels, decoded);
      }
    }
  }
  finish_chunk(args, chunk, streams, acc);
}

}  // namespace

void product_bf16(const cpu::ProductBlock& args) {
  const TilesConfigured tiles;
  const int64_t rows = args.coding == Coding::plain ? kChunkRows : kCodedChunkRows;
  for_each_chunk(args, rows, kTileRows, [&](const Chunk& chunk) { multiply_chunk(args, chunk); });
}

}  // namespace dsmoe::kernels::DSMOE_TIER

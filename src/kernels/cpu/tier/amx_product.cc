// Rows times panels by AMX tiles. A panel of 32 k is a tile as it lies in memory, and TDPBF16PS
// adds in the order of the bf16 rule, so results equal those of the FMA chains bit for bit.
#include "kernels/cpu/tier/tile_products.h"

namespace dsmoe::kernels::DSMOE_TIER {
namespace {

constexpr int64_t kMostRows = 256;  // of a chunk: so many share the reading of a panel
static_assert(4 * kMostRows * 16 <= kProductTileFloats, "sums of two pairs of panels");
constexpr int64_t kSplitKRows = 64;  // of a chunk whose k does not fit the operand's memory

// Rows of a tile: fewer than 16 rows are one tile of so many.
int64_t rows_of_tile(const ProductBlock& args) {
  return smaller(kTileRows, args.row_end - args.row_begin);
}

// Operand rows as tiles: [row tiles][steps of k][rows of a tile][32 k], rows and k behind the end
// zero.
void pack_operand(const ProductBlock& args, const Chunk& chunk, int64_t k_begin, int64_t count,
                  char* tiles) {
  const int64_t steps = (count + kTileK - 1) / kTileK;
  const int64_t unit = rows_of_tile(args);
  for (int64_t r = 0; r < chunk.tile_rows; ++r) {
    char* target = tiles + (r / unit * steps * unit + r % unit) * 64;
    const char* x = r < chunk.rows ? row_of_x(args, chunk.row_begin + r, k_begin) : nullptr;
    for (int64_t k = 0; k < count; k += kTileK, target += unit * 64) {
      if (x == nullptr) {
        put_tile_row(target, nullptr, 0);
      } else {
        put_tile_row(target, x + k * 2, smaller(kTileK, count - k));
      }
    }
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

bool in_place(const ProductBlock& args, const Chunk& chunk) {
  return args.epilogue == Epilogue::assign && args.bias == nullptr &&
         chunk.rows == chunk.tile_rows && args.n % 16 == 0 &&
         (chunk.tile_rows <= kOnePassTiles * kTileRows || args.k <= kPieceSteps * kTileK) &&
         args.k > 0;
}

// How a chunk is worked on.
struct ChunkPlan {
  int64_t k_step;  // of one packed operand
  bool packed;     // it is there already
  bool again;      // the next chunk is of the same panels
  // Sums of a pair of panels are finished beside the products of the next pair, and their memory is
  // that of the next but one: a chunk may have any number of panels. Otherwise sums of all panels
  // stay until the chunk's end.
  bool pair_by_pair;
};

// Sums lie in the product's memory or, where nothing is left to do to them, at their place in
// `out`.
class ChunkSums {
 public:
  ChunkSums(const ProductBlock& args, const Chunk& chunk, const Streams& streams, bool pair_by_pair,
            float* acc)
      : placed(in_place(args, chunk)),
        args_(args),
        acc_(acc),
        out_(static_cast<float*>(args.out) + chunk.row_begin * args.out_stride +
             chunk.panel_begin * 16),
        panel_(chunk.tile_rows * 16),
        streams_(streams),
        pair_by_pair_(pair_by_pair) {}

  const bool placed;
  int64_t row() const { return placed ? args_.out_stride * 4 : 64; }  // bytes from row to row
  int64_t tile() const {  // floats from row tile to row tile
    return placed ? kTileRows * args_.out_stride : kTileSums;
  }
  float* at(int64_t pair, int64_t stream) const {
    if (placed) return out_ + (stream * streams_.steps + pair) * 16;
    return acc_ + panel_ * (pair_by_pair_ ? pair % 2 * 2 + stream : stream * streams_.steps + pair);
  }
  // The values with which the chains from k on begin.
  Sums from(int64_t k, int64_t pair, int64_t stream) const {
    float* to = at(pair, stream);
    if (k > 0) return {to, to};
    if (args_.start == nullptr) return {nullptr, to};
    return {placed ? args_.start + (to - static_cast<float*>(args_.out)) : to, to};
  }

 private:
  const ProductBlock& args_;
  float* acc_;
  float* out_;
  int64_t panel_;
  const Streams& streams_;
  bool pair_by_pair_;
};

// Some rows times some panels.
void multiply_chunk(const ProductBlock& args, const Chunk& chunk, const ChunkPlan& plan) {
  const Memory memory(args.scratch);
  const Streams streams = streams_of(args, chunk);
  const ChunkSums sums(args, chunk, streams, plan.pair_by_pair, memory.acc);
  const int64_t unit = rows_of_tile(args);
  const int64_t row_tiles = chunk.tile_rows / unit;
  const int64_t x_step = args.x_tiles ? kTileBytes : unit * 64;
  const int64_t second = args.epilogue == Epilogue::swiglu ? 0 : streams.steps;
  FinishRows before;
  if (!sums.placed && (args.start != nullptr || args.k == 0))
    start_chunk(args, chunk, streams, memory.acc);
  for (int64_t k = 0; k < args.k; k += plan.k_step) {
    const int64_t count = smaller(plan.k_step, args.k - k);
    const int64_t steps = (count + kTileK - 1) / kTileK;
    const char* operand = memory.operand;
    if (args.x_tiles) {
      operand = static_cast<const char*>(args.x) + chunk.row_begin / kTileRows * steps * kTileBytes;
    } else if (!plan.packed) {
      pack_operand(args, chunk, k, count, memory.operand);
    }
    for (int64_t pair = 0; pair < streams.steps; ++pair) {
      const int64_t panels = pair < streams.second ? 2 : 1;
      const int64_t next = pair + 1 == streams.steps && plan.again ? 0 : pair + 1;
      const int64_t byte = pair * args.panel_bytes + panel_byte(args, k);
      const int64_t next_byte = next * args.panel_bytes + panel_byte(args, k);
      before.spread_over(steps_beside(row_tiles, steps));
      multiply_pair(args.coding,
                    {.tiles = {.x = operand,
                               .x_step = x_step,
                               .x_stride = steps * x_step,
                               .sums = {sums.from(k, pair, 0), sums.from(k, pair, 1)},
                               .sum_row = sums.row(),
                               .sum_tile = sums.tile(),
                               .steps = steps,
                               .sums_in_memory = sums.placed,
                               .beside = &before},
                     .weight = {streams.base[0] + byte, streams.base[1] + byte},
                     .next = {streams.base[0] + next_byte, streams.base[1] + next_byte},
                     .row_tiles = row_tiles,
                     .panels = panels},
                    memory.decoded);
      if (!plan.pair_by_pair || sums.placed) continue;
      before.rest();
      const int64_t panel = chunk.panel_begin + pair;
      before = FinishRows(args, chunk, {panel, panel + second},
                          {sums.at(pair, 0), panels > 1 ? sums.at(pair, 1) : nullptr});
    }
  }
  before.rest();
  if (!plan.pair_by_pair && !sums.placed) finish_chunk(args, chunk, streams, memory.acc);
}

}  // namespace

// Rows are packed once and stay in the second cache while all panels pass them; with a k too long
// for that, pieces of k are packed for every group of panels.
void product_bf16(const ProductBlock& args) {
  const int64_t rows = args.row_end - args.row_begin;
  const int64_t tile_rows = rows_of_tile(args);
  const TilesConfigured tiles(tile_rows);
  const int64_t depth = larger(kTileK, (args.k + kTileK - 1) / kTileK * kTileK);
  const int64_t capacity = cpu::kTileOperandFloats * 4 / 2;  // values
  const int64_t fitting = capacity / depth / kTileRows * kTileRows;
  const bool whole = args.x_tiles || fitting >= 2 * kTileRows;
  const int64_t most = args.x_tiles ? kMostRows : whole ? smaller(fitting, kMostRows) : kSplitKRows;
  const int64_t chunks = (rows + most - 1) / most;
  const int64_t unit = rows > kOnePassTiles * kTileRows ? 2 * kTileRows : tile_rows;
  const int64_t chunk_rows = smaller(most, ((rows + chunks - 1) / chunks + unit - 1) / unit * unit);
  const int64_t k_step = whole ? depth : capacity / chunk_rows / kTileK * kTileK;
  const bool pair_by_pair =
      whole && args.coding == Coding::plain && args.start == nullptr && args.k > 0;
  const bool swiglu = args.epilogue == Epilogue::swiglu;
  const int64_t sums = chunk_rows * 16 * (swiglu ? 2 : 1);
  const int64_t group = pair_by_pair
                            ? args.panel_end - args.panel_begin
                            : kProductTileFloats / sums / (swiglu ? 1 : 2) * (swiglu ? 1 : 2);
  for (int64_t row = args.row_begin; row < args.row_end; row += chunk_rows) {
    for (int64_t panel = args.panel_begin; panel < args.panel_end; panel += group) {
      const int64_t here = smaller(chunk_rows, args.row_end - row);
      multiply_chunk(args,
                     {.row_begin = row,
                      .rows = here,
                      .panel_begin = panel,
                      .panels = smaller(group, args.panel_end - panel),
                      .tile_rows = (here + tile_rows - 1) / tile_rows * tile_rows},
                     {.k_step = k_step,
                      .packed = whole && panel > args.panel_begin,
                      .again = pair_by_pair && row + chunk_rows < args.row_end,
                      .pair_by_pair = pair_by_pair});
    }
  }
}

}  // namespace dsmoe::kernels::DSMOE_TIER

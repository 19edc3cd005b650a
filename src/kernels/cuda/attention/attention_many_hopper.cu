// Attention of many queries by Hopper's own instructions: 64 rows to each warpgroup, all keys in
// turn. Thread blocks stay and take tile after tile. While a block of values is multiplied the next
// block's scores become numerators.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "kernels/cuda/attention/attention_feed.cuh"
#include "kernels/cuda/product/product.h"
#include "kernels/kv_pages.h"

namespace dsmoe::kernels::cuda {
namespace {

using Steps = WarpgroupSteps;

constexpr int kSpan = static_cast<int>(kBlocksPerSpan);

template <int kDim>
constexpr int kRowBytes = 64 * kDim * 2;
// Keys and values in the ring; queries stay. Four groups find turns of themselves.
template <int kDim>
struct Shape
    : KernelShape<kDim, kDim == 64 ? 4 : 2, BlockRing<kDim == 64 ? 4 : 3, 2 * kRowBytes<kDim>, 1>,
                  kRowBytes<kDim>, 2> {
  static constexpr bool kTurns = kDim == 128;
};

struct Maps {
  CUtensorMap q;
  CUtensorMap keys;
  CUtensorMap values;
};

// Rows of one sequence and KV head, 64 to each group.
struct Tile {
  int head;  // of keys
  int sequence;
  int first_row;
  int num_rows;
  int first_token;
  int blocks[4];  // of keys that each group sees; none where it has no rows
  int seen[4];    // the last position all rows of a group see

  __device__ QueryTile queries() const { return {sequence, first_row, num_rows, first_token}; }
};

template <int kDim>
using Feed = TileFeed<Shape<kDim>, Tile>;
template <int kDim>
constexpr std::size_t kRunningBytes = kDim / 2 * (Shape<kDim>::kThreads - 128) * sizeof(float);
template <int kDim>
constexpr std::size_t kSharedBytes = (Feed<kDim>::kBytes + 15) / 16 * 16 + kRunningBytes<kDim>;

template <int kDim>
__device__ Tile find(const AttentionParameters& p, int place, int kv_head) {
  const QueryTile found = find_tile<Shape<kDim>::kRows>(p, place);
  Tile tile{.head = found.sequence < 0 ? -1 : kv_head,
            .sequence = found.sequence,
            .first_row = found.first_row,
            .num_rows = found.num_rows,
            .first_token = found.first_token};
  if (found.sequence < 0) return tile;
#pragma unroll
  for (int g = 0; g < Shape<kDim>::kGroups; ++g) {
    int last = -1;
    int least = 0x7fffffff;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = 64 * g + 32 * half + static_cast<int>(threadIdx.x % 32);
      if (row >= found.num_rows) continue;
      const int position = query_position(p, found, row);
      last = max(last, position);
      least = min(least, position);
    }
    tile.blocks[g] = (__reduce_max_sync(~0u, last) + 64) / 64;
    tile.seen[g] = __reduce_min_sync(~0u, least);
  }
  return tile;
}

template <int kDim>
__device__ void feed_tiles(const AttentionParameters& p, const Maps& maps, const Feed<kDim>& tiles,
                           int places, int32_t* counters) {
  const bool starts_copies = threadIdx.x % 32 == 0;
  constexpr int kBlockBytes = Shape<kDim>::kBlockBytes;
  const int group = p.heads / p.kv_heads;
  int fed = 0;
  // The last tiles of a sequence see the most keys and come first.
  const auto find_item = [&](int item) {
    return find<kDim>(p, places - 1 - item / p.kv_heads, item % p.kv_heads);
  };
  tiles.hand_out(places * p.kv_heads, counters, find_item, [&](int number, const Tile& tile) {
    int blocks = 0;
    uint32_t bytes = 0;
#pragma unroll
    for (int g = 0; g < Shape<kDim>::kGroups; ++g) {
      blocks = max(blocks, tile.blocks[g]);
      if (tile.blocks[g] > 0) bytes += kBlockBytes;
    }
    if (starts_copies) {
      const uint32_t full = tiles.full(number);
      barrier_expect(full, bytes);
#pragma unroll
      for (int g = 0; g < Shape<kDim>::kGroups; ++g) {
        if (tile.blocks[g] == 0) break;
        load_rows_of<kDim>(maps.q, tiles.rows(number, g), full, tile.head * group,
                           tile.first_token + (tile.first_row + 64 * g) / group);
      }
    }
    const int32_t* pages = p.page_table + static_cast<int64_t>(tile.sequence) * p.max_pages;
    for_each_page(pages, 0, blocks, [&](int, int page) {
      if (starts_copies) {
        tiles.ring.begin_fill(fed, 2 * kBlockBytes);
        const uint32_t stage = tiles.ring.stage(fed);
        const uint32_t full = tiles.ring.full(fed);
        load_page<kDim>(maps.keys, stage, full, page, p.kv_heads, tile.head);
        load_page<kDim>(maps.values, stage + kBlockBytes, full, page, p.kv_heads, tile.head);
      }
      ++fed;
    });
  });
}

// kExactScale: the scale is a power of two.
template <int kDim, bool kExactScale>
__device__ void multiply_tiles(const AttentionParameters& p, const Feed<kDim>& tiles, int group,
                               float* running) {
  const typename Shape<kDim>::Ring& ring = tiles.ring;
  int past = 0;  // blocks of earlier tiles
  for (int n = 0;; ++n) {
    const Tile& announced = tiles.wait(n);
    const int kv_head = announced.head;
    if (kv_head < 0) return;
    const QueryTile tile = announced.queries();
    const int own_blocks = announced.blocks[group];
    const int seen = announced.seen[group];
    int blocks = 0;
#pragma unroll
    for (int g = 0; g < Shape<kDim>::kGroups; ++g) blocks = max(blocks, announced.blocks[g]);
    if (own_blocks == 0) {
      tiles.release(n);
      tiles.pass_over(group, past, past + blocks);
      past += blocks;
      continue;
    }
    const typename Steps::template Rows<kDim> q{tile_descriptor(broadcast(tiles.rows(n, group)))};
    int position[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = 64 * group + own_row(h);
      position[h] = row < tile.num_rows ? query_position(p, tile, row) : -1;
    }
    float s[8][4];
    float o[kDim / 8][4] = {};
    uint32_t numerators[4][4];
    float c[2];
    RowSums span;
    RowSums all;
    const auto take_scores = [&](int block, bool whole) {
      if constexpr (!kExactScale) scale_scores(s, p.scale);
      if (!whole) hide_keys(s, 64 * block, position);
      span.template take<!kExactScale>(s, c, p.scale);
    };
    // The span `ended`, whose last block is `block`, joins the earlier ones.
    const auto join = [&](int block, const RowSums& ended, bool is_last) {
      join_span<kDim>(all, ended, o, running, Shape<kDim>::kThreads - 128, block < kSpan, is_last);
    };
    ring.wait(past);
    tiles.begin_turn(group);
    Steps::start();
    Steps::template score<kDim>(s, q, ring[past]);
    Steps::close();
    tiles.end_turn(group);
    Steps::template wait<0>();
    Steps::keep(s);
    bool is_full = false;                                       // the next block but one
    const int whole_blocks = min(own_blocks, (seen + 1) / 64);  // that every row sees all of
    take_scores(0, whole_blocks > 0);
    round_tile(numerators, s);
    Steps::keep(numerators);
    // Adds `block` while the next one's scores are made and taken in.
    const auto visit = [&](int block, auto next_is_whole) {
      const uint32_t next_keys = ring[past + block + 1];
      const uint32_t values = ring[past + block] + Shape<kDim>::kBlockBytes;
      if (!is_full) ring.wait(past + block + 1);
      tiles.begin_turn(group);
      Steps::start();
      Steps::template score<kDim>(s, q, next_keys);
      Steps::close();
      tiles.end_turn(group);
      Steps::template add<kDim>(o, numerators, values);
      Steps::close();
      is_full = ring.is_full(past + block + 2);
      const bool ends_span = block % kSpan == kSpan - 1;
      const RowSums before = span;
      if (ends_span) span = RowSums();
      Steps::template wait<1>();
      Steps::keep(s);
      take_scores(block + 1, next_is_whole.value);
      Steps::template wait<0>();
      Steps::keep(o);
      ring.release(past + block);
      if (ends_span) {
        join(block, before, false);
      } else {
        scale_sums<kDim>(o, c);
      }
      round_tile(numerators, s);
      Steps::keep(numerators);
    };
    int block = 0;
    for (; block + 1 < whole_blocks; ++block) visit(block, std::true_type{});
    for (; block + 1 < own_blocks; ++block) visit(block, std::false_type{});
    tiles.release(n);
    Steps::start();
    Steps::template add<kDim>(o, numerators,
                              ring[past + own_blocks - 1] + Shape<kDim>::kBlockBytes);
    Steps::close();
    Steps::template wait<0>();
    Steps::keep(o);
    ring.release(past + own_blocks - 1);
    tiles.pass_over(group, past + own_blocks, past + blocks);
    join(own_blocks - 1, span, true);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = 64 * group + own_row(half);
      if (row < tile.num_rows)
        write_output<kDim>(p, query_offset(p, tile, kv_head, row), o, all, half);
    }
    past += blocks;
  }
}

template <int kDim, bool kExactScale>
__global__ void __launch_bounds__(Shape<kDim>::kThreads, 1)
    many_hopper_kernel(const __grid_constant__ AttentionParameters p,
                       const __grid_constant__ Maps maps, int places, int32_t* counters) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto* running = reinterpret_cast<float*>(
      memory + kSharedBytes<kDim> - kRunningBytes<kDim>);  // [kDim / 2][threads that multiply]
  run_fed<Shape<kDim>, Tile>(
      [&](const auto& tiles) { feed_tiles<kDim>(p, maps, tiles, places, counters); },
      [&](const auto& tiles, int group) {
        multiply_tiles<kDim, kExactScale>(p, tiles, group, running);
      });
}

template <int kDim, bool kExactScale>
void launch_many(const Context& context, const AttentionParameters& p, int64_t tokens) {
  allow_shared_once<many_hopper_kernel<kDim, kExactScale>>(kSharedBytes<kDim>);
  const int group = p.heads / p.kv_heads;
  const Maps maps{.q = map_of_rows(p.q, tokens, p.heads, p.head_dim, group),
                  .keys = map_of_pages(p.keys, p.pages, p.kv_heads, p.head_dim),
                  .values = map_of_pages(p.values, p.pages, p.kv_heads, p.head_dim)};
  const int places = static_cast<int>(tokens * group / Shape<kDim>::kRows + p.sequences);
  launch(context,
         {.grid = dim3(static_cast<unsigned>(std::min(num_multiprocessors(), p.kv_heads * places))),
          .block = dim3(Shape<kDim>::kThreads),
          .shared_bytes = kSharedBytes<kDim>},
         many_hopper_kernel<kDim, kExactScale>, p, maps, places, next_counters(context));
}

}  // namespace

bool attention_fits_hopper(const AttentionParameters& p) {
  return is_hopper() && 64 % (p.heads / p.kv_heads) == 0;
}

void attention_of_many_hopper(const Context& context, const AttentionParameters& p,
                              int64_t tokens) {
  int exponent;
  if (p.head_dim > 64) return launch_many<128, false>(context, p, tokens);
  if (std::frexp(p.scale, &exponent) == 0.5f) return launch_many<64, true>(context, p, tokens);
  launch_many<64, false>(context, p, tokens);
}

}  // namespace dsmoe::kernels::cuda

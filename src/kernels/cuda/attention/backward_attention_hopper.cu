// Attention's backward pass by Hopper's own instructions: dq over key blocks, then dk and dv over
// the heads of a group and query blocks, in kernels of their own, so that every sum is one
// ascending chain and nothing is added by atomics. Thread blocks stay and take tile after tile;
// while one is finished the next one's rows and first blocks are on their way.
#include <algorithm>
#include <type_traits>

#include "kernels/cuda/attention/attention_feed.cuh"
#include "kernels/cuda/attention/backward_attention.cuh"
#include "kernels/cuda/product/product.h"

namespace dsmoe::kernels::cuda {
namespace {

using Steps = WarpgroupSteps;

template <int kDim>
constexpr int kRowBytes = 64 * kDim * 2;
// Keys and values in the ring; queries, d_out and out stay.
template <int kDim>
using QueryShape =
    KernelShape<kDim, kDim == 64 ? 3 : 2, BlockRing<kDim == 64 ? 4 : 3, 2 * kRowBytes<kDim>, 1>,
                3 * kRowBytes<kDim>, kDim == 64 ? 2 : 1>;
// Queries, d_out and their statistics in the ring; keys and values stay. Two groups: three have
// too few registers to load statistics before they are wanted.
constexpr int kStatisticsBytes = 64 * sizeof(float2);
template <int kDim>
using KeyShape = KernelShape<kDim, 2, BlockRing<kDim == 64 ? 6 : 2, 2 * kRowBytes<kDim> + 1024, 32>,
                             2 * kRowBytes<kDim>, 2>;

struct Maps {
  CUtensorMap q;
  CUtensorMap d_out;
  CUtensorMap out;
  CUtensorMap keys;
  CUtensorMap values;
};

// What the groups of a thread block work on: 64 positions each.
struct Tile {
  int head;  // of queries, or of keys
  int sequence;
  int first;
  int length;
  int first_token;
  int page[3];  // of each group's positions

  __device__ int groups(int most) const { return min(most, (length - first + 63) / 64); }
};

__device__ inline const int32_t* pages_of(const AttentionBackwardParameters& p, int sequence) {
  return p.page_table + static_cast<int64_t>(sequence) * p.max_pages;
}

// Tile `place` of head `head`.
template <class Shape>
__device__ Tile find_tile_of(const AttentionBackwardParameters& p, int place, int head) {
  const PositionTile found = find_positions<Shape::kRows>(p, place);
  Tile tile{.head = found.sequence < 0 ? -1 : head,
            .sequence = found.sequence,
            .first = found.first,
            .length = found.length,
            .first_token = found.first_token};
#pragma unroll
  for (int g = 0; g < Shape::kGroups; ++g) {
    if (found.sequence >= 0 && found.first + 64 * g < found.length)
      tile.page[g] = pages_of(p, found.sequence)[found.first / 64 + g];
  }
  return tile;
}

// Rows of sums as the gradients of head `head`: fp32, or rotated back where `position` is given and
// rounded.
template <int kDim, bool kRotated>
__device__ void write_gradients(const AttentionBackwardParameters& p,
                                const float (&sums)[kDim / 8][4], const Tile& tile, int first,
                                int head) {
  const int quarter = static_cast<int>(threadIdx.x % 4);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int position = first + own_row(h);
    if (position >= tile.length) continue;
    const int64_t token = tile.first_token + position;
    if (p.rounded == nullptr) {
      write_row<kDim>(sums, h, p.gradient_row(token, head), p.head_dim);
      continue;
    }
    bf16* row = static_cast<bf16*>(p.rounded) + p.gradient_offset(token, head) + 2 * quarter;
    const int64_t angle = static_cast<int64_t>(position) * (kDim / 2) + 2 * quarter;
#pragma unroll
    for (int j = 0; j < kDim / 16; ++j) {
      float a[2];
      float b[2];
      float2 cos = make_float2(0, 0);
      float2 sin = make_float2(0, 0);
      if constexpr (kRotated) {
        cos = *reinterpret_cast<const float2*>(p.cos + angle + 8 * j);
        sin = *reinterpret_cast<const float2*>(p.sin + angle + 8 * j);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        a[i] = sums[j][2 * h + i];
        b[i] = sums[j + kDim / 16][2 * h + i];
        if constexpr (kRotated) {
          const float c = i == 0 ? cos.x : cos.y;
          const float s = i == 0 ? sin.x : sin.y;
          const float rotated = fmaf(a[i], c, b[i] * s);
          b[i] = fmaf(b[i], c, -(a[i] * s));
          a[i] = rotated;
        }
      }
      *reinterpret_cast<uint32_t*>(row + 8 * j) = pack_bf16(a[0], a[1]);
      *reinterpret_cast<uint32_t*>(row + 8 * j + kDim / 2) = pack_bf16(b[0], b[1]);
    }
  }
}

// --- dq
template <int kDim>
__device__ void feed_queries(const AttentionBackwardParameters& p, const Maps& maps,
                             const TileFeed<QueryShape<kDim>, Tile>& tiles, int places,
                             int32_t* counters) {
  using Shape = QueryShape<kDim>;
  const bool starts_copies = threadIdx.x % 32 == 0;
  int fed = 0;
  // The last tiles of a sequence see the most keys and come first.
  const auto find = [&](int item) {
    return find_tile_of<Shape>(p, places - 1 - item / p.heads, item % p.heads);
  };
  tiles.hand_out(places * p.heads, counters, find, [&](int number, const Tile& tile) {
    const int groups = tile.groups(Shape::kGroups);
    if (starts_copies) {
      const uint32_t full = tiles.full(number);
      barrier_expect(full, static_cast<uint32_t>(groups * Shape::kOwnBytes));
      for (int g = 0; g < groups; ++g) {
        const uint32_t rows = tiles.rows(number, g);
        const int token = tile.first_token + tile.first + 64 * g;
        load_rows_of<kDim>(maps.q, rows, full, tile.head, token);
        load_rows_of<kDim>(maps.d_out, rows + Shape::kBlockBytes, full, tile.head, token);
        load_rows_of<kDim>(maps.out, rows + 2 * Shape::kBlockBytes, full, tile.head, token);
      }
    }
    const int kv_head = tile.head / (p.heads / p.kv_heads);
    const auto feed_page = [&](int, int page) {
      if (starts_copies) {
        tiles.ring.begin_fill(fed, 2 * Shape::kBlockBytes);
        const uint32_t stage = tiles.ring.stage(fed);
        const uint32_t full = tiles.ring.full(fed);
        load_page<kDim>(maps.keys, stage, full, page, p.kv_heads, kv_head);
        load_page<kDim>(maps.values, stage + Shape::kBlockBytes, full, page, p.kv_heads, kv_head);
      }
      ++fed;
    };
    for_each_page(pages_of(p, tile.sequence), 0, tile.first / 64 + groups, feed_page);
  });
}

// Finds for the thread's two rows the logarithm that the forward pass kept, and D = row_sum(d_out *
// out) times the scale, a quarter of the dimensions per lane. The keys' kernel reads them later.
// `rows`: d_out, then out.
template <int kDim>
__device__ void find_statistics(float2 (&statistics)[2], uint32_t rows,
                                const AttentionBackwardParameters& p, const Tile& tile, int first,
                                int page) {
  float log_sum[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int64_t token = tile.first_token + min(first + own_row(h), tile.length - 1);
    log_sum[h] = p.log_sums[token * p.heads + tile.head];
  }
  uint32_t d_out[kDim / 16][4];
  uint32_t out[kDim / 16][4];
  load_fragments<kDim>(d_out, rows);
  load_fragments<kDim>(out, rows + kRowBytes<kDim>);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float d = 0;
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
#pragma unroll
      for (int i = h; i < 4; i += 2) {
        const uint32_t a = out[step][i];
        const uint32_t b = d_out[step][i];
        d = fmaf(__uint_as_float(a << 16), __uint_as_float(b << 16), d);
        d = fmaf(__uint_as_float(a & 0xffff0000u), __uint_as_float(b & 0xffff0000u), d);
      }
    }
    statistics[h] = make_float2(log_sum[h], row_sum4(d) * p.scale);
    // Past the sequence's end: finite.
    if (threadIdx.x % 4 == 0) {
      p.tile_statistics[(static_cast<int64_t>(page) * p.heads + tile.head) * 64 + own_row(h)] =
          first + own_row(h) < tile.length ? statistics[h] : make_float2(0, 0);
    }
  }
}

template <int kDim>
__device__ void add_queries(const AttentionBackwardParameters& p,
                            const TileFeed<QueryShape<kDim>, Tile>& tiles, int group) {
  using Shape = QueryShape<kDim>;
  const typename Shape::Ring& ring = tiles.ring;
  int past = 0;  // blocks of earlier tiles
  for (int n = 0;; ++n) {
    const Tile tile = tiles.wait(n);
    if (tile.head < 0) return;
    const int first = tile.first + 64 * group;
    const int blocks = (min(tile.length, tile.first + Shape::kRows) + 63) / 64;
    const int own_blocks = first < tile.length ? first / 64 + 1 : 0;
    if (own_blocks > 0) {
      const uint32_t rows = broadcast(tiles.rows(n, group));
      float2 statistics[2];
      find_statistics<kDim>(statistics, rows + Shape::kBlockBytes, p, tile, first,
                            tiles.tile(n).page[group]);
      uint32_t q[kDim / 16][4];  // in registers, to spare shared memory; d_out is one too many
      load_fragments<kDim>(q, rows);
      const typename Steps::template Rows<kDim> d_out{tile_descriptor(rows + Shape::kBlockBytes)};
      const auto of = [&](int, int i) { return statistics[i / 2]; };
      float dq[kDim / 8][4] = {};
      float s[8][4];
      float dp[8][4];
      uint32_t rounded[4][4];  // ds
      // Multiplies ds of the block before, then scores and ds of this one while nothing else of
      // this warpgroup is under way at either end: otherwise the compiler waits after every
      // product.
      const auto visit = [&](int block, auto is_first, auto&& mask) {
        const uint32_t keys = ring[past + block];
        ring.wait(past + block);
        tiles.begin_turn(group);
        Steps::start();
        if constexpr (!is_first.value) {
          Steps::template add<kDim>(dq, rounded, ring[past + block - 1]);
          Steps::close();
        }
        Steps::template score<kDim>(s, q, keys);
        Steps::close();
        Steps::template score<kDim>(dp, d_out, keys + Shape::kBlockBytes);
        Steps::close();
        tiles.end_turn(group);
        Steps::template wait<1>();
        Steps::keep(s);
        if constexpr (!is_first.value) ring.release(past + block - 1);
        mask();
        probabilities(s, p.scale, of);
        Steps::template wait<0>();
        Steps::keep(dp);
        score_gradients(dp, s, p.scale, of);
        round_tile(rounded, dp);
      };
      const auto hide_later = [&] {
        hide(s, [&](int h, int column) { return column > own_row(h); });
      };
      const int last = own_blocks - 1;
      if (last == 0) {
        visit(0, std::true_type{}, hide_later);
      } else {
        visit(0, std::true_type{}, [] {});
        for (int block = 1; block < last; ++block) visit(block, std::false_type{}, [] {});
        visit(last, std::false_type{}, hide_later);
      }
      Steps::start();
      Steps::template add<kDim>(dq, rounded, ring[past + last]);
      Steps::close();
      Steps::template wait<0>();
      Steps::keep(dq);
      ring.release(past + last);
      tiles.release(n);
      tiles.pass_over(group, past + own_blocks, past + blocks);
      write_gradients<kDim, true>(p, dq, tile, first, tile.head);
    } else {
      tiles.release(n);
      tiles.pass_over(group, past, past + blocks);
    }
    past += blocks;
  }
}

// --- dk and dv
template <int kDim>
__device__ void feed_keys(const AttentionBackwardParameters& p, const Maps& maps,
                          const TileFeed<KeyShape<kDim>, Tile>& tiles, int places,
                          int32_t* counters) {
  using Shape = KeyShape<kDim>;
  const bool starts_copies = threadIdx.x % 32 == 0;
  int fed = 0;
  // The first tiles of a sequence are seen by the most queries.
  const auto find = [&](int item) {
    return find_tile_of<Shape>(p, item / p.kv_heads, item % p.kv_heads);
  };
  tiles.hand_out(places * p.kv_heads, counters, find, [&](int number, const Tile& tile) {
    const int groups = tile.groups(Shape::kGroups);
    const uint32_t own_full = tiles.full(number);
    if (starts_copies) {
      barrier_expect(own_full, static_cast<uint32_t>(groups * Shape::kOwnBytes));
#pragma unroll
      for (int g = 0; g < Shape::kGroups; ++g) {
        if (g >= groups) break;
        const uint32_t rows = tiles.rows(number, g);
        load_page<kDim>(maps.keys, rows, own_full, tile.page[g], p.kv_heads, tile.head);
        load_page<kDim>(maps.values, rows + Shape::kBlockBytes, own_full, tile.page[g], p.kv_heads,
                        tile.head);
      }
    }
    const int heads = p.heads / p.kv_heads;
    for (int head = tile.head * heads; head < (tile.head + 1) * heads; ++head) {
      const auto feed_page = [&](int block, int page) {
        if (starts_copies) {
          tiles.ring.begin_fill(fed, 2 * Shape::kBlockBytes + kStatisticsBytes);
          const uint32_t stage = tiles.ring.stage(fed);
          const uint32_t full = tiles.ring.full(fed);
          const int token = tile.first_token + 64 * block;
          load_rows_of<kDim>(maps.q, stage, full, head, token);
          load_rows_of<kDim>(maps.d_out, stage + Shape::kBlockBytes, full, head, token);
          bulk_load(stage + 2 * Shape::kBlockBytes,
                    p.tile_statistics + (static_cast<int64_t>(page) * p.heads + head) * 64,
                    kStatisticsBytes, full);
        }
        ++fed;
      };
      for_each_page(pages_of(p, tile.sequence), tile.first / 64, (tile.length + 63) / 64,
                    feed_page);
    }
  });
}

template <int kDim>
__device__ void add_keys(const AttentionBackwardParameters& p,
                         const TileFeed<KeyShape<kDim>, Tile>& tiles, int group) {
  using Shape = KeyShape<kDim>;
  const typename Shape::Ring& ring = tiles.ring;
  // Registers are enough for all products of a block at once, and for its statistics.
  constexpr bool kAtOnce = kDim == 64;
  const int heads = p.heads / p.kv_heads;
  int past = 0;  // blocks of earlier tiles and heads
  for (int n = 0;; ++n) {
    const Tile tile = tiles.wait(n);
    if (tile.head < 0) return;
    const int first = tile.first + 64 * group;
    const int blocks = (tile.length + 63) / 64 - tile.first / 64;  // of queries, per head
    if (first >= tile.length) {
      tiles.release(n);
      tiles.pass_over(group, past, past + heads * blocks);
      past += heads * blocks;
      continue;
    }
    const uint32_t rows = broadcast(tiles.rows(n, group));
    typename Steps::template Rows<kDim> k{tile_descriptor(rows)};
    typename Steps::template Rows<kDim> v{tile_descriptor(rows + Shape::kBlockBytes)};
    float dk[kDim / 8][4] = {};
    float dv[kDim / 8][4] = {};
    for (int head = 0; head < heads; ++head) {
      tiles.pass_over(group, past, past + group);  // earlier queries
      float s[8][4];
      float dp[8][4];
      uint32_t rounded[4][4];     // p of the block before, until
      uint32_t rounded_ds[4][4];  // the next one's scores are under way
      const auto add_before = [&](int block) {
        const uint32_t queries = ring[past + block - 1];
        Steps::template add<kDim>(dv, rounded, queries + Shape::kBlockBytes);
        Steps::template add<kDim>(dk, rounded_ds, queries);
        Steps::close();
      };
      const auto visit = [&](int block, auto is_first) {
        const uint32_t queries = ring[past + block];
        ring.wait(past + block);
        PairStatistics<kAtOnce> of(queries + 2 * Shape::kBlockBytes);
        tiles.begin_turn(group);
        Steps::start();
        if constexpr (!is_first.value) add_before(block);
        Steps::template score<kDim>(s, k, queries);
        Steps::close();
        if constexpr (kAtOnce) {
          Steps::template score<kDim>(dp, v, queries + Shape::kBlockBytes);
          Steps::close();
          tiles.end_turn(group);
          Steps::template wait<1>();
        } else {
          tiles.end_turn(group);
          Steps::template wait<0>();
        }
        Steps::keep(s);
        if constexpr (!is_first.value) ring.release(past + block - 1);
        if constexpr (!kAtOnce) {
          Steps::start();
          Steps::template score<kDim>(dp, v, queries + Shape::kBlockBytes);
          Steps::close();
        }
        const int first_query = tile.first + 64 * block;
        if (is_first.value || first_query + 64 > tile.length) {
          hide(s, [&](int h, int column) {
            return first + own_row(h) > first_query + column || first_query + column >= tile.length;
          });
        }
        probabilities(s, p.scale, of);
        Steps::template wait<0>();
        Steps::keep(dp);
        score_gradients(dp, s, p.scale, of);
        round_tile(rounded, s);
        round_tile(rounded_ds, dp);
      };
      visit(group, std::true_type{});
      for (int block = group + 1; block < blocks; ++block) visit(block, std::false_type{});
      Steps::start();
      add_before(blocks);
      Steps::template wait<0>();
      Steps::keep(dv);
      Steps::keep(dk);
      ring.release(past + blocks - 1);
      past += blocks;
    }
    tiles.release(n);
    write_gradients<kDim, true>(p, dk, tile, first, p.heads + tile.head);
    write_gradients<kDim, false>(p, dv, tile, first, p.heads + p.kv_heads + tile.head);
  }
}

template <int kDim>
__global__ void __launch_bounds__(QueryShape<kDim>::kThreads, 1)
    query_gradient_kernel(const __grid_constant__ AttentionBackwardParameters p,
                          const __grid_constant__ Maps maps, int places, int32_t* counters) {
  run_fed<QueryShape<kDim>, Tile>(
      [&](const auto& tiles) { feed_queries<kDim>(p, maps, tiles, places, counters); },
      [&](const auto& tiles, int group) { add_queries<kDim>(p, tiles, group); });
}
template <int kDim>
__global__ void __launch_bounds__(KeyShape<kDim>::kThreads, 1)
    key_gradient_kernel(const __grid_constant__ AttentionBackwardParameters p,
                        const __grid_constant__ Maps maps, int places, int32_t* counters) {
  run_fed<KeyShape<kDim>, Tile>(
      [&](const auto& tiles) { feed_keys<kDim>(p, maps, tiles, places, counters); },
      [&](const auto& tiles, int group) { add_keys<kDim>(p, tiles, group); });
}

template <class Shape, auto kKernel>
void launch_tiles(const Context& context, const AttentionBackwardParameters& p, const Maps& maps,
                  int64_t tokens, int heads) {
  constexpr std::size_t kBytes = TileFeed<Shape, Tile>::kBytes;
  allow_shared_once<kKernel>(kBytes);
  const int places = static_cast<int>(tokens / Shape::kRows + p.sequences);
  launch(context,
         {.grid = dim3(static_cast<unsigned>(std::min(num_multiprocessors(), heads * places))),
          .block = dim3(Shape::kThreads),
          .shared_bytes = kBytes},
         kKernel, p, maps, places, next_counters(context));
}

template <int kDim>
void launch_both(const Context& context, const AttentionBackwardParameters& p, int64_t tokens) {
  const auto rows = [&](const void* base) {
    return map_of_rows(base, tokens, p.heads, p.head_dim, 1);
  };
  const auto pages = [&](const void* base) {
    return map_of_pages(base, p.pages, p.kv_heads, p.head_dim);
  };
  const Maps maps{.q = rows(p.q),
                  .d_out = rows(p.d_out),
                  .out = rows(p.out),
                  .keys = pages(p.keys),
                  .values = pages(p.values)};
  launch_tiles<QueryShape<kDim>, query_gradient_kernel<kDim>>(context, p, maps, tokens, p.heads);
  launch_tiles<KeyShape<kDim>, key_gradient_kernel<kDim>>(context, p, maps, tokens, p.kv_heads);
}

}  // namespace

void attention_backward_hopper(const Context& context, const AttentionBackwardParameters& p,
                               int64_t tokens) {
  if (p.head_dim <= 64) return launch_both<64>(context, p, tokens);
  launch_both<128>(context, p, tokens);
}

}  // namespace dsmoe::kernels::cuda

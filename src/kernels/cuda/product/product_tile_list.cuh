// Which tile is whose: the tiles of all experts of a grouped product, in order.
#pragma once

#include "kernels/cuda/product/product_tile.cuh"

namespace dsmoe::kernels::cuda {

// Where the tiles of each expert begin, and its rows, in shared memory. Experts of the second
// family follow those of the first; each family's row offsets keep their closing entry, so expert g
// of family f has rows [first_row[g + f], first_row[g + f + 1]).
struct TileList {
  int32_t* first_tile;  // [experts + 1]
  int32_t* first_row;   // [experts + 2]
};

// One warp calls it. It lists the tiles of all experts in order. Without kWeightTiles only row
// tiles are counted.
template <class V, bool kWeightTiles = true>
__device__ void list_tiles(const ProductParameters& p, const TileList& list) {
  const int lane = threadIdx.x % 32;
  int base = 0;
  int group = 0;
  // All offsets first: their loads overlap.
  for (int f = 0; f < p.num_families; ++f) {
    const ProductFamily& family = p.family[f];
    int32_t* row = list.first_row + (f ? p.family[0].count + 1 : 0);
#pragma unroll 4
    for (int e = lane; e <= family.count; e += 32)
      row[e] = family.offsets ? family.offsets[e] : e > 0 ? family.rows : 0;
  }
  __syncwarp();
  for (int f = 0; f < p.num_families; ++f) {
    const ProductFamily& family = p.family[f];
    const int32_t* row = list.first_row + group + f;
    for (int e0 = 0; e0 < family.count; e0 += 32) {
      const int e = e0 + lane;
      int tiles = 0;
      if (e < family.count) {
        tiles = (row[e + 1] - row[e] + V::kRows - 1) / V::kRows *
                (kWeightTiles ? family.weight_tiles : 1);
      }
      int sum = tiles;
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(~0u, sum, step);
        if (lane >= step) sum += other;
      }
      if (e < family.count) list.first_tile[group + e] = base + sum - tiles;
      base += __shfl_sync(~0u, sum, 31);
    }
    group += family.count;
  }
  if (lane == 0) list.first_tile[group] = base;
  __syncwarp();
}

// Finds tile `idx`; `group` is where the last search ended (tiles come ascending).
template <class V>
__device__ Tile locate_tile(const ProductParameters& p, const TileList& list, int idx, int& group) {
  const int num_groups = p.family[0].count + (p.num_families > 1 ? p.family[1].count : 0);
  Tile tile{};
  if (idx >= list.first_tile[num_groups]) {
    tile.family = -1;
    return tile;
  }
  while (group + 1 < num_groups && idx >= list.first_tile[group + 1]) ++group;
  tile.family = group >= p.family[0].count ? 1 : 0;
  const int weight_tiles = p.family[tile.family].weight_tiles;
  tile.expert = tile.family ? group - p.family[0].count : group;
  const int inside = idx - list.first_tile[group];
  const int begin = list.first_row[group + tile.family];
  const int end = list.first_row[group + tile.family + 1];
  const bool rows_inside = p.family[tile.family].rows_inside;
  const int fast = rows_inside ? (end - begin + V::kRows - 1) / V::kRows : weight_tiles;
  const int row_tile = rows_inside ? inside % fast : inside / fast;
  const int weight_tile = rows_inside ? inside / fast : inside % fast;
  tile.first_row = begin + row_tile * V::kRows;
  tile.num_rows = min(V::kRows, end - tile.first_row);
  tile.first_weight = weight_tile * V::kWeights;
  return tile;
}

__device__ inline Tile read_tile(const Tile* slot) {
  Tile tile{};
  asm volatile("ld.shared.v4.s32 {%0,%1,%2,%3}, [%4];"
               : "=r"(tile.family), "=r"(tile.expert), "=r"(tile.first_row), "=r"(tile.num_rows)
               : "r"(shared_address(slot)));
  asm volatile("ld.shared.s32 %0, [%1];"
               : "=r"(tile.first_weight)
               : "r"(shared_address(slot) + 16));
  return tile;
}

}  // namespace dsmoe::kernels::cuda

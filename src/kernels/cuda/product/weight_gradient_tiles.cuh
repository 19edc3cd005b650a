// Weight gradients by tiles: what a launch holds, and where its tiles lie.
#pragma once

#include "kernels/cuda/device/ptx.cuh"

namespace dsmoe::kernels::cuda {

constexpr int kTileM = 256;  // two warpgroups of two m64 parts
constexpr int kTileN = 192;  // three boxes, and what the registers of two warpgroups hold
constexpr int kNarrowN = 128;
constexpr int kDepth = 32;          // rows of a stage
constexpr int kBox = kDepth * 128;  // bytes of as many rows x 64 columns
constexpr int kBoxesM = kTileM / 64;
constexpr int kBoxes = kBoxesM + kTileN / 64;
constexpr int kStages = 7;
constexpr int kMostSorted = 256;  // matrices

// One factor. Tiles begin at boxes, so that a stage of one is a single copy, in lines of 128 bytes
// where the width is a multiple of 64.
struct GradientSide {
  CUtensorMap blocks;  // [width / 64, rows, 64]
  CUtensorMap
      columns;    // [rows, width], box by box, for the tile that holds the rest of the columns
  int32_t whole;  // columns in blocks
  int32_t rest;

  __device__ bool is_whole(int first, int boxes) const {
    return rest == 0 || first + 64 * boxes <= whole;
  }
  __device__ void load(uint32_t target, bool whole_tile, int boxes, uint32_t barrier, int first,
                       int row) const {
    if (whole_tile) {
      tma_load_3d(target, &blocks, barrier, 0, row, first / 64);
    } else {
#pragma unroll 1
      for (int box = 0; box < boxes; ++box)
        tma_load_2d(target + box * kBox, &columns, barrier, first + 64 * box, row);
    }
  }
};

// One call's matrices: m is the width of dy and n that of x, or the other way round when swapped.
struct GradientProblem {
  GradientSide m_side;
  GradientSide n_side;
  const int32_t* sequence_offsets;
  const int32_t* slot_of_matrix;
  float* d_weight;  // [slots, m, n], or [slots, n, m] when swapped
  int32_t swapped;
  int32_t from_zero;  // d_weight is not read
  int32_t sequences;
  int32_t pitch;     // between rows of d_weight
  int64_t distance;  // between its matrices
  int32_t m;
  int32_t n;
  int32_t tile_n;  // kTileN or kNarrowN
  int32_t m_tiles;
  int32_t n_tiles;
  // Problems over the same rows form a group, whose tiles come matrix by matrix: what one of them
  // has read the next finds in L2.
  int32_t first_tile;   // of the group
  int32_t group_tiles;  // of all its problems, per matrix
  int32_t before;       // of those before this one, per matrix

  __device__ int slot(int matrix) const { return slot_of_matrix ? slot_of_matrix[matrix] : matrix; }
};

constexpr int kMostProblems = 6;
struct GradientParameters {
  GradientProblem problem[kMostProblems];
  int32_t* counters;
  int32_t num_problems;
  int32_t tiles;
  // A group of several matrices whose longest come first: begun last, one of them would be waited
  // for by all.
  int32_t sorted_from = -1;  // the group's first tile
  int32_t sorted_matrices;
  int32_t sorted_sequences;
  const int32_t* sorted_offsets;
};

// The place of a tile.
struct alignas(16) GradientPlace {
  int problem;  // -1: no more
  int matrix;
  int first_m;
  int first_n;
};

struct GradientShared {
  uint32_t stages;
  uint32_t loaded;  // by the copy engine
  uint32_t full;    // and zero past the end of a sequence
  uint32_t empty;
  GradientPlace* place;  // [stages]: the tile
  int32_t* count;        // [stages]: its rows; negative: -rows, the tile's last
  int32_t* rows;         // [matrices]
  int32_t* order;        // [matrices]: those with more rows first

  static constexpr int kBytes = kStages * (kBoxes * kBox + 44) + 2 * 4 * kMostSorted;

  __device__ explicit GradientShared(unsigned char* memory) {
    stages = shared_address(memory);
    unsigned char* rest = memory + kStages * kBoxes * kBox;
    place = reinterpret_cast<GradientPlace*>(rest);
    rest += sizeof(GradientPlace) * kStages;
    loaded = shared_address(rest);
    full = loaded + 8 * kStages;
    empty = full + 8 * kStages;
    count = reinterpret_cast<int32_t*>(rest + 24 * kStages);
    rows = count + kStages;
    order = rows + kMostSorted;
  }
  __device__ uint32_t m_side(int stage) const { return stages + stage * kBoxes * kBox; }
  __device__ uint32_t n_side(int stage) const { return m_side(stage) + kBoxesM * kBox; }
};
static_assert(GradientShared::kBytes <= 227 * 1024);

// All threads of a block call it; the result is seen after the next barrier.
__device__ inline void sort_matrices(const GradientParameters& p, const GradientShared& shared) {
  const int32_t* end = p.sorted_offsets + p.sorted_sequences;
  for (int i = threadIdx.x; i < p.sorted_matrices; i += blockDim.x) {
    const int first = i * (p.sorted_sequences + 1);
    shared.rows[i] = end[first] - p.sorted_offsets[first];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < p.sorted_matrices; i += blockDim.x) {
    const int own = shared.rows[i];
    int place = 0;
    for (int other = 0; other < p.sorted_matrices; ++other) {
      const int rows = shared.rows[other];
      place += rows > own || (rows == own && other < i);
    }
    shared.order[place] = i;
  }
}

__device__ inline GradientPlace place_of(const GradientParameters& p, const GradientShared& shared,
                                         int tile) {
  int problem = 0;
  while (problem + 1 < p.num_problems && tile >= p.problem[problem + 1].first_tile) ++problem;
  const int first_tile = p.problem[problem].first_tile;
  const int group_tiles = p.problem[problem].group_tiles;
  int matrix = (tile - first_tile) / group_tiles;
  if (first_tile == p.sorted_from) matrix = shared.order[matrix];
  const int place = (tile - first_tile) % group_tiles;
  while (place < p.problem[problem].before) --problem;
  const GradientProblem& of = p.problem[problem];
  const int inside = place - of.before;
  // The shorter side inside: tiles that run side by side share what they read. The narrow ones
  // last.
  const int whole_n = of.n / of.tile_n;
  if (of.n_tiles <= of.m_tiles && inside < of.m_tiles * whole_n)
    return {problem, matrix, inside / whole_n * kTileM, inside % whole_n * of.tile_n};
  return {problem, matrix, inside % of.m_tiles * kTileM, inside / of.m_tiles * of.tile_n};
}

}  // namespace dsmoe::kernels::cuda

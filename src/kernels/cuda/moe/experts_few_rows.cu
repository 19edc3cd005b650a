// Gate and up, SwiGLU, and down of all experts in one launch, for few rows per expert: the time is
// that of the weights' way through memory, and a launch of its own for down would begin only when
// the last tile of up has been multiplied, with nothing under way.
//
// All tiles of up come before those of down, and a counter hands them out, so a block that waits
// for the activations of an expert waits for blocks that run.
#include "kernels/cuda/moe/experts_few_rows.cuh"

#include "kernels/cuda/few_tokens/few_tokens_wait.cuh"
#include "kernels/cuda/product/product_variants.cuh"

namespace dsmoe::kernels::cuda {
namespace {

using V = Rows64;

constexpr int kSets = 64;  // launches that may be under way at once
struct DoneSets {
  DeviceArray<unsigned> memory{std::size_t{kSets} * kMaxExperts};
  unsigned turn = 0;
};

// Families 0 and 1 of a tile are those of up, 2 and 3 those of down.
__device__ const ProductFamily& family_of(const ExpertsParameters& p, const Tile& tile) {
  return tile.family < 2 ? p.up.family[tile.family] : p.down.family[tile.family - 2];
}
__device__ int group_of(const ExpertsParameters& p, const Tile& tile) {
  return tile.expert + (tile.family % 2 ? p.up.family[0].count : 0);
}

// The list holds row tiles, from which the tiles of either product follow.
struct BothTiles {
  const ExpertsParameters& p;
  const SharedLayout<V>& shared;
  int group = 0;
  int phase = 0;  // family of the last tile
  int begin = 0;  // first tile of that family
  int idx = 0;

  __device__ Tile take() {
    const Tile found = locate();
    if (found.family >= 0) idx = atomicAdd(p.up.counters, 1);
    return found;
  }
  __device__ Tile locate() {
    Tile tile{};
    for (;; ++phase) {
      if (phase == 4) {
        tile.family = -1;
        return tile;
      }
      if (phase % 2 >= p.up.num_families) continue;
      tile.family = phase;
      const ProductFamily& family = family_of(p, tile);
      const int first = phase % 2 ? p.up.family[0].count : 0;
      const int32_t* row_tiles = shared.list.first_tile + first;
      const int tiles = (row_tiles[family.count] - row_tiles[0]) * family.weight_tiles;
      if (idx - begin < tiles) {
        const int row_tile = row_tiles[0] + (idx - begin) / family.weight_tiles;
        while (row_tile >= row_tiles[group + 1]) ++group;
        const int32_t* row = shared.list.first_row + first + phase % 2 + group;
        tile.expert = group;
        tile.first_row = row[0] + (row_tile - row_tiles[group]) * V::kRows;
        tile.num_rows = min(V::kRows, row[1] - tile.first_row);
        tile.first_weight = (idx - begin) % family.weight_tiles * V::kWeights;
        return tile;
      }
      begin += tiles;
      group = 0;
    }
  }
  __device__ const ProductFamily& family(const Tile& tile) const { return family_of(p, tile); }
  __device__ void load_weights(const Tile& tile, int step, uint32_t target, uint32_t full) const {
    if (tile.family < 2) {
      cuda::load_weights<V, Epilogue::swiglu>(family(tile), tile, step, target, full);
    } else {
      cuda::load_weights<V, Epilogue::dense>(family(tile), tile, step, target, full);
    }
  }
  __device__ void wait_for_rows(const Tile& tile) const {
    if (tile.family < 2) return;
    if (threadIdx.x == 0) {
      const int group = group_of(p, tile);
      const int32_t* row_tiles = shared.list.first_tile + group;
      const int parts =
          (row_tiles[1] - row_tiles[0]) * p.up.family[tile.family - 2].weight_tiles * V::kConsumers;
      wait_until(p.done + group, static_cast<unsigned>(parts));
    }
    named_sync(1, 128);
  }
};

__device__ void consume(const ExpertsParameters& p, const SharedLayout<V>& shared, int consumer) {
  Ring ring;
  Ring slot;
  int turn = 0;
  const uint32_t staging = shared.staging + consumer * V::kStaging;
  while (true) {
    barrier_wait(shared.full + 8 * ring.stage, ring.parity);
    const Tile tile = read_tile(shared.tiles + slot.stage);
    barrier_arrive(shared.taken + 8 * slot.stage);
    slot.advance<V::kRing>();
    if (tile.family < 0) return;
    const ProductFamily& family = family_of(p, tile);
    const int first_weight = tile.first_weight + consumer * 64;
    float sums[V::kRows / 2];
#pragma unroll
    for (float& sum : sums) sum = 0;
    multiply<V, V::kRows, 1, V::kParts, true, false>(shared, segment_steps<V>(family), 0, consumer,
                                                     ring, sums);
    if (tile.family < 2) {
      store_swiglu<V, V::kRows>(family, tile, first_weight, consumer, staging, turn, sums);
      __threadfence();
      named_sync(2 + consumer, 128);
      if (threadIdx.x % 128 == 0) atomicAdd(p.done + group_of(p, tile), 1u);
    } else {
      store_rounded<V, V::kRows>(family, tile, first_weight, consumer, staging, turn, sums);
    }
  }
}

__global__ void __launch_bounds__(V::kThreads, 1)
    experts_kernel(const __grid_constant__ ExpertsParameters p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const SharedLayout<V> shared(memory);
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
  BothTiles tiles{p, shared};
  if (threadIdx.x == 0) {
    for (int f = 0; f < p.up.num_families; ++f) {
      prefetch_map(&p.up.family[f].weight);
      prefetch_map(&p.down.family[f].weight);
    }
    shared.init_barriers(129);
    tiles.idx = atomicAdd(p.up.counters, 1);
  }
  wait_for_previous_kernel();
  if (threadIdx.x < 32) list_tiles<V, false>(p.up, shared.list);
  __syncthreads();
  if (warpgroup > 0) return consume(p, shared, warpgroup - 1);

  produce_gathered<V>(tiles, shared);
  if (threadIdx.x == 0) {
    // The last block to come here leaves the counters as it found them: every block that waited
    // for an expert's rows has seen them, and every expert with rows was waited for.
    __threadfence();
    if (atomicInc(reinterpret_cast<unsigned*>(p.up.counters) + 1, gridDim.x - 1) == gridDim.x - 1) {
      p.up.counters[0] = 0;
      const int experts = p.up.family[0].count + (p.up.num_families > 1 ? p.up.family[1].count : 0);
      for (int e = 0; e < experts; ++e) p.done[e] = 0;
    }
  }
}

}  // namespace

void prepare_experts(const Context& context) { state_of<DoneSets>(context); }

void launch_experts_few_rows(const Context& context, ExpertsParameters& parameters) {
  auto& sets = state_of<DoneSets>(context);
  parameters.done = sets.memory.data() + sets.turn++ % kSets * kMaxExperts;
  allow_shared_once<experts_kernel>(V::kSharedBytes);
  launch(context,
         {.grid = dim3(static_cast<unsigned>(num_multiprocessors())),
          .block = dim3(V::kThreads),
          .shared_bytes = V::kSharedBytes},
         experts_kernel, parameters);
}

}  // namespace dsmoe::kernels::cuda

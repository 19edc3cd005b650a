// Gate and up, SwiGLU, and down of all experts in one launch, for few rows per expert: the time is
// that of the weights' way through memory, and a launch of its own for down would begin only when
// the last tile of up has been multiplied, with nothing under way.
//
// All tiles of up come before those of down, and a counter hands them out, so a block that waits
// for the activations of an expert waits for blocks that run.
#include "kernels/cuda/experts_few_rows.cuh"

#include <atomic>

#include "kernels/cuda/few_tokens_wait.cuh"
#include "kernels/cuda/product_variants.cuh"

namespace dsmoe::kernels::cuda {
namespace {

using V = Rows64;

constexpr int kSets = 64;  // launches that may be under way at once
__device__ unsigned done_memory[kSets][kMaxExperts];

// Families 0 and 1 of a tile are those of up, 2 and 3 those of down.
__device__ const ProductFamily& family_of(const ExpertsParameters& p, const Tile& tile) {
  return tile.family < 2 ? p.up.family[tile.family] : p.down.family[tile.family - 2];
}
__device__ int group_of(const ExpertsParameters& p, const Tile& tile) {
  return tile.expert + (tile.family % 2 ? p.up.family[0].count : 0);
}

// Tiles of the shared experts' up product. Beside routed experts they do not wait for the plan,
// which the kernel ahead makes: x is older, since the kernel before that one, the router, lets the
// next start only when its own predecessor has finished.
__device__ int early_tiles(const ExpertsParameters& p) {
  const ProductFamily& family = p.up.family[0];
  if (p.up.num_families < 2 || family.token_of_row || family.count > 1) return 0;
  return (family.rows + V::kRows - 1) / V::kRows * family.weight_tiles;
}

// The list holds row tiles, from which the tiles of either product follow.
struct BothTiles {
  const ExpertsParameters& p;
  const SharedLayout<V>& shared;
  uint32_t listed;  // barrier: the list is there
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
    if (idx < early_tiles(p)) {
      const ProductFamily& family = p.up.family[0];
      tile.first_row = idx / family.weight_tiles * V::kRows;
      tile.num_rows = min(V::kRows, family.rows - tile.first_row);
      tile.first_weight = idx % family.weight_tiles * V::kWeights;
      return tile;
    }
    barrier_wait(listed, 0);
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
    multiply<V, V::kRows, 1, true>(shared, segment_steps<V>(family), consumer, ring, sums);
    if (tile.family < 2) {
      store_swiglu<V, V::kRows>(family, tile, first_weight, consumer, staging, turn, sums);
      named_sync(2 + consumer, 128);
      if (threadIdx.x % 128 == 0) add_release(p.done + group_of(p, tile));
    } else {
      store_rounded<V, V::kRows>(family, tile, first_weight, consumer, staging, turn, sums);
    }
  }
}

// One warp more than the product has: it waits for the plan and lists the tiles.
constexpr int kThreads = V::kThreads + 32;
constexpr int kSharedBytes = V::kSharedBytes + 8;  // and a barrier
static_assert(V::kSharedBytes % 8 == 0 && kSharedBytes + 1024 <= 228 * 1024);

__global__ void __launch_bounds__(kThreads, 1)
    experts_kernel(const __grid_constant__ ExpertsParameters p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const SharedLayout<V> shared(memory);
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
  BothTiles tiles{p, shared, shared_address(memory) + V::kSharedBytes};
  if (threadIdx.x == 0) {
    for (int f = 0; f < p.up.num_families; ++f) {
      prefetch_map(&p.up.family[f].weight);
      prefetch_map(&p.down.family[f].weight);
    }
    barrier_init(tiles.listed, 32);
    shared.init_barriers(129);
    tiles.idx = atomicAdd(p.up.counters, 1);
  }
  __syncthreads();
  if (threadIdx.x >= V::kThreads) {
    wait_for_previous_kernel();
    list_tiles<V, false>(p.up, shared.list);
    return barrier_arrive(tiles.listed);
  }
  if (warpgroup > 0) return consume(p, shared, warpgroup - 1);

  produce_gathered<V>(tiles, shared);
  if (threadIdx.x == 0) {
    // The last block to come here leaves the counters as it found them: whoever waited for an
    // expert's rows has seen them, and every expert with rows was waited for.
    __threadfence();
    if (atomicInc(reinterpret_cast<unsigned*>(p.up.counters) + 1, gridDim.x - 1) == gridDim.x - 1) {
      p.up.counters[0] = 0;
      const int experts = p.up.family[0].count + (p.up.num_families > 1 ? p.up.family[1].count : 0);
      for (int e = 0; e < experts; ++e) p.done[e] = 0;
    }
  }
}

}  // namespace

void launch_experts_few_rows(const Context& context, ExpertsParameters& parameters) {
  static unsigned* const memory = [] {
    void* pointer = nullptr;
    check(cudaGetSymbolAddress(&pointer, done_memory), "counters of the experts");
    return static_cast<unsigned*>(pointer);
  }();
  static std::atomic<unsigned> turn{0};
  parameters.done = memory + static_cast<std::size_t>(turn.fetch_add(1) % kSets) * kMaxExperts;
  static const bool once = (allow_shared(experts_kernel, kSharedBytes), true);
  (void)once;
  launch(context,
         {.grid = dim3(static_cast<unsigned>(num_multiprocessors())),
          .block = dim3(kThreads),
          .shared_bytes = kSharedBytes},
         experts_kernel, parameters);
}

}  // namespace dsmoe::kernels::cuda

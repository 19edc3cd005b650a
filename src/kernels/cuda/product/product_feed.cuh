// How the grouped product is fed: a ring of stages in shared memory, which a producer warpgroup
// fills with weights by the copy engine and with rows of x by it, or gathered row by row.
#pragma once

#include "kernels/cuda/product/product_store_rope.cuh"
#include "kernels/cuda/product/product_tile_list.cuh"

namespace dsmoe::kernels::cuda {

struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  template <int kStages>
  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  // `steps` at once.
  template <int kStages>
  __device__ void pass(int steps) {
    const int reached = stage + steps;
    parity ^= reached / kStages % 2;
    stage = reached % kStages;
  }
};

template <class V>
struct SharedLayout {
  uint32_t stages;
  uint32_t staging;
  TileList list;
  Tile* tiles;
  uint32_t full;
  uint32_t empty;
  uint32_t taken;  // per tile slot: every consumer thread has read it
  // Where consumers take tiles in turn:
  uint32_t written;  // per tile slot: the tile is there
  uint32_t go;       // per consumer: the one before has seen all stages of its tile

  __device__ explicit SharedLayout(unsigned char* memory) {
    stages = shared_address(memory);
    staging = stages + V::kStages * V::kStageBytes;
    unsigned char* rest = memory + V::kStages * V::kStageBytes + V::kConsumers * V::kStaging;
    tiles = reinterpret_cast<Tile*>(rest);
    rest += V::kRing * sizeof(Tile);
    full = shared_address(rest);
    empty = full + 8 * V::kStages;
    taken = empty + 8 * V::kStages;
    written = taken + 8 * V::kRing;
    go = written + 8 * V::kRing;
    list.first_tile = reinterpret_cast<int32_t*>(rest + 16 * V::kStages + 8 * V::kRing +
                                                 (V::kInTurn ? 8 * (V::kRing + V::kConsumers) : 0));
    list.first_row = list.first_tile + kMaxExperts + 1;
  }
  // One thread calls it. `loaders`: arrivals that make a stage full.
  __device__ void init_barriers(uint32_t loaders) const {
    for (int s = 0; s < V::kStages; ++s) {
      barrier_init(full + 8 * s, loaders);
      barrier_init(empty + 8 * s, 4 * V::kSharing);
    }
    for (int s = 0; s < V::kRing; ++s) {
      barrier_init(taken + 8 * s, 128 * V::kConsumers);
      if constexpr (V::kInTurn) barrier_init(written + 8 * s, 1);
    }
    for (int c = 0; V::kInTurn && c < V::kConsumers; ++c) barrier_init(go + 8 * c, 4);
    barrier_init_fence();
  }
  __device__ uint32_t weights(int stage) const { return stages + stage * V::kStageBytes; }
  __device__ uint32_t rows(int stage) const {
    return weights(stage) + V::kBlocks * V::kWeightBlock;
  }
};

// Whether a sum may go on with second matrices: input gradients do.
template <class V, Epilogue kEpilogue>
constexpr bool kHasSegments = bool(V::kTransposed) && kEpilogue == Epilogue::round;

// Stages of one segment of the sum, and of all.
template <class V>
__device__ int segment_steps(const ProductFamily& family) {
  return (family.k + 64 * V::kBlocks - 1) / (64 * V::kBlocks);
}
template <class V, Epilogue kEpilogue>
__device__ int sum_steps(const ProductFamily& family) {
  return segment_steps<V>(family) * (kHasSegments<V, kEpilogue> ? family.segments : 1);
}

// Where a stage's values come from.
template <class V, Epilogue kEpilogue>
struct Source {
  bool second = false;
  int step;  // within the segment
  __device__ Source(int overall, int per_segment) : step(overall) {
    if constexpr (kHasSegments<V, kEpilogue>) {
      second = overall >= per_segment;
      if (second) step = overall - per_segment;
    }
  }
};

template <class V, Epilogue kEpilogue>
__device__ void load_weights(const ProductFamily& family, const Tile& tile, int overall,
                             uint32_t target, uint32_t barrier) {
  const Source<V, kEpilogue> source(overall, segment_steps<V>(family));
  const CUtensorMap* map = source.second ? &family.second_weight : &family.weight;
#pragma unroll
  for (int b = 0; b < V::kBlocks; ++b) {
    const int k = (source.step * V::kBlocks + b) * 64;
    if constexpr (V::kTransposed) {
      const int first = family.first_output + tile.first_weight;
      if (family.in_blocks) {
        tma_load_4d(target + b * V::kWeightBlock, map, barrier, 0, k, first / 64, tile.expert);
      } else {
#pragma unroll
        for (int part = 0; part < V::kWeights / 64; ++part) {
          tma_load_3d(target + b * V::kWeightBlock + part * 64 * 128, map, barrier,
                      first + 64 * part, k, tile.expert);
        }
      }
    } else if constexpr (kEpilogue == Epilogue::swiglu) {
      tma_load_5d(target + b * V::kWeightBlock, &family.weight, barrier, k, 0, 0,
                  tile.first_weight / 16, tile.expert);
    } else if constexpr (kEpilogue == Epilogue::rope) {
#pragma unroll
      for (int part = 0; part < V::kWeights / 64; ++part) {
        const RopePiece piece(family.rope, tile.first_weight + 64 * part);
        tma_load_5d(target + b * V::kWeightBlock + part * 64 * 128, &family.weight, barrier, k, 0,
                    0, piece.first / 8, piece.head);
      }
    } else {
      tma_load_3d(target + b * V::kWeightBlock, map, barrier, k,
                  family.first_output + tile.first_weight, tile.expert);
    }
  }
}

// One thread feeds the ring: the rows of x lie in order.
template <class V, Epilogue kEpilogue>
struct ContiguousProducer {
  const ProductParameters& p;
  const SharedLayout<V>& shared;
  Ring ring;
  Ring slot;
  int group = 0;
  int idx = static_cast<int>(blockIdx.x);
  int ahead = 0;  // stages of the first tile whose weights are under way

  __device__ void load_rows(const ProductFamily& family, const Tile& tile, int step, int stage,
                            int boxes) {
    const Source<V, kEpilogue> source(step, segment_steps<V>(family));
    // One thread makes all copies: a stage of a whole tile takes as few as it can.
    if (boxes == V::kRows / V::kRowBox) {
      const CUtensorMap* map = source.second ? &family.second_x_tile : &family.x_tile;
#pragma unroll
      for (int b = 0; b < V::kBlocks; ++b) {
        tma_load_2d(shared.rows(stage) + b * V::kRowBlock, map, shared.full + 8 * stage,
                    (source.step * V::kBlocks + b) * 64, tile.first_row);
      }
      return;
    }
    const CUtensorMap* map = source.second ? &family.second_x : &family.x;
    for (int box = 0; box < boxes; ++box) {
#pragma unroll
      for (int b = 0; b < V::kBlocks; ++b) {
        tma_load_2d(shared.rows(stage) + b * V::kRowBlock + box * V::kRowBox * 128, map,
                    shared.full + 8 * stage, (source.step * V::kBlocks + b) * 64,
                    tile.first_row + box * V::kRowBox);
      }
    }
  }
  __device__ static int boxes_of(const Tile& tile) {
    return (tile.num_rows + V::kRowBox - 1) / V::kRowBox;
  }
  __device__ void load_stage_weights(const ProductFamily& family, const Tile& tile, int step,
                                     int stage) {
    const uint32_t full = shared.full + 8 * stage;
    barrier_expect(full, V::kBlocks * (V::kWeightBlock + boxes_of(tile) * V::kRowBox * 128));
    load_weights<V, kEpilogue>(family, tile, step, shared.weights(stage), full);
  }

  // While the kernel ahead still runs: weights are not its business. Only when the offsets are
  // final.
  __device__ void start_early() {
    int start = 0;
    const Tile tile = locate_tile<V>(p, shared.list, idx, start);
    if (tile.family < 0) return;
    shared.tiles[0] = tile;
    const ProductFamily& family = p.family[tile.family];
    ahead = min(V::kStages, sum_steps<V, kEpilogue>(family));
    for (int step = 0; step < ahead; ++step) load_stage_weights(family, tile, step, step);
  }

  __device__ void run() {
    ring.parity = 1;
    slot.parity = 1;
    while (true) {
      const Tile tile = locate_tile<V>(p, shared.list, idx, group);
      barrier_wait(shared.taken + 8 * slot.stage, slot.parity);
      if (ahead == 0) shared.tiles[slot.stage] = tile;
      if constexpr (V::kInTurn) barrier_arrive(shared.written + 8 * slot.stage);
      slot.template advance<V::kRing>();
      if (tile.family < 0) {
        barrier_wait(shared.empty + 8 * ring.stage, ring.parity);
        let_next_kernel_start();
        barrier_arrive(shared.full + 8 * ring.stage);
        return;
      }
      idx = static_cast<int>(gridDim.x) + atomicAdd(p.counters, 1);
      const ProductFamily& family = p.family[tile.family];
      const int steps = sum_steps<V, kEpilogue>(family);
      for (int step = 0; step < steps; ++step) {
        barrier_wait(shared.empty + 8 * ring.stage, ring.parity);
        if (ahead > 0) {
          --ahead;
        } else {
          load_stage_weights(family, tile, step, ring.stage);
        }
        load_rows(family, tile, step, ring.stage, boxes_of(tile));
        ring.template advance<V::kStages>();
      }
    }
  }
};

// The tiles of one product, as a gathering producer takes them.
template <class V, Epilogue kEpilogue>
struct GatheredTiles {
  const ProductParameters& p;
  const SharedLayout<V>& shared;
  int group = 0;
  int idx = static_cast<int>(blockIdx.x);

  // One thread calls it.
  __device__ Tile take() {
    const Tile found = locate_tile<V>(p, shared.list, idx, group);
    if (found.family >= 0) idx = static_cast<int>(gridDim.x) + atomicAdd(p.counters, 1);
    return found;
  }
  __device__ const ProductFamily& family(const Tile& tile) const { return p.family[tile.family]; }
  __device__ void load_weights(const Tile& tile, int step, uint32_t target, uint32_t full) const {
    cuda::load_weights<V, kEpilogue>(family(tile), tile, step, target, full);
  }
  // All threads call it before the tile's rows of x are read.
  __device__ void wait_for_rows(const Tile&) const {}
};

// The whole warpgroup feeds the ring: each row of x comes from the token the plan names, eight
// threads to a row. The next tile and its tokens are looked up during the first step of the current
// one, so that the ring never waits for them.
template <class V, class Tiles>
__device__ void produce_gathered(Tiles tiles, const SharedLayout<V>& shared) {
  constexpr int kPerThread = (V::kRows + 15) / 16;
  const int thread = threadIdx.x % 128;
  const int line = thread / 8;
  const int chunk = thread % 8;  // 16 bytes of a row's 128
  const uint32_t place = line * 128 + ((chunk ^ (line % 8)) * 16);
  Ring ring;
  Ring slot;
  ring.parity = 1;
  slot.parity = 1;
  Tile tile;
  uint32_t offset[kPerThread];  // of this thread's rows in x, in units of 16 bytes
  uint32_t next_offset[kPerThread];
  Tile next;
  const auto look_ahead = [&] {
    if (thread == 0) {
      const Tile found = tiles.take();
      barrier_wait(shared.taken + 8 * slot.stage, slot.parity);
      shared.tiles[slot.stage] = found;
      if constexpr (V::kInTurn) barrier_arrive(shared.written + 8 * slot.stage);
    }
    named_sync(1, 128);
    next = read_tile(shared.tiles + slot.stage);
    slot.advance<V::kRing>();
    if (next.family < 0) return;
    const ProductFamily& family = tiles.family(next);
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int row = next.first_row + min(line + 16 * i, next.num_rows - 1);
      next_offset[i] = static_cast<uint32_t>(family.token_of_row ? family.token_of_row[row] : row) *
                       (family.k / 8);
    }
  };
  look_ahead();
  while (next.family >= 0) {
    tile = next;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) offset[i] = next_offset[i];
    const ProductFamily& family = tiles.family(tile);
    const int steps = (family.k + 64 * V::kBlocks - 1) / (64 * V::kBlocks);
    const unsigned char* x = static_cast<const unsigned char*>(family.x_rows) + chunk * 16;
    tiles.wait_for_rows(tile);
    for (int step = 0; step < steps; ++step) {
      const uint32_t full = shared.full + 8 * ring.stage;
      barrier_wait(shared.empty + 8 * ring.stage, ring.parity);
      if (thread == 0) {
        barrier_expect(full, V::kBlocks * V::kWeightBlock);
        tiles.load_weights(tile, step, shared.weights(ring.stage), full);
      }
#pragma unroll
      for (int b = 0; b < V::kBlocks; ++b) {
        const int block = step * V::kBlocks + b;
        const int bytes = block * 64 + chunk * 8 < family.k ? 16 : 0;
        const unsigned char* source = x + static_cast<int64_t>(bytes ? block : 0) * 128;
        const uint32_t base = shared.rows(ring.stage) + b * V::kRowBlock + place;
#pragma unroll
        for (int i = 0; i < kPerThread; ++i) {
          if (line + 16 * i < tile.num_rows) {
            copy_async_16(base + i * 2048, source + static_cast<uint64_t>(offset[i]) * 16, bytes);
          }
        }
      }
      copy_async_arrive(full);
      ring.advance<V::kStages>();
      if (step == 0) look_ahead();
    }
  }
  if (thread == 0) let_next_kernel_start();
  barrier_wait(shared.empty + 8 * ring.stage, ring.parity);
  barrier_arrive(shared.full + 8 * ring.stage);
  if (thread == 0) barrier_arrive(shared.full + 8 * ring.stage);
}

}  // namespace dsmoe::kernels::cuda

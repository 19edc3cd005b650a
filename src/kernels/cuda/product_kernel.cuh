// The persistent kernel of the grouped product.
//
// Weights are always the m64 side of wgmma and rows of x the n side, so that a tile may hold any
// number of rows down to eight without wasting the weight side. The sum over k is one ascending
// chain of k16 steps in every variant (docs/numerics.md), so all variants give the same bits. One
// producer warpgroup fills a ring of stages (weights by the copy engine; x by it, or gathered row
// by row), the others multiply. Input gradients read column-major weights as they lie: wgmma takes
// its m64 side transposed. Tiles are handed out by a counter because the last tile of an
// expert is often short.
#pragma once

#include "kernels/cuda/product_store.cuh"
#include "kernels/cuda/product_store_backward.cuh"
#include "kernels/cuda/product_store_rope.cuh"
#include "kernels/cuda/product_tile_list.cuh"
#include "kernels/cuda/wgmma.cuh"

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
  // By one thread. `loaders`: arrivals that make a stage full.
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

// One thread feeds the ring: x rows lie one behind the other.
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

  // By one thread.
  __device__ Tile take() {
    const Tile found = locate_tile<V>(p, shared.list, idx, group);
    if (found.family >= 0) idx = static_cast<int>(gridDim.x) + atomicAdd(p.counters, 1);
    return found;
  }
  __device__ const ProductFamily& family(const Tile& tile) const { return p.family[tile.family]; }
  __device__ void load_weights(const Tile& tile, int step, uint32_t target, uint32_t full) const {
    cuda::load_weights<V, kEpilogue>(family(tile), tile, step, target, full);
  }
  // By all threads: before the tile's rows of x are read.
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

// Multiplies all steps of one tile, kN columns at a time, kCount times, kParts m64 parts of
// weights. `member`: which of the consumers that share the tile. `half_every`: so many stages, from
// the first on, hold nothing past their first 32 k in the last of them; 0: none does.
template <class V, int kN, int kCount, int kParts, bool kGathered, bool kHalves>
__device__ void multiply(const SharedLayout<V>& shared, int steps, int half_every, int member,
                         Ring& ring, float* sums) {
  int before = -1;
  int until_half = half_every;
  for (int step = 0; step < steps; ++step) {
    barrier_wait(shared.full + 8 * ring.stage, ring.parity);
    // Gathered rows were written by ordinary copies of other threads, which the barrier has ordered
    // before this fence.
    if constexpr (kGathered) fence_async_proxy();
    const auto multiply_stage = [&]<int kSteps>() {
      wgmma_fence();
#pragma unroll
      for (int b = 0; b < V::kBlocks; ++b) {
        const uint32_t weights =
            shared.weights(ring.stage) + b * V::kWeightBlock + member * V::kParts * 64 * 128;
        const uint64_t a =
            V::kTransposed ? transposed_descriptor(weights) : tile_descriptor(weights);
        constexpr int kNext = V::kTransposed ? 128 : 2;  // to the next k16 step
        const uint64_t x = tile_descriptor(shared.rows(ring.stage) + b * V::kRowBlock);
#pragma unroll
        for (int k16 = 0; k16 < kSteps; ++k16) {
#pragma unroll
          for (int part = 0; part < kParts; ++part) {
#pragma unroll
            for (int c = 0; c < kCount; ++c) {
              wgmma_step<kN, V::kTransposed>(sums + (part * kCount + c) * (kN / 2),
                                             a + kNext * k16 + part * (64 * 128 / 16),
                                             x + 2 * k16 + c * (kN * 128 / 16));
            }
          }
        }
      }
      wgmma_commit();
    };
    // A step under a condition would be waited for at once: each way has all of its steps.
    if (kHalves && --until_half == 0) {
      until_half = half_every;
      multiply_stage.template operator()<2>();
    } else {
      multiply_stage.template operator()<4>();
    }
    wgmma_wait<1>();
    __syncwarp();
    if (before >= 0 && threadIdx.x % 32 == 0) barrier_arrive(shared.empty + 8 * before);
    before = ring.stage;
    ring.advance<V::kStages>();
  }
  wgmma_wait<0>();
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier_arrive(shared.empty + 8 * before);
}

// What a consumer does with a tile whose weights end before its part.
template <class V>
__device__ void pass_over(const SharedLayout<V>& shared, int steps, Ring& ring) {
  for (int step = 0; step < steps; ++step) {
    barrier_wait(shared.full + 8 * ring.stage, ring.parity);
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(shared.empty + 8 * ring.stage);
    ring.advance<V::kStages>();
  }
}

template <class V, Epilogue kEpilogue, bool kGathered>
__device__ void consume(const ProductParameters& p, const SharedLayout<V>& shared, int consumer) {
  Ring ring;
  Ring slot;
  int turn = 0;
  const int member = V::kInTurn ? 0 : consumer;
  uint32_t go_parity = 0;
  const uint32_t staging = shared.staging + consumer * V::kStaging;
  for (int count = 0;; ++count) {
    if constexpr (V::kInTurn) {
      barrier_wait(shared.written + 8 * slot.stage, slot.parity);
    } else {
      barrier_wait(shared.full + 8 * ring.stage, ring.parity);
    }
    const Tile tile = read_tile(shared.tiles + slot.stage);
    barrier_arrive(shared.taken + 8 * slot.stage);
    slot.advance<V::kRing>();
    if (tile.family < 0) {
      constexpr bool kCopied = kEpilogue == Epilogue::dense || kEpilogue == Epilogue::round;
      if (kCopied && threadIdx.x % 128 == 0) tma_store_wait_all();
      return;
    }
    const ProductFamily& family = p.family[tile.family];
    const int steps = sum_steps<V, kEpilogue>(family);
    if (V::kInTurn && count % V::kConsumers != consumer) {
      ring.pass<V::kStages>(steps);
      continue;
    }
    // A stage of this tile cannot be told from the one before in the same place until the other
    // consumer has seen that.
    if (V::kInTurn && count > 0) {
      barrier_wait(shared.go + 8 * consumer, go_parity);
      go_parity ^= 1;
    }
    if constexpr (kEpilogue == Epilogue::swiglu_backward)
      prefetch_swiglu_backward<V>(family, tile, member);
    if constexpr (kEpilogue == Epilogue::dense && V::kRows >= 128) {
      if (p.accumulate) prefetch_dense_added<V>(family, tile, member);
    }
    // Stages hold 64 k, experts often an odd number of 32.
    constexpr bool kHalves = kEpilogue == Epilogue::round && V::kRows >= 128 && V::kBlocks == 1;
    const int half_every =
        kHalves && 0 < family.k % 64 && family.k % 64 <= 32 ? segment_steps<V>(family) : 0;
    // A short tile multiplies only the chunks that hold rows. Each way has its own sums: shared
    // ones would be moved between registers, and the compiler would then wait after every step.
    const auto run = [&]<int kN, int kCount, int kParts = V::kParts>() {
      float sums[kParts * kN * kCount / 2];
#pragma unroll
      for (float& sum : sums) sum = 0;
      RopePlaces<kEpilogue == Epilogue::rope ? kN * kCount : 0> places;
      if constexpr (kEpilogue == Epilogue::rope) places.load(family.rope, tile);
      multiply<V, kN, kCount, kParts, kGathered, kHalves>(shared, steps, half_every, member, ring,
                                                          sums);
      if (V::kInTurn && threadIdx.x % 32 == 0)
        barrier_arrive(shared.go + 8 * ((consumer + 1) % V::kConsumers));
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const float* own = sums + part * (kN * kCount / 2);
        const int first_weight = tile.first_weight + (member * V::kParts + part) * 64;
        if constexpr (kEpilogue == Epilogue::dense) {
          if constexpr (V::kRows >= 128) {
            if (p.accumulate) {
              store_dense_added<V, kN * kCount>(family, tile, first_weight, consumer, staging, own);
            } else {
              store_dense_copied<V, kN * kCount>(family, tile, first_weight, consumer, staging,
                                                 turn, own);
            }
          } else {
            store_dense<kN * kCount>(p, family, tile, first_weight, own);
          }
        } else if constexpr (kEpilogue == Epilogue::rope) {
          store_rope<V, kN * kCount>(family, tile, first_weight, consumer, staging, turn, places,
                                     own);
        } else if constexpr (kEpilogue == Epilogue::swiglu) {
          store_swiglu<V, kN * kCount>(family, tile, first_weight, consumer, staging, turn, own);
        } else if constexpr (kEpilogue == Epilogue::swiglu_backward) {
          if (family.swiglu.gate_of_row) {
            store_swiglu_backward<V, kN * kCount, true>(family, tile, first_weight, consumer,
                                                        staging, own);
          } else {
            store_swiglu_backward<V, kN * kCount, false>(family, tile, first_weight, consumer,
                                                         staging, own);
          }
        } else {
          store_rounded<V, kN * kCount>(family, tile, first_weight, consumer, staging, turn, own);
        }
      }
    };
    const int chunks = (tile.num_rows + V::kChunk - 1) / V::kChunk;
    // Of this consumer's weights, so many exist.
    const int weights = family.n * (kEpilogue == Epilogue::swiglu ? 2 : 1) - tile.first_weight -
                        member * V::kParts * 64;
    if (weights <= 0) {
      pass_over<V>(shared, steps, ring);
    } else if (chunks == V::kRows / V::kChunk) {
      if constexpr (V::kParts == 2 && kEpilogue == Epilogue::swiglu) {
        if (weights <= 64) {
          run.template operator()<V::kRows, 1, 1>();
          continue;
        }
      }
      run.template operator()<V::kRows, 1>();
    } else if constexpr (V::kRows > V::kChunk) {
      if (chunks == 1) {
        run.template operator()<V::kChunk, 1>();
      } else if constexpr (V::kRows == 256) {
        if (chunks == 2) {
          run.template operator()<2 * V::kChunk, 1>();
        } else {
          run.template operator()<V::kChunk, 3>();
        }
      }
    }
  }
}

template <class V, Epilogue kEpilogue, bool kGathered>
__global__ void __launch_bounds__(V::kThreads, V::kBlocksPerSm)
    product_kernel(const __grid_constant__ ProductParameters p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const SharedLayout<V> shared(memory);
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) {
    for (int f = 0; f < p.num_families; ++f) {
      prefetch_map(&p.family[f].weight);
      if (!kGathered) prefetch_map(&p.family[f].x_tile);
      if (kHasSegments<V, kEpilogue> && p.family[f].segments > 1) {
        prefetch_map(&p.family[f].second_weight);
        prefetch_map(&p.family[f].second_x_tile);
      }
    }
    shared.init_barriers(kGathered ? 129 : 1);
  }
  ContiguousProducer<V, kEpilogue> producer{p, shared};
  const bool early = !kGathered && p.offsets_final;
  if (early && threadIdx.x < 32) {
    list_tiles<V>(p, shared.list);
    if (threadIdx.x == 0) producer.start_early();
    __syncwarp();
  }
  wait_for_previous_kernel();
  if (!early && threadIdx.x < 32) list_tiles<V>(p, shared.list);
  __syncthreads();

  if (warpgroup == 0) {
    if constexpr (V::kConsumers > 1) give_registers<kGathered ? 72 : 40>();
    if constexpr (kGathered) {
      produce_gathered<V>(GatheredTiles<V, kEpilogue>{p, shared}, shared);
    } else {
      if (threadIdx.x == 0) producer.run();
    }
    if (threadIdx.x == 0) {
      // The last block to come here leaves the counters as it found them.
      __threadfence();
      if (atomicInc(reinterpret_cast<unsigned*>(p.counters) + 1, gridDim.x - 1) == gridDim.x - 1)
        p.counters[0] = 0;
    }
  } else {
    if constexpr (V::kConsumers > 1) take_registers<kGathered ? 216 : 232>();
    consume<V, kEpilogue, kGathered>(p, shared, warpgroup - 1);
  }
}

}  // namespace dsmoe::kernels::cuda

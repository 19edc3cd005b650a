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

#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/product/product_feed.cuh"
#include "kernels/cuda/product/product_store.cuh"
#include "kernels/cuda/product/product_store_backward.cuh"
#include "kernels/cuda/product/product_store_rope.cuh"

namespace dsmoe::kernels::cuda {

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
    // The number of this consumer's weights that exist.
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

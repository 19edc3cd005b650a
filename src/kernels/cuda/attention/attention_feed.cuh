// How attention's Hopper kernels are fed: one warp looks up tiles of positions and has the copy
// engine fill a ring of blocks; the other warps multiply what is there, each at its own pace.
#pragma once

#include "kernels/cuda/attention/attention_steps.cuh"
#include "kernels/cuda/device/bulk_copy.cuh"
#include "kernels/cuda/stream/launch.h"

namespace dsmoe::kernels::cuda {

// Takes the first lane's value, which all lanes have anyway: so the compiler keeps it, and
// descriptors made of it, in registers of the whole warp.
__device__ inline uint32_t broadcast(uint32_t value) { return __shfl_sync(~0u, value, 0); }

// Blocks in a ring of shared memory, counted over the whole kernel. A block is released by kLanes
// lanes of each warp: one where only the tensor cores read it, else all that do.
template <int kStages, int kStageBytes, int kLanes>
struct BlockRing {
  static constexpr int kBytes = kStages * kStageBytes;
  static constexpr int kBarrierBytes = 16 * kStages;
  uint32_t memory;    // on a multiple of 1024
  uint32_t barriers;  // of full stages, then of empty ones

  __device__ uint32_t stage(int block) const { return memory + block % kStages * kStageBytes; }
  // The same, by all lanes.
  __device__ uint32_t operator[](int block) const { return broadcast(stage(block)); }
  __device__ uint32_t full(int block) const { return barriers + block % kStages * 8; }
  __device__ uint32_t empty(int block) const { return full(block) + 8 * kStages; }
  static __device__ uint32_t parity(int block) { return block / kStages & 1; }

  __device__ void init(int warps) const {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(full(i), 1);
      barrier_init(empty(i), warps * kLanes);
    }
  }
  // Called by the thread that starts the copies.
  __device__ void begin_fill(int block, uint32_t bytes) const {
    barrier_wait(empty(block), parity(block) ^ 1);
    barrier_expect(full(block), bytes);
  }
  __device__ void wait(int block) const { barrier_wait(full(block), parity(block)); }
  // Asked early, the answer is there when it is wanted; wait(block) where it was no.
  __device__ bool is_full(int block) const { return barrier_is_done(full(block), parity(block)); }
  // Called by every warp that waited for the block.
  __device__ void release(int block) const {
    if (threadIdx.x % 32 < kLanes) barrier_arrive(empty(block));
  }
};

__device__ inline void named_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// 64 rows by boxes of 64 dimensions, `load(target, first dimension)` each.
template <int kDim, class Load>
__device__ void load_boxes(uint32_t target, Load&& load) {
#pragma unroll
  for (int d = 0; d < kDim; d += 64) load(target + d / 64 * 8192, d);
}

// Sixteen of 64 rows as this warp's fragments.
template <int kDim>
__device__ void load_fragments(uint32_t (&rows)[kDim / 16][4], uint32_t tile) {
  const int lane = threadIdx.x % 32;
  const int row = threadIdx.x % 128 / 32 * 16 + lane % 16;
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step)
    load_matrix_x4(rows[step], piece_address<kDim>(tile, row, 2 * step + lane / 16));
}

// How a kernel is laid out: warpgroups that multiply, 64 rows each; the ring of blocks; bytes of
// the rows that stay with a group, and how many tiles' rows are there at a time.
template <int kDim_, int kGroups_, class Ring_, int kOwnBytes_, int kSlots_>
struct KernelShape {
  static constexpr int kDim = kDim_;
  static constexpr int kGroups = kGroups_;
  static constexpr int kBlockBytes = 64 * kDim * 2;
  static constexpr int kOwnBytes = kOwnBytes_;
  static constexpr int kSlots = kSlots_;
  static constexpr int kRows = 64 * kGroups;
  static constexpr int kThreads = 128 * (kGroups + 1);
  // The registers of a thread that multiplies, and of one that does not.
  static constexpr int kRegisters = kGroups == 2 ? 240 : kGroups == 3 ? 160 : 112;
  static constexpr int kFeederRegisters = kGroups == 2 ? 24 : 32;
  static_assert(2 <= kGroups && kGroups <= 4);
  static constexpr bool kTurns = true;
  using Ring = Ring_;
};

// What lies in shared memory. Tiles are numbered as the thread block takes them; a Tile whose head
// is negative ends the list.
template <class Shape, class Tile>
struct TileFeed {
  typename Shape::Ring ring;
  uint32_t own;       // [kSlots, kGroups] rows that stay
  uint32_t barriers;  // of slots: full, then empty
  Tile* tiles;        // [kSlots]

  static constexpr std::size_t kBytes =
      Shape::Ring::kBytes + Shape::kSlots * Shape::kGroups * Shape::kOwnBytes +
      Shape::Ring::kBarrierBytes + Shape::kSlots * (16 + sizeof(Tile));

  __device__ explicit TileFeed(unsigned char* memory) {
    ring.memory = shared_address(memory);
    own = ring.memory + Shape::Ring::kBytes;
    ring.barriers = own + Shape::kSlots * Shape::kGroups * Shape::kOwnBytes;
    barriers = ring.barriers + Shape::Ring::kBarrierBytes;
    tiles = reinterpret_cast<Tile*>(memory + (barriers - ring.memory) + Shape::kSlots * 16);
    if (threadIdx.x == 0) {
      ring.init(4 * Shape::kGroups);
      for (int slot = 0; slot < Shape::kSlots; ++slot) {
        barrier_init(full(slot), 1);
        barrier_init(empty(slot), 128 * Shape::kGroups);
      }
      barrier_init_fence();
    }
    __syncthreads();
  }
  __device__ uint32_t full(int number) const { return barriers + number % Shape::kSlots * 8; }
  __device__ uint32_t empty(int number) const { return full(number) + Shape::kSlots * 8; }
  static __device__ uint32_t parity(int number) { return number / Shape::kSlots & 1; }
  __device__ Tile& tile(int number) const { return tiles[number % Shape::kSlots]; }
  __device__ uint32_t rows(int number, int group) const {
    return own + (number % Shape::kSlots * Shape::kGroups + group) * Shape::kOwnBytes;
  }
  __device__ const Tile& wait(int number) const {
    barrier_wait(full(number), parity(number));
    return tile(number);
  }
  // Called by every thread that waited for it.
  __device__ void release(int number) const { barrier_arrive(empty(number)); }

  // With kTurns the groups start their products in turn, once for every block: left alone, two or
  // three would all multiply at the same time and then all compute exponentials at the same time. A
  // turn ends when the products of a block have been started.
  static constexpr int kTurnThreads = 256;
  static __device__ void first_turn(int group) {
    if (group == Shape::kGroups - 1) end_turn(group);
  }
  static __device__ void begin_turn(int group) {
    if constexpr (Shape::kTurns) named_sync(1 + group, kTurnThreads);
  }
  static __device__ void end_turn(int group) {
    if constexpr (Shape::kTurns) named_arrive(1 + (group + 1) % Shape::kGroups, kTurnThreads);
  }
  static __device__ void last_turn(int group) {
    if (group == 0) begin_turn(group);
  }
  // Blocks `first` .. `end` - 1 of the ring that this group has no use for.
  __device__ void pass_over(int group, int first, int end) const {
    for (int block = first; block < end; ++block) {
      ring.wait(block);
      ring.release(block);
      begin_turn(group);
      end_turn(group);
    }
  }

  // One warp calls it. It takes items as other thread blocks leave them. `find(item)` gives the
  // tile, with head negative where there is none; `feed(number, tile)` announces its bytes at
  // full(number) and starts the copies. `counters`: of next_counters.
  template <class Find, class Feed>
  __device__ void hand_out(int items, int32_t* counters, Find&& find, Feed&& feed) const {
    const int lane = threadIdx.x % 32;
    const auto next = [&] {
      int item = 0;
      if (lane == 0) item = static_cast<int>(gridDim.x) + atomicAdd(counters, 1);
      return __shfl_sync(~0u, item, 0);
    };
    int item = static_cast<int>(blockIdx.x);
    for (int number = 0;; ++number) {
      Tile found;
      found.head = -1;
      for (; item < items; item = next()) {
        found = find(item);
        if (found.head >= 0) break;
      }
      barrier_wait(empty(number), parity(number) ^ 1);
      if (lane == 0) tile(number) = found;
      if (found.head < 0) {
        if (lane == 0) barrier_arrive(full(number));
        break;
      }
      feed(number, found);
      item = next();
    }
    // The last block to come here leaves the counters as it found them.
    if (lane == 0) {
      __threadfence();
      if (atomicInc(reinterpret_cast<unsigned*>(counters) + 1, gridDim.x - 1) == gridDim.x - 1)
        counters[0] = 0;
    }
  }
};

// `body(block, page)` by all lanes for blocks first .. end - 1 of a sequence, whose pages are
// looked up 32 at a time.
template <class Body>
__device__ void for_each_page(const int32_t* pages, int first, int end, Body&& body) {
  int ahead = 0;
  for (int block = first; block < end; ++block) {
    const int place = (block - first) % 32;
    if (place == 0) ahead = pages[min(block + static_cast<int>(threadIdx.x % 32), end - 1)];
    body(block, __shfl_sync(~0u, ahead, place));
  }
}

// Rows of queries and the like: [tokens, heads, head_dim]; a box is 64 rows, `heads_of_box` heads
// of a token one after the other. Pages: [pages, kv_heads, 64, head_dim].
inline CUtensorMap map_of_rows(const void* base, int64_t tokens, int heads, int head_dim,
                               int heads_of_box) {
  const auto dim = static_cast<uint64_t>(head_dim);
  return tensor_map(
      {.base = base,
       .rank = 3,
       .sizes = {dim, static_cast<uint64_t>(heads), static_cast<uint64_t>(tokens)},
       .strides = {dim * 2, static_cast<uint64_t>(heads) * dim * 2},
       .box = {64, static_cast<uint32_t>(heads_of_box), static_cast<uint32_t>(64 / heads_of_box)}});
}
inline CUtensorMap map_of_pages(const void* base, int64_t pages, int kv_heads, int head_dim) {
  const auto dim = static_cast<uint64_t>(head_dim);
  return tensor_map({.base = base,
                     .rank = 2,
                     .sizes = {dim, static_cast<uint64_t>(pages * kv_heads * 64)},
                     .strides = {dim * 2},
                     .box = {64, 64}});
}
template <int kDim>
__device__ void load_rows_of(const CUtensorMap& map, uint32_t target, uint32_t barrier, int head,
                             int token) {
  load_boxes<kDim>(target,
                   [&](uint32_t box, int d) { tma_load_3d(box, &map, barrier, d, head, token); });
}
template <int kDim>
__device__ void load_page(const CUtensorMap& map, uint32_t target, uint32_t barrier, int page,
                          int kv_heads, int kv_head) {
  load_boxes<kDim>(target, [&](uint32_t box, int d) {
    tma_load_2d(box, &map, barrier, d, (page * kv_heads + kv_head) * 64);
  });
}

// The thread's rows of a tile of 64: lane / 4 and lane / 4 + 8 of its warp's sixteen.
__device__ inline int own_row(int half) {
  return static_cast<int>(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4) + 8 * half;
}

// The body of a kernel: `feed(tiles)` by one warp, `multiply(tiles, group)` by the groups.
template <class Shape, class Tile, class Feed, class Multiply>
__device__ void run_fed(Feed&& feed, Multiply&& multiply) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const TileFeed<Shape, Tile> tiles(memory);
  wait_for_previous_kernel();
  let_next_kernel_start();
  if (threadIdx.x < 128 * Shape::kGroups) {
    take_registers<Shape::kRegisters>();
    const int group = static_cast<int>(threadIdx.x) / 128;
    tiles.first_turn(group);
    multiply(tiles, group);
    tiles.last_turn(group);
  } else {
    give_registers<Shape::kFeederRegisters>();
    if (threadIdx.x < 128 * Shape::kGroups + 32) feed(tiles);
  }
}

}  // namespace dsmoe::kernels::cuda

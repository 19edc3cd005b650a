// Weight gradients dW += dy^T x as a grouped product over the rows of each matrix.
//
// Rows are the sum's dimension, so both tiles lie in shared memory with k outside (rows) and m or n
// inside, and wgmma reads them transposed. One of dy and x lies row by row as the plan has it and
// is the m64 side; the other may be gathered. The chain starts from the gradient buffer, takes the
// sequences in order, and restarts its k16 blocks, zero-padded, at each (docs/numerics.md). Tiles
// of 128 x 128 with two blocks to a multiprocessor: one block's reading and writing of fp32 sums
// hides behind the other's products.
#include "kernels/cuda/weight_gradient.h"

#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/product.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace dsmoe::kernels::cuda {
namespace {

constexpr int kTile = 128;
constexpr int kDepth = 64;             // rows of a stage
constexpr int kBox = kDepth * 128;     // bytes of 64 rows x 64 columns
constexpr int kStageBytes = 4 * kBox;  // two boxes of each side
constexpr int kStages = 3;
constexpr int kMultipliers = 256;  // threads: two warpgroups
constexpr int kLoaders = 2;        // warps
constexpr int kThreads = kMultipliers + 32 * kLoaders;
constexpr int kSharedBytes = kStages * kStageBytes + 128;

struct Parameters {
  CUtensorMap straight;  // the m64 side, [rows, m]
  CUtensorMap other;     // the n side, [rows, n]; unused when gathered
  const bf16* gathered;  // the n side when gathered, [*, n]
  const int32_t* source;
  const int32_t* sequence_offsets;
  const int32_t* slot_of_matrix;
  float* d_weight;
  int32_t* counters;
  int32_t count;
  int32_t sequences;
  int32_t m;
  int32_t n;
  int32_t m_tiles;
  int32_t n_tiles;
};

struct Shared {
  uint32_t stages;
  uint32_t full;
  uint32_t empty;
  int32_t* tile;   // [stages]: tile of the stage, -1: no more
  int32_t* count;  // [stages]: its rows; negative: -rows, the tile's last
  int32_t* next;   // [2]: the next tile, for the loaders

  __device__ explicit Shared(unsigned char* memory) {
    stages = shared_address(memory);
    full = stages + kStages * kStageBytes;
    empty = full + 8 * kStages;
    tile = reinterpret_cast<int32_t*>(memory + kStages * kStageBytes + 16 * kStages);
    count = tile + kStages;
    next = count + kStages;
  }
  __device__ uint32_t straight(int stage) const { return stages + stage * kStageBytes; }
  __device__ uint32_t other(int stage) const { return straight(stage) + 2 * kBox; }
};

struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

struct Place {
  int matrix;
  int first_m;
  int first_n;
};
__device__ Place place_of(const Parameters& p, int tile) {
  const int tiles = p.m_tiles * p.n_tiles;
  const int inside = tile % tiles;
  return {tile / tiles, inside / p.n_tiles * kTile, inside % p.n_tiles * kTile};
}

// By one thread, or when gathered by kLoaders warps of which each copies its share of the rows.
template <bool kGathered>
__device__ void produce(const Parameters& p, const Shared& shared) {
  constexpr int kShare = kDepth / kLoaders;  // rows of a warp
  static_assert(kShare <= 32);
  const int thread = static_cast<int>(threadIdx.x) - kMultipliers;
  const int lane = thread % 32;
  const int first_line = thread / 32 * kShare;
  const int column = lane % 16;  // of 8 values
  const int line = lane / 16;    // rows line, line + 2, ... of the share
  const int tiles = p.count * p.m_tiles * p.n_tiles;
  const auto pitch = static_cast<uint32_t>(p.n / 8);  // in units of 16 bytes
  const uint32_t place = column / 8 * kBox + (first_line + line) * 128;
  Ring ring;
  ring.parity = 1;
  int turn = 0;
  int tile = static_cast<int>(blockIdx.x);
  while (tile < tiles) {
    int next = 0;
    if (thread == 0) next = static_cast<int>(gridDim.x) + atomicAdd(p.counters, 1);
    const Place at = place_of(p, tile);
    const int32_t* offsets =
        p.sequence_offsets + static_cast<int64_t>(at.matrix) * (p.sequences + 1);
    const bool wanted = !p.slot_of_matrix || p.slot_of_matrix[at.matrix] >= 0;
    const int begin = offsets[0];
    const int end = wanted ? offsets[p.sequences] : begin;
    const int bytes = at.first_n + column * 8 < p.n ? 16 : 0;
    const bf16* base = p.gathered + (bytes ? at.first_n + column * 8 : 0);
    int sequence = 0;
    int sequence_end = begin;
    // The row of this lane, looked up one stage ahead; rows past the end repeat one inside.
    const auto look_up = [&](int row) {
      return static_cast<uint32_t>(p.source[min(row + first_line + lane % kShare, end - 1)]) *
             pitch;
    };
    uint32_t source = kGathered && begin < end ? look_up(begin) : 0;
    for (int row = begin; row < end;) {
      while (sequence_end <= row) sequence_end = offsets[++sequence];
      const int count = min(kDepth, sequence_end - row);
      const uint32_t full = shared.full + 8 * ring.stage;
      barrier_wait(shared.empty + 8 * ring.stage, ring.parity);
      if (thread == 0) {
        shared.tile[ring.stage] = tile;
        shared.count[ring.stage] = row + count == end ? -count : count;
        barrier_expect(full, (kGathered ? 2 : 4) * kBox);
        for (int half = 0; half < 2; ++half) {
          tma_load_2d(shared.straight(ring.stage) + half * kBox, &p.straight, full,
                      at.first_m + 64 * half, row);
          if constexpr (!kGathered) {
            tma_load_2d(shared.other(ring.stage) + half * kBox, &p.other, full,
                        at.first_n + 64 * half, row);
          }
        }
      }
      if constexpr (kGathered) {
        const uint32_t current = source;
        if (row + count < end) source = look_up(row + count);
        const int padded = (count + 15) / 16 * 16;
        const uint32_t target = shared.other(ring.stage) + place;
        if (first_line < padded) {
#pragma unroll
          for (int i = 0; i < kShare / 2; ++i) {
            const int r = line + 2 * i;  // within the share; kShare is a multiple of 8
            const uint32_t from = __shfl_sync(~0u, current, r);
            const uint32_t twist = ((column % 8) ^ (r % 8)) * 16;
            const int row_bytes = first_line + r < count ? bytes : 0;
            if (kShare <= 16 || first_line + 2 * i < padded)
              copy_async_16(target + i * 256 + twist, base + static_cast<uint64_t>(from) * 8,
                            row_bytes);
          }
        }
        copy_async_arrive(full);
      }
      row += count;
      ring.advance();
    }
    if constexpr (kGathered) {
      if (thread == 0) shared.next[turn] = next;
      named_sync(1, 32 * kLoaders);
      tile = *const_cast<volatile int32_t*>(shared.next + turn);
      turn ^= 1;
    } else {
      tile = next;
    }
  }
  barrier_wait(shared.empty + 8 * ring.stage, ring.parity);
  if (thread == 0) {
    shared.tile[ring.stage] = -1;
    let_next_kernel_start();
    barrier_arrive(shared.full + 8 * ring.stage);
  }
  if constexpr (kGathered) barrier_arrive(shared.full + 8 * ring.stage);
}

// body(first, second, element, distance) for every pair of sums that lies inside the matrix: the
// first belongs to *element, the second to element[distance]. d_weight is [m, n], or [n, m] when
// swapped.
template <bool kSwapped, class Body>
__device__ void for_each_sum(const Parameters& p, int tile, int consumer, float* sums,
                             Body&& body) {
  const Place at = place_of(p, tile);
  const int slot = p.slot_of_matrix ? p.slot_of_matrix[at.matrix] : at.matrix;
  float* matrix = p.d_weight + static_cast<int64_t>(slot) * p.m * p.n;
  const int lane = threadIdx.x % 32;
  const int m0 = at.first_m + consumer * 64 + threadIdx.x % 128 / 32 * 16 + lane / 4;
  const int n0 = at.first_n + 2 * (lane % 4);
#pragma unroll
  for (int j = 0; j < 16; ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int m = m0 + 8 * half;
      const int n = n0 + 8 * j;
      if (m < p.m && n < p.n) {
        body(sums[4 * j + 2 * half], sums[4 * j + 2 * half + 1],
             matrix +
                 (kSwapped ? static_cast<int64_t>(n) * p.m + m : static_cast<int64_t>(m) * p.n + n),
             p.m);
      }
    }
  }
}

template <bool kSwapped>
__device__ void read_pair(float& first, float& second, const float* element, int distance) {
  if constexpr (kSwapped) {
    first = element[0];
    second = element[distance];
  } else {
    const float2 pair = *reinterpret_cast<const float2*>(element);
    first = pair.x;
    second = pair.y;
  }
}
template <bool kSwapped>
__device__ void write_pair(float first, float second, float* element, int distance) {
  if constexpr (kSwapped) {
    element[0] = first;
    element[distance] = second;
  } else {
    *reinterpret_cast<float2*>(element) = make_float2(first, second);
  }
}

// Rows past the end of a sequence do not count: the m64 side becomes zero there.
__device__ void clear_tail(uint32_t box, int count, int consumer) {
  const int thread = threadIdx.x % 128;
  if (thread < (16 - count % 16) * 8) {
    const uint32_t target = box + (count + thread / 8) * 128 + thread % 8 * 16;
    asm volatile("st.shared.v4.u32 [%0], {%1,%1,%1,%1};" ::"r"(target), "r"(0) : "memory");
  }
  fence_async_proxy();
  named_sync(2 + consumer, 128);
}

template <bool kGathered, bool kSwapped>
__device__ void consume(const Parameters& p, const Shared& shared, int consumer) {
  Ring ring;
  while (true) {
    barrier_wait(shared.full + 8 * ring.stage, ring.parity);
    const int tile = *const_cast<volatile int32_t*>(shared.tile + ring.stage);
    if (tile < 0) return;
    float sums[64];
#pragma unroll
    for (float& sum : sums) sum = 0;
    for_each_sum<kSwapped>(p, tile, consumer, sums, read_pair<kSwapped>);
    int before = -1;
    for (bool more = true; more;) {
      barrier_wait(shared.full + 8 * ring.stage, ring.parity);
      const int signed_count = *const_cast<volatile int32_t*>(shared.count + ring.stage);
      more = signed_count > 0;
      const int count = abs(signed_count);
      const uint32_t box = shared.straight(ring.stage) + consumer * kBox;
      if (count % 16 != 0) {
        clear_tail(box, count, consumer);
      } else if (kGathered) {
        fence_async_proxy();
      }
      uint64_t a = transposed_descriptor(box);
      uint64_t b = transposed_descriptor(shared.other(ring.stage));
      wgmma_fence();
#pragma unroll 1
      for (int k = 0; k < count; k += 16) {
        wgmma_step_transposed_128(sums, a, b);
        a += 128;
        b += 128;
      }
      wgmma_commit();
      wgmma_wait<1>();
      __syncwarp();
      if (before >= 0 && threadIdx.x % 32 == 0) barrier_arrive(shared.empty + 8 * before);
      before = ring.stage;
      ring.advance();
    }
    wgmma_wait<0>();
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(shared.empty + 8 * before);
    for_each_sum<kSwapped>(p, tile, consumer, sums, write_pair<kSwapped>);
  }
}

template <bool kGathered, bool kSwapped>
__global__ void __launch_bounds__(kThreads, 2)
    weight_gradient_kernel(const __grid_constant__ Parameters p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const Shared shared(memory);
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);  // 2: the loaders
  if (threadIdx.x == 0) {
    prefetch_map(&p.straight);
    if (!kGathered) prefetch_map(&p.other);
    for (int s = 0; s < kStages; ++s) {
      barrier_init(shared.full + 8 * s, kGathered ? 32 * kLoaders + 1 : 1);
      barrier_init(shared.empty + 8 * s, 8);
    }
    barrier_init_fence();
  }
  wait_for_previous_kernel();
  __syncthreads();
  if (warpgroup < 2) {
    consume<kGathered, kSwapped>(p, shared, warpgroup);
    return;
  }
  if (kGathered || threadIdx.x == kMultipliers) produce<kGathered>(p, shared);
  if (threadIdx.x == kMultipliers) {
    __threadfence();
    if (atomicInc(reinterpret_cast<unsigned*>(p.counters) + 1, gridDim.x - 1) == gridDim.x - 1)
      p.counters[0] = 0;
  }
}

template <bool kGathered, bool kSwapped>
void launch_one(const Context& context, const Parameters& p) {
  const auto kernel = weight_gradient_kernel<kGathered, kSwapped>;
  static const bool once = (allow_shared(kernel, kSharedBytes), true);
  (void)once;
  launch(context,
         {.grid = dim3(static_cast<unsigned>(num_multiprocessors() * 2)),
          .block = dim3(kThreads),
          .shared_bytes = kSharedBytes},
         kernel, p);
}

CUtensorMap row_map(const TensorView& rows) {
  const auto columns = static_cast<uint64_t>(rows.dim(1));
  return tensor_map({.base = rows.data,
                     .rank = 2,
                     .sizes = {columns, static_cast<uint64_t>(rows.dim(0))},
                     .strides = {columns * 2},
                     .box = {64, kDepth}});
}

bool fits(const WeightGradient& args) {
  const auto aligned = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
  return args.x.dtype == DType::BF16 && args.dy.dtype == DType::BF16 &&
         !(args.x_of_row && args.dy_of_row) && args.x.dim(1) % 8 == 0 && args.dy.dim(1) % 8 == 0 &&
         aligned(args.x.data) && aligned(args.dy.data) && aligned(args.d_weight.data) &&
         args.x.dim(0) < (1 << 30) && args.dy.dim(0) < (1 << 30) &&
         args.x.dim(0) * args.x.dim(1) < (int64_t{1} << 35) &&
         args.dy.dim(0) * args.dy.dim(1) < (int64_t{1} << 35);
}

}  // namespace

void weight_gradient(const Context& context, const WeightGradient& args) {
  if (args.dy.dim(0) == 0 || args.x.dim(0) == 0) return;
  if (!fits(args)) return weight_gradient_portable(context, args);
  // The gathered side, if any, is the n side.
  const bool swapped = static_cast<bool>(args.dy_of_row);
  const TensorView& straight = swapped ? args.x : args.dy;
  const TensorView& other = swapped ? args.dy : args.x;
  const TensorView& source = swapped ? args.dy_of_row : args.x_of_row;
  Parameters p{};
  p.straight = row_map(straight);
  if (!source) p.other = row_map(other);
  p.gathered = static_cast<const bf16*>(other.data);
  p.source = source ? source.as<int32_t>() : nullptr;
  p.sequence_offsets = args.sequence_offsets.as<int32_t>();
  p.slot_of_matrix = args.slot_of_matrix ? args.slot_of_matrix.as<int32_t>() : nullptr;
  p.d_weight = args.d_weight.as<float>();
  p.counters = next_counters();
  p.count = static_cast<int32_t>(args.sequence_offsets.dim(0));
  p.sequences = static_cast<int32_t>(args.sequence_offsets.dim(1) - 1);
  p.m = static_cast<int32_t>(straight.dim(1));
  p.n = static_cast<int32_t>(other.dim(1));
  p.m_tiles = (p.m + kTile - 1) / kTile;
  p.n_tiles = (p.n + kTile - 1) / kTile;
  if (swapped) return launch_one<true, true>(context, p);
  if (source) return launch_one<true, false>(context, p);
  launch_one<false, false>(context, p);
}

}  // namespace dsmoe::kernels::cuda

// Weight gradients dW += dy^T x as a grouped product over the rows of each matrix.
//
// Rows are the sum's dimension, so both tiles lie in shared memory with k outside (rows) and m or n
// inside, and wgmma reads them transposed. One of dy and x lies row by row as the plan has it and
// is the m64 side; the other may be gathered. The chain starts from the gradient buffer, takes the
// sequences in order, and restarts its k16 blocks, zero-padded, at each (docs/numerics.md). Tiles
// of 256 x 128: the gathered side, whose copies cost most, is the short one. Each of four
// warpgroups has 64 of the 256 and leaves out what lies past the matrix.
#include "kernels/cuda/weight_gradient.h"

#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/product.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace dsmoe::kernels::cuda {
namespace {

constexpr int kTileM = 256;
constexpr int kTileN = 128;
constexpr int kConsumers = kTileM / 64;  // warpgroups
constexpr int kDepth = 64;               // rows of a stage
constexpr int kBox = kDepth * 128;       // bytes of 64 rows x 64 columns
constexpr int kStageBytes = 6 * kBox;    // four boxes of the straight side, two of the other
constexpr int kStages = 4;
constexpr int kMultipliers = 128 * kConsumers;
constexpr int kLoaders = 2;  // warps
constexpr int kThreads = kMultipliers + 32 * kLoaders;
constexpr int kSharedBytes = kStages * kStageBytes + 128;

// One call's matrices. The straight side is the m64 one.
struct Problem {
  CUtensorMap straight;   // [rows, m]
  CUtensorMap other;      // the n side, [rows, n]; unused when gathered
  const bf16* gathered;   // the n side when gathered, [*, n]
  const int32_t* source;  // null: not gathered
  const int32_t* sequence_offsets;
  const int32_t* slot_of_matrix;
  float* d_weight;  // [slots, m, n], or [slots, n, m] when swapped
  int32_t swapped;
  int32_t sequences;
  int32_t m;
  int32_t n;
  int32_t m_tiles;
  int32_t n_tiles;
  int32_t first_tile;
};

constexpr int kMostProblems = 6;
struct Parameters {
  Problem problem[kMostProblems];
  int32_t* counters;
  int32_t num_problems;
  int32_t tiles;
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
  __device__ uint32_t other(int stage) const { return straight(stage) + kConsumers * kBox; }
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
  int problem;
  int matrix;
  int first_m;
  int first_n;
};
__device__ Place place_of(const Parameters& p, int tile) {
  int problem = 0;
  while (problem + 1 < p.num_problems && tile >= p.problem[problem + 1].first_tile) ++problem;
  const Problem& of = p.problem[problem];
  const int tiles = of.m_tiles * of.n_tiles;
  const int inside = (tile - of.first_tile) % tiles;
  return {problem, (tile - of.first_tile) / tiles, inside / of.n_tiles * kTileM,
          inside % of.n_tiles * kTileN};
}

// The sums' tile on its way from memory while the first rows are loaded.
__device__ void prefetch_sums(const Problem& of, const Place& at, int thread) {
  const int slot = of.slot_of_matrix ? of.slot_of_matrix[at.matrix] : at.matrix;
  const float* matrix = of.d_weight + static_cast<int64_t>(slot) * of.m * of.n;
  const int first_row = of.swapped ? at.first_n : at.first_m;
  const int first_column = of.swapped ? at.first_m : at.first_n;
  const int rows = min(of.swapped ? kTileN : kTileM, (of.swapped ? of.n : of.m) - first_row);
  const int columns = of.swapped ? of.m : of.n;
  const int lines = (of.swapped ? kTileM : kTileN) / 32;  // of 128 bytes, per row
  for (int i = thread; i < rows * lines; i += 32 * kLoaders) {
    const int column = first_column + i % lines * 32;
    if (column < columns)
      prefetch_l2(matrix + static_cast<int64_t>(first_row + i / lines) * columns + column);
  }
}

// The loading warps. The copy engine brings the straight side, and the other one too unless it is
// gathered: then each warp copies its share of the rows.
__device__ void produce(const Parameters& p, const Shared& shared) {
  constexpr int kShare = kDepth / kLoaders;  // rows of a warp
  static_assert(kShare <= 32 && kShare % 8 == 0);
  const int thread = static_cast<int>(threadIdx.x) - kMultipliers;
  const int lane = thread % 32;
  const int first_line = thread / 32 * kShare;
  const int column = lane % 16;  // of 8 values
  const int line = lane / 16;    // rows line, line + 2, ... of the share
  const uint32_t place = column / 8 * kBox + (first_line + line) * 128;
  Ring ring;
  ring.parity = 1;
  int turn = 0;
  int tile = static_cast<int>(blockIdx.x);
  while (tile < p.tiles) {
    int next = 0;
    if (thread == 0) next = static_cast<int>(gridDim.x) + atomicAdd(p.counters, 1);
    const Place at = place_of(p, tile);
    const Problem& of = p.problem[at.problem];
    const bool gathered = of.source != nullptr;
    const auto pitch = static_cast<uint32_t>(of.n / 8);  // in units of 16 bytes
    const int32_t* offsets =
        of.sequence_offsets + static_cast<int64_t>(at.matrix) * (of.sequences + 1);
    const bool wanted = !of.slot_of_matrix || of.slot_of_matrix[at.matrix] >= 0;
    const int begin = offsets[0];
    const int end = wanted ? offsets[of.sequences] : begin;
    const int bytes = at.first_n + column * 8 < of.n ? 16 : 0;
    const bf16* base = of.gathered + (bytes ? at.first_n + column * 8 : 0);
    if (begin < end) prefetch_sums(of, at, thread);
    int sequence = 0;
    int sequence_end = begin;
    // The row of this lane, looked up one stage ahead; rows past the end repeat one inside.
    const auto look_up = [&](int row) {
      return static_cast<uint32_t>(of.source[min(row + first_line + lane % kShare, end - 1)]) *
             pitch;
    };
    uint32_t source = gathered && begin < end ? look_up(begin) : 0;
    for (int row = begin; row < end;) {
      while (sequence_end <= row) sequence_end = offsets[++sequence];
      const int count = min(kDepth, sequence_end - row);
      const uint32_t full = shared.full + 8 * ring.stage;
      barrier_wait(shared.empty + 8 * ring.stage, ring.parity);
      if (thread == 0) {
        shared.tile[ring.stage] = tile;
        shared.count[ring.stage] = row + count == end ? -count : count;
        const int boxes = min(kConsumers, (of.m - at.first_m + 63) / 64);
        barrier_expect(full, (boxes + (gathered ? 0 : 2)) * kBox);
        for (int box = 0; box < boxes; ++box) {
          tma_load_2d(shared.straight(ring.stage) + box * kBox, &of.straight, full,
                      at.first_m + 64 * box, row);
        }
        for (int box = 0; box < 2 && !gathered; ++box) {
          tma_load_2d(shared.other(ring.stage) + box * kBox, &of.other, full, at.first_n + 64 * box,
                      row);
        }
      }
      if (gathered) {
        const uint32_t current = source;
        if (row + count < end) source = look_up(row + count);
        const int padded = (count + 15) / 16 * 16;
        const uint32_t target = shared.other(ring.stage) + place;
#pragma unroll
        for (int i = 0; i < kShare / 2; ++i) {
          const int r = line + 2 * i;  // within the share
          const uint32_t from = __shfl_sync(~0u, current, r);
          if (first_line + 2 * i < padded) {
            copy_async_16(target + i * 256 + ((column % 8) ^ (r % 8)) * 16,
                          base + static_cast<uint64_t>(from) * 8,
                          first_line + r < count ? bytes : 0);
          }
        }
        copy_async_arrive(full);
      } else {
        barrier_arrive(full);
      }
      row += count;
      ring.advance();
    }
    if (thread == 0) shared.next[turn] = next;
    named_sync(1, 32 * kLoaders);
    tile = *const_cast<volatile int32_t*>(shared.next + turn);
    turn ^= 1;
  }
  barrier_wait(shared.empty + 8 * ring.stage, ring.parity);
  if (thread == 0) {
    shared.tile[ring.stage] = -1;
    let_next_kernel_start();
    barrier_arrive(shared.full + 8 * ring.stage);
  }
  barrier_arrive(shared.full + 8 * ring.stage);
}

// body(first, second, element) for every pair of sums that lies inside the matrix: neighbours in a
// row of d_weight, or with kSwapped in a column.
template <bool kSwapped, class Body>
__device__ void for_each_pair(const Parameters& p, const Place& at, int consumer, float* sums,
                              Body&& body) {
  const Problem& of = p.problem[at.problem];
  const int slot = of.slot_of_matrix ? of.slot_of_matrix[at.matrix] : at.matrix;
  float* matrix = of.d_weight + static_cast<int64_t>(slot) * of.m * of.n;
  const int lane = threadIdx.x % 32;
  const int m0 = at.first_m + consumer * 64 + threadIdx.x % 128 / 32 * 16 + lane / 4;
  const int n0 = at.first_n + 2 * (lane % 4);
#pragma unroll
  for (int j = 0; j < 16; ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int m = m0 + 8 * half;
      const int n = n0 + 8 * j;
      if (m < of.m && n < of.n) {
        body(sums[4 * j + 2 * half], sums[4 * j + 2 * half + 1],
             matrix + (kSwapped ? static_cast<int64_t>(n) * of.m + m
                                : static_cast<int64_t>(m) * of.n + n));
      }
    }
  }
}

__device__ void read_sums(const Parameters& p, const Place& at, int consumer, float* sums) {
  const int64_t distance = p.problem[at.problem].m;
  if (p.problem[at.problem].swapped) {
    for_each_pair<true>(p, at, consumer, sums, [&](float& a, float& b, const float* element) {
      a = element[0];
      b = element[distance];
    });
  } else {
    for_each_pair<false>(p, at, consumer, sums, [&](float& a, float& b, const float* element) {
      const float2 pair = *reinterpret_cast<const float2*>(element);
      a = pair.x;
      b = pair.y;
    });
  }
}
__device__ void write_sums(const Parameters& p, const Place& at, int consumer, float* sums) {
  const int64_t distance = p.problem[at.problem].m;
  if (p.problem[at.problem].swapped) {
    for_each_pair<true>(p, at, consumer, sums, [&](float a, float b, float* element) {
      element[0] = a;
      element[distance] = b;
    });
  } else {
    for_each_pair<false>(p, at, consumer, sums, [&](float a, float b, float* element) {
      *reinterpret_cast<float2*>(element) = make_float2(a, b);
    });
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

// Read by the lane that will say that the stage is free.
__device__ int read_slot(const int32_t* slot) {
  int value = 0;
  if (threadIdx.x % 32 == 0) value = *const_cast<const volatile int32_t*>(slot);
  return __shfl_sync(~0u, value, 0);
}

// Lets the stages of a tile go by in which this warpgroup has no part.
__device__ void pass(const Shared& shared, Ring& ring) {
  for (bool more = true; more;) {
    barrier_wait(shared.full + 8 * ring.stage, ring.parity);
    more = read_slot(shared.count + ring.stage) > 0;
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(shared.empty + 8 * ring.stage);
    ring.advance();
  }
}

__device__ void consume(const Parameters& p, const Shared& shared, int consumer) {
  Ring ring;
  while (true) {
    barrier_wait(shared.full + 8 * ring.stage, ring.parity);
    const int tile = read_slot(shared.tile + ring.stage);
    if (tile < 0) return;
    const Place at = place_of(p, tile);
    if (at.first_m + consumer * 64 >= p.problem[at.problem].m) {
      pass(shared, ring);
      continue;
    }
    float sums[64];
#pragma unroll
    for (float& sum : sums) sum = 0;
    const bool gathered = p.problem[at.problem].source != nullptr;
    read_sums(p, at, consumer, sums);
    int before = -1;
    for (bool more = true; more;) {
      barrier_wait(shared.full + 8 * ring.stage, ring.parity);
      const int signed_count = read_slot(shared.count + ring.stage);
      more = signed_count > 0;
      const int count = abs(signed_count);
      const uint32_t box = shared.straight(ring.stage) + consumer * kBox;
      if (count % 16 != 0) {
        clear_tail(box, count, consumer);
      } else if (gathered) {
        fence_async_proxy();
      }
      const uint64_t a = transposed_descriptor(box);
      const uint64_t b = transposed_descriptor(shared.other(ring.stage));
      wgmma_fence();
      // Not a loop: the compiler would wait after every step.
      wgmma_step_transposed_128(sums, a, b);
      if (count > 16) wgmma_step_transposed_128(sums, a + 128, b + 128);
      if (count > 32) wgmma_step_transposed_128(sums, a + 256, b + 256);
      if (count > 48) wgmma_step_transposed_128(sums, a + 384, b + 384);
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
    write_sums(p, at, consumer, sums);
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    weight_gradient_kernel(const __grid_constant__ Parameters p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const Shared shared(memory);
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);  // the last: loaders
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      barrier_init(shared.full + 8 * s, 32 * kLoaders + 1);
      barrier_init(shared.empty + 8 * s, 4 * kConsumers);
    }
    barrier_init_fence();
  }
  wait_for_previous_kernel();
  __syncthreads();
  if (warpgroup < kConsumers) {
    consume(p, shared, warpgroup);
    return;
  }
  produce(p, shared);
  if (threadIdx.x == kMultipliers) {
    __threadfence();
    if (atomicInc(reinterpret_cast<unsigned*>(p.counters) + 1, gridDim.x - 1) == gridDim.x - 1)
      p.counters[0] = 0;
  }
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
  const auto readable = [](const TensorView& rows) {
    return rows.dtype == DType::BF16 && rows.dim(1) % 8 == 0 &&
           reinterpret_cast<uintptr_t>(rows.data) % 16 == 0 && rows.dim(0) < (1 << 30) &&
           rows.num_elements() < (int64_t{1} << 35);
  };
  return readable(args.x) && readable(args.dy) && !(args.x_of_row && args.dy_of_row) &&
         reinterpret_cast<uintptr_t>(args.d_weight.data) % 16 == 0;
}

Problem describe(const WeightGradient& args) {
  // The gathered side, if any, is the n side.
  const bool swapped = static_cast<bool>(args.dy_of_row);
  const TensorView& straight = swapped ? args.x : args.dy;
  const TensorView& other = swapped ? args.dy : args.x;
  const TensorView& source = swapped ? args.dy_of_row : args.x_of_row;
  Problem problem{};
  problem.straight = row_map(straight);
  if (!source) problem.other = row_map(other);
  problem.gathered = static_cast<const bf16*>(other.data);
  problem.source = source ? source.as<int32_t>() : nullptr;
  problem.sequence_offsets = args.sequence_offsets.as<int32_t>();
  problem.slot_of_matrix = args.slot_of_matrix ? args.slot_of_matrix.as<int32_t>() : nullptr;
  problem.d_weight = args.d_weight.as<float>();
  problem.swapped = swapped;
  problem.sequences = static_cast<int32_t>(args.sequence_offsets.dim(1) - 1);
  problem.m = static_cast<int32_t>(straight.dim(1));
  problem.n = static_cast<int32_t>(other.dim(1));
  problem.m_tiles = (problem.m + kTileM - 1) / kTileM;
  problem.n_tiles = (problem.n + kTileN - 1) / kTileN;
  return problem;
}

bool is_empty(const WeightGradient& args) { return args.dy.dim(0) == 0 || args.x.dim(0) == 0; }

}  // namespace

void weight_gradients(const Context& context, const std::span<const WeightGradient>& list) {
  Parameters p{};
  const auto run = [&] {
    if (p.num_problems == 0) return;
    static const bool once = (allow_shared(weight_gradient_kernel, kSharedBytes), true);
    (void)once;
    p.counters = next_counters();
    launch(context,
           {.grid = dim3(static_cast<unsigned>(num_multiprocessors())),
            .block = dim3(kThreads),
            .shared_bytes = kSharedBytes},
           weight_gradient_kernel, p);
    p = {};
  };
  // Long sums first: the others fill what they leave.
  for (const bool one_matrix : {true, false}) {
    for (const WeightGradient& args : list) {
      if ((args.sequence_offsets.dim(0) == 1) != one_matrix || is_empty(args)) continue;
      if (!fits(args)) {
        weight_gradient_portable(context, args);
        continue;
      }
      Problem& problem = p.problem[p.num_problems++];
      problem = describe(args);
      problem.first_tile = p.tiles;
      p.tiles +=
          static_cast<int32_t>(args.sequence_offsets.dim(0)) * problem.m_tiles * problem.n_tiles;
      if (p.num_problems == kMostProblems) run();
    }
  }
  run();
}

void weight_gradient(const Context& context, const WeightGradient& args) {
  cuda::weight_gradients(context, std::span<const WeightGradient>(&args, 1));
}

}  // namespace dsmoe::kernels::cuda

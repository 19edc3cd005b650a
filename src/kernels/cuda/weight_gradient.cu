// Weight gradients dW += dy^T x as a grouped product over the rows of each matrix.
//
// Rows are the sum's dimension, so both tiles lie in shared memory with k outside (rows) and m or n
// inside, and wgmma reads them transposed. The chain starts from the gradient buffer, takes the
// sequences in order, and restarts its k16 blocks, zero-padded, at each (docs/numerics.md). Tiles
// of 256 x 176 are what the registers of two warpgroups hold, and 176 divides the width of many
// experts (1408, 352).
#include "kernels/cuda/weight_gradient.h"

#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/product.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace dsmoe::kernels::cuda {
namespace {

constexpr int kConsumers = 2;  // warpgroups
constexpr int kSharers = 2;    // consumers of one tile; docs/performance.md has the figures for 1
constexpr int kRings = kConsumers / kSharers;
constexpr int kParts = 2;  // m64 parts of a consumer
constexpr int kTileM = 64 * kParts * kSharers;
constexpr int kTileN = 176;
constexpr int kSums = kTileN / 2;   // of a thread and part
constexpr int kDepth = 32;          // rows of a stage
constexpr int kBox = kDepth * 128;  // bytes of as many rows x 64 columns
constexpr int kBoxesN = (kTileN + 63) / 64;
constexpr int kBoxesM = kTileM / 64;
constexpr int kBoxes = kBoxesM + kBoxesN;
constexpr int kStages = kSharers == 1 ? 5 : 7;
constexpr int kThreads = 128 * (1 + kConsumers);  // the first warpgroup loads
constexpr int kSharedBytes = kRings * kStages * (kBoxes * kBox + 24);
static_assert(kSharedBytes <= 227 * 1024);

// One call's matrices: m is the width of dy and n that of x, or the other way round when swapped.
struct Problem {
  CUtensorMap m_side;  // [rows, m]
  CUtensorMap n_side;  // [rows, n]
  const int32_t* sequence_offsets;
  const int32_t* slot_of_matrix;
  float* d_weight;  // [slots, m, n], or [slots, n, m] when swapped
  int32_t swapped;
  int32_t from_zero;  // d_weight is known to be zero
  int32_t sequences;
  int32_t pitch;     // between rows of d_weight
  int64_t distance;  // between its matrices
  int32_t m;
  int32_t n;
  int32_t m_tiles;
  int32_t n_tiles;
  // Problems over the same rows form a group, whose tiles come matrix by matrix: what one of them
  // has read the next finds in L2.
  int32_t first_tile;   // of the group
  int32_t group_tiles;  // of all its problems, per matrix
  int32_t before;       // of those before this one, per matrix
};

constexpr int kMostProblems = 6;
struct Parameters {
  Problem problem[kMostProblems];
  int32_t* counters;
  int32_t num_problems;
  int32_t tiles;
};

// A ring's part of shared memory.
struct Shared {
  uint32_t stages;
  uint32_t full;
  uint32_t empty;
  int32_t* tile;   // [stages]: tile of the stage, -1: no more
  int32_t* count;  // [stages]: its rows; negative: -rows, the tile's last

  __device__ Shared(unsigned char* memory, int ring) {
    constexpr int kBytes = kStages * kBoxes * kBox;
    stages = shared_address(memory) + ring * kBytes;
    unsigned char* rest = memory + kRings * kBytes + ring * kStages * 24;
    full = shared_address(rest);
    empty = full + 8 * kStages;
    tile = reinterpret_cast<int32_t*>(rest + 16 * kStages);
    count = tile + kStages;
  }
  __device__ uint32_t m_side(int stage) const { return stages + stage * kBoxes * kBox; }
  __device__ uint32_t n_side(int stage) const { return m_side(stage) + kBoxesM * kBox; }
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
  const int matrix = (tile - p.problem[problem].first_tile) / p.problem[problem].group_tiles;
  const int place = (tile - p.problem[problem].first_tile) % p.problem[problem].group_tiles;
  while (place < p.problem[problem].before) --problem;
  const Problem& of = p.problem[problem];
  const int inside = place - of.before;
  // The shorter side inside: tiles that run side by side share what they read.
  if (of.n_tiles <= of.m_tiles)
    return {problem, matrix, inside / of.n_tiles * kTileM, inside % of.n_tiles * kTileN};
  return {problem, matrix, inside % of.m_tiles * kTileM, inside / of.m_tiles * kTileN};
}

// The sums' tile on its way from memory while the first rows are loaded.
__device__ void prefetch_sums(const Problem& of, const Place& at, int lane) {
  const int slot = of.slot_of_matrix ? of.slot_of_matrix[at.matrix] : at.matrix;
  const float* matrix = of.d_weight + slot * of.distance;
  const int first_row = of.swapped ? at.first_n : at.first_m;
  const int first_column = of.swapped ? at.first_m : at.first_n;
  const int rows = min(of.swapped ? kTileN : kTileM, (of.swapped ? of.n : of.m) - first_row);
  const int columns = of.swapped ? of.m : of.n;
  const int lines = of.swapped ? kTileM / 32 : (kTileN + 31) / 32;  // of 128 bytes, per row
  for (int i = lane; i < rows * lines; i += 32) {
    const int column = first_column + i % lines * 32;
    if (column < columns)
      prefetch_l2(matrix + static_cast<int64_t>(first_row + i / lines) * of.pitch + column);
  }
}

// A ring's loading warp: its first lane feeds it.
__device__ void produce(const Parameters& p, const Shared& shared, int which) {
  const int lane = threadIdx.x % 32;
  Ring ring;
  ring.parity = 1;
  int tile = static_cast<int>(blockIdx.x) + which * static_cast<int>(gridDim.x);
  while (tile < p.tiles) {
    int next = 0;
    if (lane == 0) next = kRings * static_cast<int>(gridDim.x) + atomicAdd(p.counters, 1);
    const Place at = place_of(p, tile);
    const Problem& of = p.problem[at.problem];
    const int32_t* offsets =
        of.sequence_offsets + static_cast<int64_t>(at.matrix) * (of.sequences + 1);
    const bool wanted = !of.slot_of_matrix || of.slot_of_matrix[at.matrix] >= 0;
    const int begin = offsets[0];
    const int end = wanted ? offsets[of.sequences] : begin;
    if (begin < end && !of.from_zero) prefetch_sums(of, at, lane);
    int sequence = 0;
    int sequence_end = begin;
    for (int row = begin; lane == 0 && row < end;) {
      while (sequence_end <= row) sequence_end = offsets[++sequence];
      const int count = min(kDepth, sequence_end - row);
      const uint32_t full = shared.full + 8 * ring.stage;
      barrier_wait(shared.empty + 8 * ring.stage, ring.parity);
      shared.tile[ring.stage] = tile;
      shared.count[ring.stage] = row + count == end ? -count : count;
      barrier_expect(full, kBoxes * kBox);
#pragma unroll
      for (int box = 0; box < kBoxesM; ++box) {
        tma_load_2d(shared.m_side(ring.stage) + box * kBox, &of.m_side, full, at.first_m + 64 * box,
                    row);
      }
#pragma unroll
      for (int box = 0; box < kBoxesN; ++box) {
        tma_load_2d(shared.n_side(ring.stage) + box * kBox, &of.n_side, full, at.first_n + 64 * box,
                    row);
      }
      row += count;
      ring.advance();
    }
    tile = __shfl_sync(~0u, next, 0);
  }
  if (lane == 0) {
    barrier_wait(shared.empty + 8 * ring.stage, ring.parity);
    shared.tile[ring.stage] = -1;
    let_next_kernel_start();
    barrier_arrive(shared.full + 8 * ring.stage);
  }
}

// body(first, second, element) for every pair of sums that lies inside the matrix: neighbours in a
// row of d_weight, or with kSwapped in a column.
template <bool kSwapped, class Body>
__device__ void for_each_pair(const Problem& of, const Place& at, int member,
                              float (&sums)[kParts][kSums], Body&& body) {
  const int slot = of.slot_of_matrix ? of.slot_of_matrix[at.matrix] : at.matrix;
  float* matrix = of.d_weight + slot * of.distance;
  const int lane = threadIdx.x % 32;
  const int m0 = at.first_m + member * 64 * kParts + threadIdx.x % 128 / 32 * 16 + lane / 4;
  const int n0 = at.first_n + 2 * (lane % 4);
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
#pragma unroll
    for (int j = 0; j < kTileN / 8; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int m = m0 + 64 * part + 8 * half;
        const int n = n0 + 8 * j;
        if (m < of.m && n < of.n) {
          body(sums[part][4 * j + 2 * half], sums[part][4 * j + 2 * half + 1],
               matrix + (kSwapped ? static_cast<int64_t>(n) * of.pitch + m
                                  : static_cast<int64_t>(m) * of.pitch + n));
        }
      }
    }
  }
}

__device__ void read_sums(const Problem& of, const Place& at, int member,
                          float (&sums)[kParts][kSums]) {
  if (of.swapped) {
    for_each_pair<true>(of, at, member, sums, [&](float& a, float& b, const float* element) {
      a = element[0];
      b = element[of.pitch];
    });
  } else {
    for_each_pair<false>(of, at, member, sums, [&](float& a, float& b, const float* element) {
      const float2 pair = *reinterpret_cast<const float2*>(element);
      a = pair.x;
      b = pair.y;
    });
  }
}
__device__ void write_sums(const Problem& of, const Place& at, int member,
                           float (&sums)[kParts][kSums]) {
  if (of.swapped) {
    for_each_pair<true>(of, at, member, sums, [&](float a, float b, float* element) {
      element[0] = a;
      element[of.pitch] = b;
    });
  } else {
    for_each_pair<false>(of, at, member, sums, [&](float a, float b, float* element) {
      *reinterpret_cast<float2*>(element) = make_float2(a, b);
    });
  }
}

// Rows past the end of a sequence do not count: both sides become zero there.
__device__ void clear_tail(uint32_t boxes, int count, int which) {
  const int pieces = (16 - count % 16) * 8;  // of 16 bytes, per box
  for (int i = (threadIdx.x - 128) % (128 * kSharers); i < kBoxes * pieces; i += 128 * kSharers) {
    const uint32_t target = boxes + i / pieces * kBox + count * 128 + i % pieces * 16;
    asm volatile("st.shared.v4.u32 [%0], {%1,%1,%1,%1};" ::"r"(target), "r"(0) : "memory");
  }
  fence_async_proxy();
  named_sync(1 + which, 128 * kSharers);
}

// Read by the lane that will say that the stage is free.
__device__ int read_slot(const int32_t* slot) {
  int value = 0;
  if (threadIdx.x % 32 == 0) value = *const_cast<const volatile int32_t*>(slot);
  return __shfl_sync(~0u, value, 0);
}

__device__ void consume(const Parameters& p, const Shared& shared, int consumer) {
  const int member = consumer % kSharers;
  Ring ring;
  while (true) {
    barrier_wait(shared.full + 8 * ring.stage, ring.parity);
    const int tile = read_slot(shared.tile + ring.stage);
    if (tile < 0) return;
    const Place at = place_of(p, tile);
    float sums[kParts][kSums];
#pragma unroll
    for (auto& part : sums) {
#pragma unroll
      for (float& sum : part) sum = 0;
    }
    if (!p.problem[at.problem].from_zero) read_sums(p.problem[at.problem], at, member, sums);
    int before = -1;
    for (bool more = true; more;) {
      barrier_wait(shared.full + 8 * ring.stage, ring.parity);
      const int signed_count = read_slot(shared.count + ring.stage);
      more = signed_count > 0;
      const int count = abs(signed_count);
      if (count % 16 != 0) clear_tail(shared.m_side(ring.stage), count, consumer / kSharers);
      const uint64_t a =
          transposed_descriptor<kBox>(shared.m_side(ring.stage) + member * kParts * kBox);
      const uint64_t b = transposed_descriptor<kBox>(shared.n_side(ring.stage));
      const auto step = [&](int k16) {
#pragma unroll
        for (int part = 0; part < kParts; ++part)
          wgmma_step_transposed_176(sums[part], a + part * (kBox / 16) + k16 * 128, b + k16 * 128);
      };
      // A step under a condition would be waited for at once: each way has all of its steps.
      if (count > 16) {
        wgmma_fence();
        step(0);
        step(1);
        wgmma_commit();
      } else {
        wgmma_fence();
        step(0);
        wgmma_commit();
      }
      wgmma_wait<1>();
      __syncwarp();
      if (before >= 0 && threadIdx.x % 32 == 0) barrier_arrive(shared.empty + 8 * before);
      before = ring.stage;
      ring.advance();
    }
    wgmma_wait<0>();
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(shared.empty + 8 * before);
    write_sums(p.problem[at.problem], at, member, sums);
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    weight_gradient_kernel(const __grid_constant__ Parameters p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const bool loads = warp < 4;
  const int consumer = warp / 4 - 1;
  const int which = loads ? warp : consumer / kSharers;  // ring
  const Shared shared(memory, which);
  if (loads && which < kRings && threadIdx.x % 32 == 0) {
    for (int s = 0; s < kStages; ++s) {
      barrier_init(shared.full + 8 * s, 1);
      barrier_init(shared.empty + 8 * s, 4 * kSharers);
    }
    barrier_init_fence();
  }
  wait_for_previous_kernel();
  __syncthreads();
  if (loads) {
    give_registers<40>();
    if (which >= kRings) return;
    produce(p, shared, which);
    if (threadIdx.x % 32 == 0) {
      __threadfence();
      const unsigned last = kRings * gridDim.x - 1;
      if (atomicInc(reinterpret_cast<unsigned*>(p.counters) + 1, last) == last) p.counters[0] = 0;
    }
  } else {
    take_registers<232>();
    consume(p, shared, consumer);
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

bool readable(const TensorView& rows) {
  return rows.dtype == DType::BF16 && rows.dim(1) % 8 == 0 &&
         reinterpret_cast<uintptr_t>(rows.data) % 16 == 0 && rows.dim(0) < (1 << 30);
}
bool fits(const WeightGradient& args) {
  return readable(args.x) && readable(args.dy) && !(args.x_of_row && args.dy_of_row) &&
         reinterpret_cast<uintptr_t>(args.d_weight.data) % 16 == 0;
}
bool is_gathered(const WeightGradient& args) { return args.x_of_row || args.dy_of_row; }

// The gathered side laid out row by row, in scratch memory. Who has other room for it, and several
// gradients that share it, does that before (dispatch_rows).
WeightGradient laid_out(const Context& context, const WeightGradient& args) {
  WeightGradient result = args;
  TensorView& side = args.x_of_row ? result.x : result.dy;
  const TensorView& source = args.x_of_row ? args.x_of_row : args.dy_of_row;
  side.shape = {source.dim(0), side.dim(1)};
  side.data = scratch_of(context, side.num_bytes());
  TensorView offsets = args.sequence_offsets;
  offsets.shape = {offsets.num_elements()};
  gather_rows(context, {.x = args.x_of_row ? args.x : args.dy,
                        .offsets = offsets,
                        .token_of_row = source,
                        .out = side});
  result.x_of_row = {};
  result.dy_of_row = {};
  return result;
}

int32_t tiles_of(int64_t size, int64_t side) {
  return static_cast<int32_t>((size + side - 1) / side);
}

Problem describe(const WeightGradient& args) {
  // Whichever way wastes less of the tiles.
  const auto area = [](int64_t m, int64_t n) {
    return int64_t{kTileM} * kTileN * tiles_of(m, kTileM) * tiles_of(n, kTileN);
  };
  const bool swapped = area(args.x.dim(1), args.dy.dim(1)) < area(args.dy.dim(1), args.x.dim(1));
  const TensorView& m_side = swapped ? args.x : args.dy;
  const TensorView& n_side = swapped ? args.dy : args.x;
  return {
      .m_side = row_map(m_side),
      .n_side = row_map(n_side),
      .sequence_offsets = args.sequence_offsets.as<int32_t>(),
      .slot_of_matrix = args.slot_of_matrix ? args.slot_of_matrix.as<int32_t>() : nullptr,
      .d_weight = args.d_weight.as<float>() + args.first_n * args.d_weight.dim(2) + args.first_k,
      .swapped = swapped,
      .from_zero = args.start == GradientStart::from_zero,
      .sequences = static_cast<int32_t>(args.sequence_offsets.dim(1) - 1),
      .pitch = static_cast<int32_t>(args.d_weight.dim(2)),
      .distance = args.d_weight.dim(1) * args.d_weight.dim(2),
      .m = static_cast<int32_t>(m_side.dim(1)),
      .n = static_cast<int32_t>(n_side.dim(1)),
      .m_tiles = tiles_of(m_side.dim(1), kTileM),
      .n_tiles = tiles_of(n_side.dim(1), kTileN),
      .first_tile = 0,
      .group_tiles = 0,
      .before = 0};
}

// Appends a problem, to the group before it where the rows are the same.
void append(Parameters& p, const Problem& problem, int32_t matrices) {
  int first = p.num_problems;
  while (first > 0 && p.problem[first - 1].sequence_offsets == problem.sequence_offsets) --first;
  Problem& own = p.problem[p.num_problems++];
  own = problem;
  const int32_t tiles = problem.m_tiles * problem.n_tiles;
  own.first_tile = first + 1 < p.num_problems ? p.problem[first].first_tile : p.tiles;
  own.before = first + 1 < p.num_problems ? p.problem[first].group_tiles : 0;
  for (int i = first; i < p.num_problems; ++i) p.problem[i].group_tiles = own.before + tiles;
  p.tiles += matrices * tiles;
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
      if (is_gathered(args)) run();  // scratch memory is about to be used again
      append(p, describe(is_gathered(args) ? laid_out(context, args) : args),
             static_cast<int32_t>(args.sequence_offsets.dim(0)));
      if (p.num_problems == kMostProblems) run();
    }
  }
  run();
}

void weight_gradient(const Context& context, const WeightGradient& args) {
  cuda::weight_gradients(context, std::span<const WeightGradient>(&args, 1));
}

}  // namespace dsmoe::kernels::cuda

// Weight gradients dW += dy^T x as a grouped product over the rows of each matrix.
//
// Rows are the sum's dimension, so both tiles lie in shared memory with k outside (rows) and m or n
// inside, and wgmma reads them transposed. The chain starts from the gradient buffer, takes the
// sequences in order, and restarts its k16 blocks, zero-padded, at each (docs/numerics.md). One
// warp feeds a ring of stages, another clears what lies past the end of a sequence, and two
// warpgroups multiply.
#include "kernels/cuda/product/weight_gradient.h"

#include <algorithm>

#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/product/product.h"
#include "kernels/cuda/product/weight_gradient_sums.cuh"
#include "kernels/cuda/stream/launch.h"

namespace dsmoe::kernels::cuda {
namespace {

constexpr int kConsumers = 2;                     // warpgroups
constexpr int kThreads = 128 * (1 + kConsumers);  // of the first warpgroup one warp loads

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

// The loading warp: all lanes go along, the first one feeds the ring.
__device__ void produce(const GradientParameters& p, const GradientShared& shared) {
  const int lane = threadIdx.x % 32;
  Ring ring;
  ring.parity = 1;
  int tile = static_cast<int>(blockIdx.x);
  while (tile < p.tiles) {
    int next = 0;
    if (lane == 0) next = static_cast<int>(gridDim.x) + atomicAdd(p.counters, 1);
    const GradientPlace at = place_of(p, shared, tile);
    const GradientProblem& of = p.problem[at.problem];
    const int32_t* offsets =
        of.sequence_offsets + static_cast<int64_t>(at.matrix) * (of.sequences + 1);
    // The first lane's value goes to all, so that the compiler knows that the warp agrees.
    const auto offset = [&](int i) { return __shfl_sync(~0u, offsets[i], 0); };
    const int begin = offset(0);
    const bool wanted = of.slot(at.matrix) >= 0;
    const int end = wanted ? offset(of.sequences) : begin;
    if (begin == end && wanted && of.from_zero) clear_sums(of, at);
    const int boxes_n = of.tile_n / 64;
    const bool whole_m = of.m_side.is_whole(at.first_m, kBoxesM);
    const bool whole_n = of.n_side.is_whole(at.first_n, boxes_n);
    int sequence = 0;
    int sequence_end = begin;
    for (int row = begin; row < end;) {
      while (sequence_end <= row) sequence_end = offset(++sequence);
      const int count = min(kDepth, sequence_end - row);
      const uint32_t loaded = shared.loaded + 8 * ring.stage;
      barrier_wait(shared.empty + 8 * ring.stage, ring.parity);
      if (lane == 0) {
        shared.place[ring.stage] = at;
        shared.count[ring.stage] = row + count == end ? -count : count;
        barrier_expect(loaded, (kBoxesM + boxes_n) * kBox);
        of.m_side.load(shared.m_side(ring.stage), whole_m, kBoxesM, loaded, at.first_m, row);
        of.n_side.load(shared.n_side(ring.stage), whole_n, boxes_n, loaded, at.first_n, row);
      }
      row += count;
      ring.advance();
    }
    tile = __shfl_sync(~0u, next, 0);
  }
  if (lane == 0) {
    barrier_wait(shared.empty + 8 * ring.stage, ring.parity);
    shared.place[ring.stage].problem = -1;
    let_next_kernel_start();
    barrier_arrive(shared.loaded + 8 * ring.stage);
  }
}

// Read by the lane that will say that the stage is free.
__device__ int read_slot(const int32_t* slot) {
  int value = 0;
  if (threadIdx.x % 32 == 0) value = *const_cast<const volatile int32_t*>(slot);
  return __shfl_sync(~0u, value, 0);
}

// The warp between the loader and the consumers: rows past the end of a sequence do not count, both
// sides become zero there up to the next multiple of 16.
__device__ void clear_tails(const GradientShared& shared) {
  const int lane = threadIdx.x % 32;
  Ring ring;
  while (true) {
    barrier_wait(shared.loaded + 8 * ring.stage, ring.parity);
    const bool more = read_slot(&shared.place[ring.stage].problem) >= 0;
    const int count = abs(read_slot(shared.count + ring.stage));
    if (more && count % 16 != 0) {
      const uint32_t tail = shared.m_side(ring.stage) + count * 128;
#pragma unroll
      for (int box = 0; box < kBoxes; ++box) {
        for (int i = lane; i < (16 - count % 16) * 8; i += 32) {
          asm volatile("st.shared.v4.u32 [%0], {%1,%1,%1,%1};" ::"r"(tail + box * kBox + i * 16),
                       "r"(0)
                       : "memory");
        }
      }
      fence_async_proxy();
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(shared.full + 8 * ring.stage);
    if (!more) return;
    ring.advance();
  }
}

// A tile of at most kN columns, by one warpgroup's half of its rows. Registers of another width
// would have to be moved: everything that touches sums is made for each.
template <int kN>
__device__ void multiply(const GradientProblem& of, const GradientShared& shared, int consumer,
                         const GradientPlace& at, Ring& ring) {
  float sums[kParts][kN / 2];
#pragma unroll
  for (auto& part : sums) {
#pragma unroll
    for (float& sum : part) sum = 0;
  }
  if (!of.from_zero) read_sums(of, SumsAt(of, at, consumer), sums);
  int before = -1;
  for (bool more = true; more;) {
    barrier_wait(shared.full + 8 * ring.stage, ring.parity);
    const int count = read_slot(shared.count + ring.stage);
    more = count > 0;
    const uint64_t a =
        transposed_descriptor<kBox>(shared.m_side(ring.stage) + consumer * kParts * kBox);
    const uint64_t b = transposed_descriptor<kBox>(shared.n_side(ring.stage));
    const auto step = [&](int k16) {
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        wgmma_step_transposed<kN>(sums[part], a + part * (kBox / 16) + k16 * 128, b + k16 * 128);
    };
    // A step under a condition would be waited for at once: each way has all of its steps.
    if (abs(count) > 16) {
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
  write_sums(of, SumsAt(of, at, consumer), sums);
}

__device__ void consume(const GradientParameters& p, const GradientShared& shared, int consumer) {
  Ring ring;
  while (true) {
    barrier_wait(shared.full + 8 * ring.stage, ring.parity);
    const GradientPlace& slot = shared.place[ring.stage];
    const GradientPlace at{read_slot(&slot.problem), read_slot(&slot.matrix),
                           read_slot(&slot.first_m), read_slot(&slot.first_n)};
    if (at.problem < 0) return;
    const GradientProblem& of = p.problem[at.problem];
    const int columns = min(of.tile_n, of.n - at.first_n);
    if (columns > 160) {
      multiply<192>(of, shared, consumer, at, ring);
    } else if (columns > 128) {
      multiply<160>(of, shared, consumer, at, ring);
    } else if (columns > 64) {
      multiply<128>(of, shared, consumer, at, ring);
    } else {
      multiply<64>(of, shared, consumer, at, ring);
    }
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    weight_gradient_kernel(const __grid_constant__ GradientParameters p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const GradientShared shared(memory);
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      barrier_init(shared.loaded + 8 * s, 1);
      barrier_init(shared.full + 8 * s, 1);
      barrier_init(shared.empty + 8 * s, 4 * kConsumers);
    }
    barrier_init_fence();
  }
  wait_for_previous_kernel();
  sort_matrices(p, shared);
  __syncthreads();
  if (warp < 4) {
    give_registers<40>();
    if (warp == 1) clear_tails(shared);
    if (warp != 0) return;
    produce(p, shared);
    if (threadIdx.x == 0) {
      __threadfence();
      const unsigned last = gridDim.x - 1;
      if (atomicInc(reinterpret_cast<unsigned*>(p.counters) + 1, last) == last) p.counters[0] = 0;
    }
  } else {
    take_registers<232>();
    consume(p, shared, warp / 4 - 1);
  }
}

GradientSide side_of(const TensorView& rows, int boxes) {
  const auto width = static_cast<uint64_t>(rows.dim(1));
  const auto count = static_cast<uint64_t>(rows.dim(0));
  return {.blocks = tensor_map({.base = rows.data,
                                .rank = 3,
                                .sizes = {64, count, std::max<uint64_t>(1, width / 64)},
                                .strides = {width * 2, 128},
                                .box = {64, kDepth, static_cast<uint32_t>(boxes)}}),
          .columns = tensor_map({.base = rows.data,
                                 .rank = 2,
                                 .sizes = {width, count},
                                 .strides = {width * 2},
                                 .box = {64, kDepth}}),
          .whole = static_cast<int32_t>(width / 64 * 64),
          .rest = static_cast<int32_t>(width % 64)};
}

bool readable(const TensorView& rows) {
  return rows.dtype == DType::BF16 && rows.dim(1) % 8 == 0 && is_aligned(rows.data) &&
         rows.dim(0) < (1 << 30);
}
bool fits(const WeightGradient& args) {
  return readable(args.x.x) && readable(args.dy.x) && !(args.x.index && args.dy.index) &&
         is_aligned(args.d_weight.data) && args.d_weight.dim(2) % 4 == 0;
}
bool is_gathered(const WeightGradient& args) { return args.x.index || args.dy.index; }

// The gathered side laid out row by row, in scratch memory. Who has other room for it, and several
// gradients that share it, does that before (dispatch_rows).
WeightGradient laid_out(const Context& context, const WeightGradient& args) {
  WeightGradient result = args;
  Rows& side = args.x.index ? result.x : result.dy;
  const Rows gathered = side;
  side.index = {};
  side.x.shape = {gathered.count(), gathered.columns()};
  side.x.data = scratch_of(context, side.x.num_bytes());
  TensorView offsets = args.sequence_offsets;
  offsets.shape = {offsets.num_elements()};
  gather_rows(context, {.rows = gathered, .offsets = offsets, .out = side.x});
  return result;
}

int32_t tiles_of(int64_t size, int64_t side) {
  return static_cast<int32_t>((size + side - 1) / side);
}

// What the tiles of a matrix cost, in columns of kTileM; each as much as 48 columns more would.
// `alone`: on all multiprocessors, which take the narrow ones when the others run out.
int64_t cost_of(int64_t m, int64_t n, int64_t tile_n, bool alone) {
  const int64_t wide = tiles_of(m, kTileM) * (n / tile_n);
  const int64_t narrow = n % tile_n == 0 ? 0 : tiles_of(m, kTileM) * (n % tile_n + 48);
  const int64_t places = alone ? num_multiprocessors() : 1;
  const int64_t room = (places - wide % places) % places * (tile_n + 48);
  return (wide * (tile_n + 48) + std::max(narrow, room)) / places;
}

GradientProblem describe(const WeightGradient& args, int32_t tile_n, bool alone) {
  const int64_t x = args.x.columns();
  const int64_t dy = args.dy.columns();
  const bool swapped = cost_of(x, dy, tile_n, alone) < cost_of(dy, x, tile_n, alone);
  const TensorView& m_side = swapped ? args.x.x : args.dy.x;
  const TensorView& n_side = swapped ? args.dy.x : args.x.x;
  return {.m_side = side_of(m_side, kBoxesM),
          .n_side = side_of(n_side, tile_n / 64),
          .sequence_offsets = args.sequence_offsets.as<int32_t>(),
          .slot_of_matrix = args.slot_of_matrix ? args.slot_of_matrix.as<int32_t>() : nullptr,
          .d_weight = args.d_weight.as<float>() + args.first_n * args.d_weight.dim(2),
          .swapped = swapped,
          .from_zero = args.start == GradientStart::from_zero,
          .sequences = static_cast<int32_t>(args.sequence_offsets.dim(1) - 1),
          .pitch = static_cast<int32_t>(args.d_weight.dim(2)),
          .distance = args.d_weight.dim(1) * args.d_weight.dim(2),
          .m = static_cast<int32_t>(m_side.dim(1)),
          .n = static_cast<int32_t>(n_side.dim(1)),
          .tile_n = tile_n,
          .m_tiles = tiles_of(m_side.dim(1), kTileM),
          .n_tiles = tiles_of(n_side.dim(1), tile_n),
          .first_tile = 0,
          .group_tiles = 0,
          .before = 0};
}

// Appends a problem, to the group before it where the rows are the same.
void append(GradientParameters& p, const GradientProblem& problem, int32_t matrices) {
  int first = p.num_problems;
  while (first > 0 && p.problem[first - 1].sequence_offsets == problem.sequence_offsets) --first;
  GradientProblem& own = p.problem[p.num_problems++];
  own = problem;
  const int32_t tiles = problem.m_tiles * problem.n_tiles;
  own.first_tile = first + 1 < p.num_problems ? p.problem[first].first_tile : p.tiles;
  own.before = first + 1 < p.num_problems ? p.problem[first].group_tiles : 0;
  for (int i = first; i < p.num_problems; ++i) p.problem[i].group_tiles = own.before + tiles;
  p.tiles += matrices * tiles;
  if (matrices > 1 && matrices <= kMostSorted) {
    p.sorted_from = own.first_tile;
    p.sorted_matrices = matrices;
    p.sorted_sequences = problem.sequences;
    p.sorted_offsets = problem.sequence_offsets;
  }
}

bool is_empty(const WeightGradient& args) { return args.dy.x.dim(0) == 0 || args.x.x.dim(0) == 0; }
bool has_one_matrix(const WeightGradient& args) { return args.sequence_offsets.dim(0) == 1; }

// Products of all, in multiplications.
int64_t work_of(std::span<const WeightGradient> list) {
  int64_t work = 0;
  for (const WeightGradient& args : list) {
    work += args.x.count() * args.dy.columns() * args.x.columns();
  }
  return work;
}

}  // namespace

void weight_gradients(const Context& context, const std::span<const WeightGradient>& list) {
  GradientParameters p{};
  const auto run = [&] {
    if (p.num_problems == 0) return;
    allow_shared_once<weight_gradient_kernel>(GradientShared::kBytes);
    p.counters = next_counters(context);
    launch(context,
           {.grid = dim3(static_cast<unsigned>(num_multiprocessors())),
            .block = dim3(kThreads),
            .shared_bytes = GradientShared::kBytes},
           weight_gradient_kernel, p);
    p = {};
  };
  // A tile with all rows that would take longer than its share of everything is made narrower.
  const int64_t share = work_of(list) / num_multiprocessors();
  const auto tile_n = [&](const WeightGradient& args) {
    return has_one_matrix(args) && args.x.x.dim(0) * kTileM * kTileN > share ? kNarrowN : kTileN;
  };
  // Long sums first: the others fill what they leave.
  for (const bool one_matrix : {true, false}) {
    for (const WeightGradient& args : list) {
      if (has_one_matrix(args) != one_matrix || is_empty(args)) continue;
      if (!fits(args)) {
        weight_gradient_portable(context, args);
        continue;
      }
      if (is_gathered(args)) run();  // scratch memory is about to be used again
      append(p,
             describe(is_gathered(args) ? laid_out(context, args) : args, tile_n(args),
                      list.size() == 1),
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

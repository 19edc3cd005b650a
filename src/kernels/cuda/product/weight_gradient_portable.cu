// The weight gradient without the copy engine: odd sizes through mma.sync, fp32 by FMA chains.
#include <algorithm>

#include "kernels/cuda/device/elements.cuh"
#include "kernels/cuda/product/weight_gradient.h"
#include "kernels/cuda/stream/launch.h"

namespace dsmoe::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kSegment = 256;  // rows of a chain under the fp32 rule

struct Parameters {
  const void* dy;
  const int32_t* dy_of_row;
  const void* x;
  const int32_t* x_of_row;
  const int32_t* sequence_offsets;
  const int32_t* slot_of_matrix;
  float* d_weight;
  float* segments;  // [segments, n, k]: sums of the only matrix
  int32_t num_segments;
  int32_t sequences;
  int32_t n;
  int32_t k;
  bool from_zero;  // d_weight is not read

  __device__ float start(const float* sum) const { return from_zero ? 0.0f : *sum; }
  __device__ int64_t dy_row(int row) const { return dy_of_row ? dy_of_row[row] : row; }
  __device__ int64_t x_row(int row) const { return x_of_row ? x_of_row[row] : row; }
};

// One value of a row as the half of a register; zero past the end.
__device__ uint32_t half(const void* rows, int64_t row, int column, int columns, bool inside) {
  if (!inside || column >= columns) return 0;
  return static_cast<const unsigned short*>(rows)[row * columns + column];
}

// blockIdx.x: 8 k per warp; blockIdx.y: 16 n; blockIdx.z: matrix.
__global__ void __launch_bounds__(kThreads) gradient_bf16(const __grid_constant__ Parameters p) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int lane = threadIdx.x % 32;
  const int matrix = static_cast<int>(blockIdx.z);
  const int slot = p.slot_of_matrix ? p.slot_of_matrix[matrix] : matrix;
  const int first_k = static_cast<int>(blockIdx.x * (kThreads / 32) + threadIdx.x / 32) * 8;
  const int first_n = static_cast<int>(blockIdx.y) * 16;
  if (slot < 0 || first_k >= p.k) return;
  const int32_t* offsets = p.sequence_offsets + static_cast<int64_t>(matrix) * (p.sequences + 1);
  float* target[4];
  float sum[4];
  for (int i = 0; i < 4; ++i) {
    const int n = first_n + lane / 4 + 8 * (i / 2);
    const int k = first_k + 2 * (lane % 4) + i % 2;
    target[i] = n < p.n && k < p.k ? p.d_weight + (static_cast<int64_t>(slot) * p.n + n) * p.k + k
                                   : nullptr;
    sum[i] = target[i] ? p.start(target[i]) : 0.0f;
  }
  for (int s = 0; s < p.sequences; ++s) {
    const int end = offsets[s + 1];
    for (int begin = offsets[s]; begin < end; begin += 16) {
      uint32_t a[4] = {};
      uint32_t b[2] = {};
      for (int i = 0; i < 4; ++i) {  // rows of this lane: 2 (lane % 4) + {0, 1, 8, 9}
        const int row = begin + 2 * (lane % 4) + i % 2 + 8 * (i / 2);
        const bool inside = row < end;
        const int64_t dy = inside ? p.dy_row(row) : 0;
        const int64_t x = inside ? p.x_row(row) : 0;
        const int shift = 16 * (i % 2);
        for (int h = 0; h < 2; ++h)
          a[2 * (i / 2) + h] |= half(p.dy, dy, first_n + lane / 4 + 8 * h, p.n, inside) << shift;
        b[i / 2] |= half(p.x, x, first_k + lane / 4, p.k, inside) << shift;
      }
      mma_16x8x16(sum, a, b);
    }
  }
  for (int i = 0; i < 4; ++i) {
    if (target[i]) *target[i] = sum[i];
  }
}

constexpr int kShare = 16;  // n of a thread

// chain[i] = sum over rows [begin, end) of dy[., first_n + i] x[., k].
template <class X>
__device__ void segment_sums(float (&chain)[kShare], const Parameters& p, int begin, int end,
                             int first_n, int k) {
  const auto* dy = static_cast<const float*>(p.dy);
  const auto* x = static_cast<const X*>(p.x);
#pragma unroll
  for (float& c : chain) c = 0;
#pragma unroll 4
  for (int row = begin; row < end; ++row) {
    const float factor = widen(x[p.x_row(row) * p.k + k]);
    const float* line = dy + p.dy_row(row) * p.n;
#pragma unroll
    for (int i = 0; i < kShare; ++i)
      chain[i] = fmaf(line[min(first_n + i, p.n - 1)], factor, chain[i]);
  }
}

// blockIdx.x: 128 k; blockIdx.y: 16 n; blockIdx.z: matrix.
template <class X>
__global__ void __launch_bounds__(kThreads) gradient_f32(const __grid_constant__ Parameters p) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int matrix = static_cast<int>(blockIdx.z);
  const int slot = p.slot_of_matrix ? p.slot_of_matrix[matrix] : matrix;
  const int k = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  const int first_n = static_cast<int>(blockIdx.y) * kShare;
  if (slot < 0 || k >= p.k) return;
  const int32_t* offsets = p.sequence_offsets + static_cast<int64_t>(matrix) * (p.sequences + 1);
  float* target = p.d_weight + (static_cast<int64_t>(slot) * p.n + first_n) * p.k + k;
  float acc[kShare];
#pragma unroll
  for (int i = 0; i < kShare; ++i)
    acc[i] = first_n + i < p.n ? p.start(target + static_cast<int64_t>(i) * p.k) : 0.0f;
  for (int s = 0; s < p.sequences; ++s) {
    for (int begin = offsets[s]; begin < offsets[s + 1]; begin += kSegment) {
      float chain[kShare];
      segment_sums<X>(chain, p, begin, min(offsets[s + 1], begin + kSegment), first_n, k);
#pragma unroll
      for (int i = 0; i < kShare; ++i) acc[i] = acc[i] + chain[i];
    }
  }
#pragma unroll
  for (int i = 0; i < kShare; ++i) {
    if (first_n + i < p.n) target[static_cast<int64_t>(i) * p.k] = acc[i];
  }
}

// The same for one matrix, segments side by side: blockIdx.z is the segment, counted over all
// sequences. Tiles of 64 n x 256 k, sixteen rows at a time through shared memory, 8 x 8 to a
// thread; the next sixteen are on their way meanwhile.
constexpr int kTileN = 64;
constexpr int kTileK = 256;
constexpr int kTileRows = 16;
constexpr int kTileThreads = 256;

struct RowTiles {
  float dy[kTileRows][kTileN];
  float x[kTileRows][kTileK];
};

// A thread's share of the rows to come: four values of dy, eight of x and the eight 128 further.
template <class X>
struct RowShare {
  float dy[4];
  RawEight<X> x[2];

  __device__ void load(const Parameters& p, int row0, int end, int first_n, int first_k) {
    const int row = row0 + static_cast<int>(threadIdx.x) / 16;
    const int n = first_n + threadIdx.x % 16 * 4;
    for (float& v : dy) v = 0;
    x[0] = x[1] = {};
    if (row >= end) return;
    const float* dy_row = static_cast<const float*>(p.dy) + p.dy_row(row) * p.n;
    const X* x_row = static_cast<const X*>(p.x) + p.x_row(row) * p.k;
    if (p.n % 4 == 0 && n < p.n) {
      const float4 four = *reinterpret_cast<const float4*>(dy_row + n);
      dy[0] = four.x, dy[1] = four.y, dy[2] = four.z, dy[3] = four.w;
    } else {
      for (int i = 0; i < 4; ++i) dy[i] = n + i < p.n ? dy_row[n + i] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int k = first_k + 128 * i + threadIdx.x % 16 * 8;
      if (k < p.k) x[i].load(x_row, k, p.k);
    }
  }
  __device__ void store(RowTiles& tiles) const {
    const int row = static_cast<int>(threadIdx.x) / 16;
    const int column = threadIdx.x % 16;
    *reinterpret_cast<float4*>(&tiles.dy[row][column * 4]) =
        make_float4(dy[0], dy[1], dy[2], dy[3]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float v[4];
      x[i / 2].widen(v, i % 2);
      *reinterpret_cast<float4*>(&tiles.x[row][i / 2 * 128 + column * 8 + i % 2 * 4]) =
          make_float4(v[0], v[1], v[2], v[3]);
    }
  }
};

template <class X>
__global__ void __launch_bounds__(kTileThreads, 2)
    gradient_f32_segments(const __grid_constant__ Parameters p) {
  __shared__ __align__(16) RowTiles tiles[2];
  static_assert(kTileThreads == kTileRows * kTileN / 4 && kTileThreads == kTileRows * kTileK / 16);
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int first_k = static_cast<int>(blockIdx.x) * kTileK;
  const int first_n = static_cast<int>(blockIdx.y) * kTileN;
  int segment = static_cast<int>(blockIdx.z);
  int begin = 0;
  int end = 0;  // absent segments are empty: their sums are zero
  for (int s = 0; s < p.sequences; ++s) {
    const int rows = p.sequence_offsets[s + 1] - p.sequence_offsets[s];
    const int segments = (rows + kSegment - 1) / kSegment;
    if (segment < segments) {
      begin = p.sequence_offsets[s] + segment * kSegment;
      end = min(begin + kSegment, p.sequence_offsets[s + 1]);
      break;
    }
    segment -= segments;
  }
  const int tn = threadIdx.x / 32 * 8;
  const int tk = threadIdx.x % 32 * 4;  // these four k, and those 128 further
  float chain[8][8] = {};
  RowShare<X> next;
  next.load(p, begin, end, first_n, first_k);
  int turn = 0;
  for (int row0 = begin; row0 < end; row0 += kTileRows, turn ^= 1) {
    const RowTiles& now = tiles[turn];
    next.store(tiles[turn]);
    __syncthreads();
    next.load(p, row0 + kTileRows, end, first_n, first_k);
    // Rows past the end are zero on both sides: fma(0, 0, chain) leaves the chain as it is.
#pragma unroll 4
    for (int r = 0; r < kTileRows; ++r) {
      alignas(16) float dy[8];
      alignas(16) float x[8];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        *reinterpret_cast<float4*>(dy + 4 * half) =
            *reinterpret_cast<const float4*>(&now.dy[r][tn + 4 * half]);
        *reinterpret_cast<float4*>(x + 4 * half) =
            *reinterpret_cast<const float4*>(&now.x[r][tk + 128 * half]);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
#pragma unroll
        for (int j = 0; j < 8; ++j) chain[i][j] = fmaf(dy[i], x[j], chain[i][j]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int n = first_n + tn + i;
    if (n >= p.n) break;
    float* sums = p.segments + (static_cast<int64_t>(blockIdx.z) * p.n + n) * p.k;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int k = first_k + tk + 128 * half;
      const float* own = chain[i] + 4 * half;
      if (p.k % 4 == 0 && k < p.k) {
        *reinterpret_cast<float4*>(sums + k) = make_float4(own[0], own[1], own[2], own[3]);
      } else {
        for (int j = 0; j < 4 && k + j < p.k; ++j) sums[k + j] = own[j];
      }
    }
  }
}

__global__ void __launch_bounds__(kThreads) add_segments(const __grid_constant__ Parameters p) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int slot = p.slot_of_matrix ? p.slot_of_matrix[0] : 0;
  const int64_t size = static_cast<int64_t>(p.n) * p.k;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (slot < 0 || i >= size) return;
  float acc = p.start(p.d_weight + slot * size + i);
#pragma unroll 16
  for (int s = 0; s < p.num_segments; ++s) acc = acc + p.segments[s * size + i];
  p.d_weight[slot * size + i] = acc;
}

template <class X>
void launch_f32(const Context& context, Parameters p, int64_t count, int64_t rows) {
  constexpr std::size_t kMostSegmentBytes = std::size_t{256} << 20;
  const dim3 grid(blocks_for(p.k, kThreads), blocks_for(p.n, kShare), static_cast<unsigned>(count));
  const int64_t segments = rows / kSegment + p.sequences;
  const auto bytes = static_cast<std::size_t>(segments * p.n * p.k) * 4;
  if (count > 1 || segments < 4 || segments > 65535 || bytes > kMostSegmentBytes) {
    return launch(context, {.grid = grid, .block = dim3(kThreads)}, gradient_f32<X>, p);
  }
  p.segments = static_cast<float*>(scratch_of(context, bytes));
  p.num_segments = static_cast<int32_t>(segments);
  launch(context,
         {.grid = dim3(blocks_for(p.k, kTileK), blocks_for(p.n, kTileN),
                       static_cast<unsigned>(segments)),
          .block = dim3(kTileThreads)},
         gradient_f32_segments<X>, p);
  launch(context,
         {.grid = dim3(blocks_for(static_cast<int64_t>(p.n) * p.k, kThreads)),
          .block = dim3(kThreads)},
         add_segments, p);
}

}  // namespace

void weight_gradient_portable(const Context& context, const WeightGradient& args) {
  DSMOE_CHECK(args.dy.columns() == args.d_weight.dim(1) && args.x.columns() == args.d_weight.dim(2),
              "a part of a weight gradient that the copy engine cannot read: [{}, {}]",
              args.dy.columns(), args.x.columns());
  const Parameters p{
      .dy = args.dy.x.data,
      .dy_of_row = args.dy.indices(),
      .x = args.x.x.data,
      .x_of_row = args.x.indices(),
      .sequence_offsets = args.sequence_offsets.as<int32_t>(),
      .slot_of_matrix = args.slot_of_matrix ? args.slot_of_matrix.as<int32_t>() : nullptr,
      .d_weight = args.d_weight.as<float>(),
      .segments = nullptr,
      .num_segments = 0,
      .sequences = static_cast<int32_t>(args.sequence_offsets.dim(1) - 1),
      .n = static_cast<int32_t>(args.dy.columns()),
      .k = static_cast<int32_t>(args.x.columns()),
      .from_zero = args.start == GradientStart::from_zero};
  const int64_t count = args.sequence_offsets.dim(0);
  if (args.dy.x.dtype == DType::BF16) {
    const dim3 grid(blocks_for(p.k, 8 * (kThreads / 32)), blocks_for(p.n, 16),
                    static_cast<unsigned>(count));
    return launch(context, {.grid = grid, .block = dim3(kThreads)}, gradient_bf16, p);
  }
  const int64_t rows = std::max(args.dy.x.dim(0), args.x.x.dim(0));
  if (args.x.x.dtype == DType::BF16) return launch_f32<bf16>(context, p, count, rows);
  launch_f32<float>(context, p, count, rows);
}

}  // namespace dsmoe::kernels::cuda

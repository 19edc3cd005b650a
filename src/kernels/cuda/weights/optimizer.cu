// AdamW and the norm of gradients: one tensor at a time, and all of them in one launch.
#include <algorithm>

#include "kernels/cuda/device/elements.cuh"
#include "kernels/cuda/device/ptx.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/stream/launch.h"

namespace dsmoe::kernels::cuda {
namespace {

constexpr int kThreads = kReduceThreads;
constexpr int64_t kPart = 16384;  // elements of a block's sum of squares

__global__ void __launch_bounds__(kThreads)
    square_parts(const float* x, int64_t size, double* part) {
  __shared__ double memory[kThreads / 32];
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kPart;
  const int64_t end = min(size, begin + kPart);
  double sum = 0;
#pragma unroll 4
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    const double v = x[i];
    sum += v * v;
  }
  sum = block_sum(sum, memory);
  if (threadIdx.x == 0) part[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads) add_parts(const double* part, int count, double* out) {
  __shared__ double memory[kThreads / 32];
  wait_for_previous_kernel();
  let_next_kernel_start();
  double sum = 0;
  for (int i = threadIdx.x; i < count; i += kThreads) sum += part[i];
  sum = block_sum(sum, memory);
  if (threadIdx.x == 0) *out = sum;
}

struct AdamwRule {
  float gradient_scale, lr, beta1, beta2, eps, correction1, correction2;
  explicit AdamwRule(const AdamwStep& args)
      : gradient_scale(args.gradient_scale),
        lr(args.lr),
        beta1(args.beta1),
        beta2(args.beta2),
        eps(args.eps),
        correction1(args.correction1),
        correction2(args.correction2) {}

  // Updates both moments and returns the new weight.
  __device__ float operator()(float gradient, float w, float& m, float& v,
                              float weight_decay) const {
    const float g = gradient * gradient_scale;
    m = fmaf(beta1, m, (1.0f - beta1) * g);
    v = fmaf(beta2, v, ((1.0f - beta2) * g) * g);
    const float update = (m / correction1) / (sqrtf(v / correction2) + eps);
    return w - lr * (update + weight_decay * w);
  }
};

struct AdamwParameters {
  float* weight;
  const float* gradient;
  float* first;
  float* second;
  int64_t size;
  float weight_decay;
  AdamwRule rule;
};

__global__ void __launch_bounds__(kThreads)
    adamw_kernel(const __grid_constant__ AdamwParameters p) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= p.size) return;
  float m = p.first[i];
  float v = p.second[i];
  p.weight[i] = p.rule(p.gradient[i], p.weight[i], m, v, p.weight_decay);
  p.first[i] = m;
  p.second[i] = v;
}

// --- all tensors: a block per tile of 64 x 64
constexpr int kTile = static_cast<int>(kOptimizerTile);
constexpr int kRowsAtOnce = kThreads / kTile;

// The tile's corner in its tensor.
struct TileOrigin {
  int64_t row;
  int64_t column;
  __device__ TileOrigin(const OptimizerTensor& tensor, int64_t tile) {
    const int64_t across = (tensor.columns + kTile - 1) / kTile;
    const int64_t inside = tile - tensor.first_tile;
    row = inside / across * kTile;
    column = inside % across * kTile;
  }
};

__global__ void __launch_bounds__(kThreads)
    tile_squares(const OptimizerTensor* tensors, const int32_t* tensor_of_tile, double* part) {
  __shared__ double memory[kThreads / 32];
  wait_for_previous_kernel();
  let_next_kernel_start();
  const OptimizerTensor& tensor = tensors[tensor_of_tile[blockIdx.x]];
  const TileOrigin origin(tensor, blockIdx.x);
  const int64_t column = origin.column + threadIdx.x % kTile;
  double sum = 0;
  if (column < tensor.columns) {
    // All loads before the first sum.
    float g[kTile / kRowsAtOnce];
    const int rows = static_cast<int>(min(int64_t{kTile}, tensor.rows - origin.row));
    const int first_row = static_cast<int>(threadIdx.x) / kTile;
#pragma unroll
    for (int b = 0; b < kTile / kRowsAtOnce; ++b) {
      const int r = min(first_row + b * kRowsAtOnce, rows - 1);
      const int64_t place = (origin.row + r) * tensor.columns + column;
      g[b] = tensor.gradient[place];
      if (tensor.second_gradient) g[b] = g[b] + tensor.second_gradient[place];
    }
#pragma unroll
    for (int b = 0; b < kTile / kRowsAtOnce; ++b) {
      if (first_row + b * kRowsAtOnce >= rows) break;
      const double wide = g[b];
      sum += wide * wide;
    }
  }
  sum = block_sum(sum, memory);
  if (threadIdx.x == 0) part[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads)
    tensor_squares(const OptimizerTensor* tensors, const double* part, double* out) {
  __shared__ double memory[kThreads / 32];
  wait_for_previous_kernel();
  let_next_kernel_start();
  const OptimizerTensor& tensor = tensors[blockIdx.x];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < tensor.num_tiles; i += kThreads)
    sum += part[tensor.first_tile + i];
  sum = block_sum(sum, memory);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

__device__ void write_place(const OptimizerPlace& place, int64_t i, float value) {
  if (place.data == nullptr) return;
  if (place.dtype == DType::BF16) {
    round_into(static_cast<bf16*>(place.data)[i], value);
  } else {
    static_cast<float*>(place.data)[i] = value;
  }
}

__global__ void __launch_bounds__(kThreads)
    step_tiles(const OptimizerTensor* tensors, const int32_t* tensor_of_tile,
               const __grid_constant__ AdamwRule rule) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const OptimizerTensor& tensor = tensors[tensor_of_tile[blockIdx.x]];
  const TileOrigin origin(tensor, blockIdx.x);
  const int column = static_cast<int>(threadIdx.x) % kTile;
  const int64_t columns = tensor.columns;
  if (origin.column + column >= columns) return;
  const int rows = static_cast<int>(min(int64_t{kTile}, tensor.rows - origin.row));
  const float weight_decay = tensor.weight_decay;
  float* const weight = tensor.weight;
  float* const gradient = tensor.gradient;
  float* const second_gradient = tensor.second_gradient;
  float* const first = tensor.first_moment;
  float* const second = tensor.second_moment;
  const bool rounded = tensor.stored == DType::BF16;
  const bool clear = tensor.clear_gradient;
  const OptimizerPlace places[2] = {tensor.places[0], tensor.places[1]};
  // All loads of eight rows before the first store: memory that may alias would otherwise wait.
  constexpr int kBatch = 8;
  const int64_t corner = origin.row * columns + origin.column + column;
  for (int first_row = static_cast<int>(threadIdx.x) / kTile; first_row < rows;
       first_row += kBatch * kRowsAtOnce) {
    float g[kBatch], w[kBatch], m[kBatch], v[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int r = first_row + b * kRowsAtOnce;
      const int64_t i = corner + min(r, rows - 1) * columns;
      g[b] = gradient[i];
      w[b] = weight[i];
      m[b] = first[i];
      v[b] = second[i];
      if (second_gradient) g[b] = g[b] + second_gradient[i];
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int r = first_row + b * kRowsAtOnce;
      if (r >= rows) break;
      const int64_t i = corner + r * columns;
      w[b] = rule(g[b], w[b], m[b], v[b], weight_decay);
      if (clear) gradient[i] = 0;
      if (clear && second_gradient) second_gradient[i] = 0;
      first[i] = m[b];
      second[i] = v[b];
      weight[i] = w[b];
      const float value = rounded ? widen(__float2bfloat16_rn(w[b])) : w[b];
#pragma unroll
      for (const OptimizerPlace& place : places) write_place(place, i, value);
    }
  }
}

LaunchShape blocks(int64_t count) {
  return {.grid = dim3(static_cast<unsigned>(count)), .block = dim3(kThreads)};
}

}  // namespace

void sum_of_squares(const Context& context, const SumOfSquares& args) {
  const int64_t size = args.x.num_elements();
  const int64_t count = (size + kPart - 1) / kPart;
  auto* part = static_cast<double*>(
      scratch_of(context, static_cast<std::size_t>(std::max<int64_t>(count, 1)) * 8));
  if (count > 0) launch(context, blocks(count), square_parts, args.x.as<float>(), size, part);
  launch(context, blocks(1), add_parts, part, static_cast<int>(count), args.out.as<double>());
}

void adamw_step(const Context& context, const AdamwStep& args) {
  const int64_t size = args.weight.num_elements();
  if (size == 0) return;
  launch(context, blocks((size + kThreads - 1) / kThreads), adamw_kernel,
         AdamwParameters{.weight = args.weight.as<float>(),
                         .gradient = args.gradient.as<float>(),
                         .first = args.first_moment.as<float>(),
                         .second = args.second_moment.as<float>(),
                         .size = size,
                         .weight_decay = args.weight_decay,
                         .rule = AdamwRule(args)});
}

void gradient_square_sums(const Context& context, const OptimizerStep& args) {
  const int64_t tiles = args.tensor_of_tile.dim(0);
  if (tiles == 0) return;
  const auto* tensors = static_cast<const OptimizerTensor*>(args.tensors.data);
  auto* part = static_cast<double*>(scratch_of(context, static_cast<std::size_t>(tiles) * 8));
  launch(context, blocks(tiles), tile_squares, tensors, args.tensor_of_tile.as<int32_t>(), part);
  launch(context, blocks(args.square_sums.dim(0)), tensor_squares, tensors, part,
         args.square_sums.as<double>());
}

void optimizer_step(const Context& context, const OptimizerStep& args) {
  const int64_t tiles = args.tensor_of_tile.dim(0);
  if (tiles == 0) return;
  launch(context, blocks(tiles), step_tiles, static_cast<const OptimizerTensor*>(args.tensors.data),
         args.tensor_of_tile.as<int32_t>(), AdamwRule(args.rule));
}

}  // namespace dsmoe::kernels::cuda

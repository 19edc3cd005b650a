// Weights from host memory to their place on the device, in the type and order products read.
#include <cuda_fp16.h>

#include <algorithm>

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"

namespace dsmoe::kernels::cuda {
namespace {

constexpr int kSide = 32;
constexpr std::size_t kPieceBytes = std::size_t{32} << 20;  // uploaded at a time

__device__ float read(const float* from, int64_t i) { return from[i]; }
__device__ float read(const double* from, int64_t i) { return static_cast<float>(from[i]); }
__device__ float read(const bf16* from, int64_t i) { return widen(from[i]); }
__device__ float read(const __half* from, int64_t i) { return __half2float(from[i]); }

// Element (row, column) of source [rows, columns] to target[row * row_stride + column *
// column_stride]; tiles of 32 x 32, so that both sides are read and written along their rows.
template <class From, class To>
__global__ void __launch_bounds__(kSide * 8)
    pack_kernel(const From* source, To* target, int64_t rows, int64_t columns, int64_t row_stride,
                int64_t column_stride) {
  __shared__ float tile[kSide][kSide + 1];
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * kSide;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * kSide;
  const bool transposed = row_stride == 1;
  for (int i = threadIdx.y; i < kSide; i += 8) {
    const int64_t row = first_row + i;
    const int64_t column = first_column + threadIdx.x;
    if (row < rows && column < columns) tile[i][threadIdx.x] = read(source, row * columns + column);
  }
  __syncthreads();
  for (int i = threadIdx.y; i < kSide; i += 8) {
    const int r = transposed ? static_cast<int>(threadIdx.x) : i;
    const int c = transposed ? i : static_cast<int>(threadIdx.x);
    const int64_t row = first_row + r;
    const int64_t column = first_column + c;
    if (row < rows && column < columns)
      round_into(target[row * row_stride + column * column_stride], tile[r][c]);
  }
}

template <class From>
void launch_pack(const Context& context, const void* source, const PackWeight& args, int64_t begin,
                 int64_t rows) {
  const WeightStack& target = args.target;
  const int64_t columns = args.source.dim(1);
  const bool transposed = args.order == PackOrder::transposed;
  const int64_t row_stride = transposed ? 1 : target.k;
  const int64_t column_stride = transposed ? target.k : 1;
  const int64_t offset = (args.row_begin + begin) * row_stride;
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>((columns + kSide - 1) / kSide),
                                       static_cast<unsigned>((rows + kSide - 1) / kSide)),
                          .block = dim3(kSide, 8)};
  const auto* from = static_cast<const From*>(source);
  if (target.dtype == DType::BF16) {
    return launch(context, shape, pack_kernel<From, bf16>, from,
                  static_cast<bf16*>(target.matrix(args.matrix_idx)) + offset, rows, columns,
                  row_stride, column_stride);
  }
  launch(context, shape, pack_kernel<From, float>, from,
         static_cast<float*>(target.matrix(args.matrix_idx)) + offset, rows, columns, row_stride,
         column_stride);
}

}  // namespace

void pack_weight(const Context& context, const PackWeight& args) {
  DSMOE_CHECK(args.target.layout == WeightLayout::row_major, "weights on CUDA are row-major");
  DSMOE_CHECK(args.target.dtype == DType::BF16 || args.target.dtype == DType::F32,
              "weights on CUDA are BF16 or F32");
  const int64_t rows = args.source.dim(0);
  const std::size_t row_bytes =
      static_cast<std::size_t>(args.source.dim(1)) * tensor::size_of(args.source.dtype);
  if (rows == 0 || row_bytes == 0) return;
  const int64_t step =
      std::clamp<int64_t>(static_cast<int64_t>(kPieceBytes / row_bytes), 1, int64_t{65535} * kSide);
  void* staged = scratch_of(context, static_cast<std::size_t>(std::min(step, rows)) * row_bytes);
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t count = std::min(step, rows - begin);
    check(cudaMemcpyAsync(staged,
                          static_cast<const char*>(args.source.data) +
                              static_cast<std::size_t>(begin) * row_bytes,
                          static_cast<std::size_t>(count) * row_bytes, cudaMemcpyHostToDevice,
                          stream_of(context)),
          "upload");
    switch (args.source.dtype) {
      case DType::F32:
        launch_pack<float>(context, staged, args, begin, count);
        break;
      case DType::F64:
        launch_pack<double>(context, staged, args, begin, count);
        break;
      case DType::BF16:
        launch_pack<bf16>(context, staged, args, begin, count);
        break;
      case DType::F16:
        launch_pack<__half>(context, staged, args, begin, count);
        break;
      default:
        fail(ErrorKind::internal, "{} is not a floating type", tensor::name_of(args.source.dtype));
    }
    // The host may reuse the source when this returns.
    check(cudaStreamSynchronize(stream_of(context)), "upload");
  }
}

}  // namespace dsmoe::kernels::cuda

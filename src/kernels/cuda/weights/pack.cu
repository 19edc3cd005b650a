// Weights from host memory to their place on the device, in the type products read.
#include <cuda_fp16.h>

#include <algorithm>

#include "kernels/cuda/device/elements.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/stream/launch.h"

namespace dsmoe::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::size_t kPieceBytes = std::size_t{32} << 20;  // uploaded at a time

__device__ float read(const float* from, int64_t i) { return from[i]; }
__device__ float read(const double* from, int64_t i) { return static_cast<float>(from[i]); }
__device__ float read(const bf16* from, int64_t i) { return widen(from[i]); }
__device__ float read(const __half* from, int64_t i) { return __half2float(from[i]); }

template <class From, class To>
__global__ void __launch_bounds__(kThreads)
    pack_kernel(const From* source, To* target, int64_t count) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) round_into(target[i], read(source, i));
}

// `count` elements to the matrix, from row `row` on.
template <class From>
void launch_pack(const Context& context, const void* source, const PackWeight& args, int64_t row,
                 int64_t count) {
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>((count + kThreads - 1) / kThreads)),
                          .block = dim3(kThreads)};
  const auto* from = static_cast<const From*>(source);
  void* matrix = args.target.matrix(args.matrix_idx);
  const int64_t first = args.target.index(row, 0);
  if (args.target.dtype == DType::BF16) {
    return launch(context, shape, pack_kernel<From, bf16>, from, static_cast<bf16*>(matrix) + first,
                  count);
  }
  launch(context, shape, pack_kernel<From, float>, from, static_cast<float*>(matrix) + first,
         count);
}

}  // namespace

void pack_weight(const Context& context, const PackWeight& args) {
  DSMOE_CHECK(args.target.layout == WeightLayout::row_major && args.order == PackOrder::as_stored,
              "weights on CUDA are row-major, and read as they lie by the backward pass too");
  DSMOE_CHECK(args.target.dtype == DType::BF16 || args.target.dtype == DType::F32,
              "weights on CUDA are BF16 or F32");
  const int64_t rows = args.source.dim(0);
  const std::size_t row_bytes =
      static_cast<std::size_t>(args.source.dim(1)) * tensor::size_of(args.source.dtype);
  if (rows == 0 || row_bytes == 0) return;
  const int64_t step = std::max<int64_t>(1, static_cast<int64_t>(kPieceBytes / row_bytes));
  void* staged = scratch_of(context, static_cast<std::size_t>(std::min(step, rows)) * row_bytes);
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t count = std::min(step, rows - begin);
    const int64_t row = args.row_begin + begin;
    const int64_t elements = count * args.source.dim(1);
    check(cudaMemcpyAsync(staged,
                          static_cast<const char*>(args.source.data) +
                              static_cast<std::size_t>(begin) * row_bytes,
                          static_cast<std::size_t>(count) * row_bytes, cudaMemcpyHostToDevice,
                          stream_of(context)),
          "upload");
    switch (args.source.dtype) {
      case DType::F32:
        launch_pack<float>(context, staged, args, row, elements);
        break;
      case DType::F64:
        launch_pack<double>(context, staged, args, row, elements);
        break;
      case DType::BF16:
        launch_pack<bf16>(context, staged, args, row, elements);
        break;
      case DType::F16:
        launch_pack<__half>(context, staged, args, row, elements);
        break;
      default:
        fail(ErrorKind::internal, "{} is not a floating type", tensor::name_of(args.source.dtype));
    }
    // The host may reuse the source when this returns.
    check(cudaStreamSynchronize(stream_of(context)), "upload");
  }
}

}  // namespace dsmoe::kernels::cuda

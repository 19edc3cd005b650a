// Rows of x laid one behind the other, in the order of the plan.
#include <algorithm>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/product.h"
#include "kernels/cuda/ptx.cuh"

namespace dsmoe::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRows = 16;  // of a block, on average
constexpr int kAtOnce = 8;

struct Parameters {
  const uint4* x;
  const int32_t* offsets;
  const int32_t* token_of_row;
  uint4* out;
  int32_t pieces;    // of 16 bytes, of a row of out
  int32_t x_pieces;  // of a row of x
};

// Block (e, s) takes the s-th part of expert e's rows. Blocks that run side by side have the same
// s, so about the same part of x: it is read from memory once, though several experts want each
// row.
__global__ void __launch_bounds__(kThreads) gather_kernel(const __grid_constant__ Parameters p) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int begin = p.offsets[blockIdx.x];
  const int64_t count = p.offsets[blockIdx.x + 1] - begin;
  const int first = begin + static_cast<int>(count * blockIdx.y / gridDim.y);
  const int end = begin + static_cast<int>(count * (blockIdx.y + 1) / gridDim.y);
  for (int row = first; row < end; row += kAtOnce) {
    int64_t token[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) token[i] = p.token_of_row[min(row + i, end - 1)];
    for (int piece = static_cast<int>(threadIdx.x); piece < p.pieces;
         piece += static_cast<int>(blockDim.x)) {
      uint4 value[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) value[i] = p.x[token[i] * p.x_pieces + piece];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (row + i < end) p.out[static_cast<int64_t>(row + i) * p.pieces + piece] = value[i];
      }
    }
  }
}

}  // namespace

void gather_rows(const Context& context, const GatherRows& args) {
  const auto experts = static_cast<unsigned>(args.offsets.dim(0) - 1);
  const int64_t parts = args.out.dim(0) / (static_cast<int64_t>(experts) * kRows);
  const Parameters p{.x = static_cast<const uint4*>(args.x.data) + args.columns.begin / 8,
                     .offsets = args.offsets.as<int32_t>(),
                     .token_of_row = args.token_of_row.as<int32_t>(),
                     .out = static_cast<uint4*>(args.out.data),
                     .pieces = static_cast<int32_t>(args.out.dim(1) / 8),
                     .x_pieces = static_cast<int32_t>(args.x.dim(1) / 8)};
  launch(
      context,
      {.grid = dim3(experts, static_cast<unsigned>(std::clamp<int64_t>(parts, 1, 65535))),
       .block = dim3(static_cast<unsigned>(std::clamp((p.pieces + 31) / 32 * 32, 32, kThreads)))},
      gather_kernel, p);
}

}  // namespace dsmoe::kernels::cuda

// Rows of x are laid out in the order of the plan.
#include <algorithm>

#include "kernels/cuda/device/ptx.cuh"
#include "kernels/cuda/product/product.h"
#include "kernels/cuda/stream/launch.h"

namespace dsmoe::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRows = 16;  // of a block, on average
constexpr int kAtOnce = 8;

struct Parameters {
  const uint4* x;
  const int32_t* offsets;
  const int32_t* token_of_row;
  const int32_t* row_of_slot;
  uint4* out;
  int32_t pieces;    // of 16 bytes, of a row of out
  int32_t x_pieces;  // of a row of x
  int32_t tokens;
  int32_t top_k;
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

// The same from the tokens' side: a row of x is read once and written for each of its experts.
constexpr int kTokens = 8;  // of a block
constexpr int kMostSlots = 16;

__global__ void __launch_bounds__(kThreads) scatter_kernel(const __grid_constant__ Parameters p) {
  __shared__ int32_t rows[kTokens * kMostSlots];
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int first = static_cast<int>(blockIdx.x) * kTokens;
  const int count = min(kTokens, p.tokens - first);
  for (int i = static_cast<int>(threadIdx.x); i < count * p.top_k;
       i += static_cast<int>(blockDim.x))
    rows[i] = p.row_of_slot[static_cast<int64_t>(first) * p.top_k + i];
  for (int begin = 0; begin < p.pieces; begin += static_cast<int>(blockDim.x)) {
    const int piece = begin + static_cast<int>(threadIdx.x);
    uint4 value[kTokens];
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      if (piece < p.pieces)
        value[i] = p.x[static_cast<int64_t>(first + min(i, count - 1)) * p.x_pieces + piece];
    }
    if (begin == 0) __syncthreads();
    if (piece >= p.pieces) continue;
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      for (int s = 0; i < count && s < p.top_k; ++s) {
        const int row = rows[i * p.top_k + s];
        if (row >= 0) p.out[static_cast<int64_t>(row) * p.pieces + piece] = value[i];
      }
    }
  }
}

}  // namespace

void gather_rows(const Context& context, const GatherRows& args) {
  const auto experts = static_cast<unsigned>(args.offsets.dim(0) - 1);
  const int64_t parts = args.out.dim(0) / (static_cast<int64_t>(experts) * kRows);
  const Parameters p{.x = static_cast<const uint4*>(args.rows.x.data) + args.columns.begin / 8,
                     .offsets = args.offsets.as<int32_t>(),
                     .token_of_row = args.rows.indices(),
                     .row_of_slot = args.row_of_slot ? args.row_of_slot.as<int32_t>() : nullptr,
                     .out = static_cast<uint4*>(args.out.data),
                     .pieces = static_cast<int32_t>(args.out.dim(1) / 8),
                     .x_pieces = static_cast<int32_t>(args.rows.columns() / 8),
                     .tokens = static_cast<int32_t>(args.rows.x.dim(0)),
                     .top_k = static_cast<int32_t>(args.row_of_slot ? args.row_of_slot.dim(1) : 0)};
  const dim3 block(static_cast<unsigned>(std::clamp((p.pieces + 31) / 32 * 32, 32, kThreads)));
  if (p.row_of_slot != nullptr && p.top_k <= kMostSlots) {
    const auto blocks = static_cast<unsigned>((p.tokens + kTokens - 1) / kTokens);
    return launch(context, {.grid = dim3(blocks), .block = block}, scatter_kernel, p);
  }
  launch(context,
         {.grid = dim3(experts, static_cast<unsigned>(std::clamp<int64_t>(parts, 1, 65535))),
          .block = block},
         gather_kernel, p);
}

}  // namespace dsmoe::kernels::cuda

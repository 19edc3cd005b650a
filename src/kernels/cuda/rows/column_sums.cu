// The end of sums over tokens: the chains of each sequence, then the sequences.
#include "kernels/cuda/rows/column_sums.cuh"

namespace dsmoe::kernels::cuda {
namespace {

// A warp's lanes are neighbouring columns, its number the sequence: sequences are summed side by
// side and added in order.
constexpr int kSequences = 16;

__global__ void __launch_bounds__(32 * kSequences)
    add_chains_kernel(const __grid_constant__ ColumnSums p) {
  __shared__ float sums[kSequences][32];
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int lane = threadIdx.x % 32;
  const int own = static_cast<int>(threadIdx.x) / 32;
  const int column = static_cast<int>(blockIdx.x) * 32 + lane;
  const bool inside = column < p.columns;
  float total = own == 0 && inside ? p.target[column] : 0.0f;
  int first = 0;  // chunk of sequence s0
  for (int s0 = 0; s0 < p.sequences; s0 += kSequences) {
    // Lane i: the chunks of sequence s0 + i.
    const int s = s0 + lane;
    const int chunks = lane < kSequences && s < p.sequences
                           ? (p.starts[s + 1] - p.starts[s] + kChunk - 1) / kChunk
                           : 0;
    int before = chunks;
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0u, before, step);
      if (lane >= step) before += other;
    }
    const int begin = first + __shfl_sync(~0u, before - chunks, own);
    const int count = __shfl_sync(~0u, chunks, own);
    first += __shfl_sync(~0u, before, 31);
    float sum = 0;
    if (inside) {
      const float* chain = p.chains + static_cast<int64_t>(begin) * p.columns + column;
#pragma unroll 16
      for (int c = 0; c < count; ++c) sum = sum + chain[static_cast<int64_t>(c) * p.columns];
    }
    sums[own][lane] = sum;
    __syncthreads();
    if (own == 0) {
      for (int i = 0; i < min(kSequences, p.sequences - s0); ++i) total = total + sums[i][lane];
    }
    __syncthreads();
  }
  if (own == 0 && inside) p.target[column] = total;
}

}  // namespace

ColumnSums column_sums(const Context& context, const TensorView& starts, int64_t tokens,
                       const TensorView& target, int64_t extra) {
  ColumnSums p{.starts = starts.as<int32_t>(),
               .chains = nullptr,
               .target = target ? target.as<float>() : nullptr,
               .sequences = static_cast<int32_t>(starts.dim(0) - 1),
               .chunks = 0,
               .columns = target ? static_cast<int32_t>(target.dim(0)) : 0};
  p.chunks = static_cast<int32_t>(tokens / kChunk + p.sequences);
  const int64_t floats = static_cast<int64_t>(p.chunks) * p.columns + extra;
  p.chains = static_cast<float*>(scratch_of(context, static_cast<std::size_t>(floats) * 4));
  return p;
}

void add_chains(const Context& context, const ColumnSums& sums) {
  launch(context,
         {.grid = dim3(static_cast<unsigned>((sums.columns + 31) / 32)),
          .block = dim3(32 * kSequences)},
         add_chains_kernel, sums);
}

}  // namespace dsmoe::kernels::cuda

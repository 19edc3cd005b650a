// Reductions over the lanes of a warp and over the 256 threads of a block, in one fixed order.
#pragma once

namespace dsmoe::kernels::cuda {

// Lanes join 16-8-4-2-1; every lane has the result.
template <class T, class Join>
__device__ T warp_reduce(T value, Join join) {
  for (int step = 16; step > 0; step /= 2) value = join(value, __shfl_xor_sync(~0u, value, step));
  return value;
}
template <class T>
__device__ T warp_sum(T value) {
  return warp_reduce(value, [](T a, T b) { return a + b; });
}
__device__ inline float warp_max(float value) {
  return warp_reduce(value, [](float a, float b) { return fmaxf(a, b); });
}

constexpr int kReduceThreads = 256;

// Row reductions: thread j of 256 folds its values ascending; then lanes join, then the eight warps
// ascending. `memory`: one value per warp.
template <class T, class Join>
__device__ T block_reduce(T value, Join join, T* memory) {
  value = warp_reduce(value, join);
  if (threadIdx.x % 32 == 0) memory[threadIdx.x / 32] = value;
  __syncthreads();
  T total = memory[0];
  for (int w = 1; w < kReduceThreads / 32; ++w) total = join(total, memory[w]);
  __syncthreads();
  return total;
}
template <class T>
__device__ T block_sum(T value, T* memory) {
  return block_reduce(
      value, [](T a, T b) { return a + b; }, memory);
}
// What block_sum gives for a row of one warp: lane l holds what thread 32 part + l would.
template <int kParts>
__device__ float row_sum(const float (&of_part)[kParts]) {
  static_assert(kParts <= kReduceThreads / 32);
  float total = 0;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const float value = warp_sum(of_part[part]);
    total = part == 0 ? value : total + value;
  }
  return kParts < kReduceThreads / 32 ? total + 0.0f : total;  // absent warps bring zeros
}
__device__ inline float block_max(float value, float* memory) {
  return block_reduce(
      value, [](float a, float b) { return fmaxf(a, b); }, memory);
}

}  // namespace dsmoe::kernels::cuda

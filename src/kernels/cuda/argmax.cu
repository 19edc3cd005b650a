// The most likely id of each row, and the bf16 numbers a checkpoint may hold made those we compute
// with.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/ptx.cuh"

namespace dsmoe::kernels::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kNone = 0x7fffffff;

// The larger value; between equals the lower id.
struct Best {
  float value = -INFINITY;
  int id = kNone;
  __device__ void offer(float other, int other_id) {
    if (other > value || (other == value && other_id < id)) {
      value = other;
      id = other_id;
    }
  }
  __device__ void join_warp() {
    for (int step = 16; step > 0; step /= 2) {
      const float other = __shfl_xor_sync(~0u, value, step);
      const int other_id = __shfl_xor_sync(~0u, id, step);
      offer(other, other_id);
    }
  }
};

__global__ void __launch_bounds__(kThreads)
    argmax_kernel(const float* logits, int32_t* index, int vocabulary) {
  __shared__ Best warps[kThreads / 32];
  wait_for_previous_kernel();
  let_next_kernel_start();
  const float* row = logits + static_cast<int64_t>(blockIdx.x) * vocabulary;
  Best best;
  bool finite = true;
#pragma unroll 8
  for (int i = threadIdx.x; i < vocabulary; i += kThreads) {
    const float value = row[i];
    finite = finite && isfinite(value);
    best.offer(value, i);
  }
  finite = __syncthreads_and(finite);
  best.join_warp();
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = best;
  __syncthreads();
  if (threadIdx.x < 32) {
    best = warps[threadIdx.x];
    best.join_warp();
    if (threadIdx.x == 0) index[blockIdx.x] = finite ? best.id : -1;
  }
}

}  // namespace

void argmax_forward(const Context& context, const ArgmaxForward& args) {
  if (args.logits.dim(0) == 0) return;
  launch(context,
         {.grid = dim3(static_cast<unsigned>(args.logits.dim(0))), .block = dim3(kThreads)},
         argmax_kernel, args.logits.as<float>(), args.index.as<int32_t>(),
         static_cast<int>(args.logits.dim(1)));
}

}  // namespace dsmoe::kernels::cuda

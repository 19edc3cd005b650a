// The most likely id of each row of logits.
#include "kernels/cuda/device/ptx.cuh"
#include "kernels/cuda/device/row_blocks.cuh"
#include "kernels/cuda/ops.h"

namespace dsmoe::kernels::cuda {
namespace {

constexpr int kThreads = 512;
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

// Each block takes every kBlocks-th piece of the row, the first joins what they found.
template <int kBlocks>
__global__ void __launch_bounds__(kThreads)
    argmax_kernel(const float* logits, int32_t* index, int vocabulary) {
  __shared__ Best warps[kThreads / 32];
  __shared__ Best found;
  __shared__ int is_finite;
  wait_for_previous_kernel();
  let_next_kernel_start();
  using Blocks = RowBlocks<kBlocks>;
  const int rank = Blocks::rank();
  const int64_t row_idx = Blocks::row();
  const float* row = logits + row_idx * vocabulary;
  Best best;
  bool finite = true;
  const auto offer = [&](float value, int i) {
    finite = finite && isfinite(value);
    best.offer(value, i);
  };
  // Four numbers at a time between the row's first border of 16 bytes and its last.
  const int head = min(vocabulary, static_cast<int>(-row_idx * vocabulary & 3));
  const int pieces = (vocabulary - head) / 4;
  const auto* wide = reinterpret_cast<const float4*>(row + head);
#pragma unroll 4
  for (int i = rank * kThreads + static_cast<int>(threadIdx.x); i < pieces;
       i += kBlocks * kThreads) {
    const float4 v = wide[i];
    const int id = head + 4 * i;
    offer(v.x, id), offer(v.y, id + 1), offer(v.z, id + 2), offer(v.w, id + 3);
  }
  if (rank == 0) {
    if (static_cast<int>(threadIdx.x) < head) offer(row[threadIdx.x], threadIdx.x);
    const int rest = head + 4 * pieces + static_cast<int>(threadIdx.x);
    if (rest < vocabulary) offer(row[rest], rest);
  }
  finite = __syncthreads_and(finite);
  best.join_warp();
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = best;
  __syncthreads();
  if (threadIdx.x < 32) {
    best = threadIdx.x < kThreads / 32 ? warps[threadIdx.x] : Best{};
    best.join_warp();
    if (threadIdx.x == 0) {
      found = best;
      is_finite = finite;
    }
  }
  if constexpr (kBlocks > 1) {
    Blocks::synchronise();
    if (rank == 0 && threadIdx.x == 0) {
      for (int other = 1; other < kBlocks; ++other) {
        const Best theirs = Blocks::of_block(found, other);
        best.offer(theirs.value, theirs.id);
        finite = finite && Blocks::of_block(is_finite, other);
      }
    }
    Blocks::synchronise();  // shared memory lives until the first block has read it
  }
  if (rank == 0 && threadIdx.x == 0) index[row_idx] = finite ? best.id : -1;
}

template <int kBlocks>
void launch_argmax(const Context& context, const ArgmaxForward& args) {
  launch(context, RowBlocks<kBlocks>::shape(args.logits.dim(0), kThreads), argmax_kernel<kBlocks>,
         args.logits.as<float>(), args.index.as<int32_t>(), static_cast<int>(args.logits.dim(1)));
}

}  // namespace

void argmax_forward(const Context& context, const ArgmaxForward& args) {
  if (args.logits.dim(0) == 0) return;
  // Many rows fill the device by themselves.
  if (has_clusters() && args.logits.dim(0) <= num_multiprocessors())
    return launch_argmax<8>(context, args);
  launch_argmax<1>(context, args);
}

}  // namespace dsmoe::kernels::cuda

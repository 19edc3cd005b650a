// A long row as the work of several blocks that read one another's shared memory.
#pragma once

#include <cooperative_groups.h>

#include "kernels/cuda/stream/launch.h"

namespace dsmoe::kernels::cuda {

// kBlocks neighbours of the grid, a cluster: more than one only where there are clusters.
template <int kBlocks>
struct RowBlocks {
  __device__ static int row() { return static_cast<int>(blockIdx.x / kBlocks); }
  __device__ static int rank() { return static_cast<int>(blockIdx.x % kBlocks); }
  __device__ static void synchronise() {
#if __CUDA_ARCH__ >= 900
    if constexpr (kBlocks > 1) return cooperative_groups::this_cluster().sync();
#endif
    __syncthreads();
  }
  // What another block has in the place of `mine`.
  template <class T>
  __device__ static const T& of_block(const T& mine, int rank) {
#if __CUDA_ARCH__ >= 900
    if constexpr (kBlocks > 1)
      return *cooperative_groups::this_cluster().map_shared_rank(&mine, rank);
#endif
    return mine;
  }

  static LaunchShape shape(int64_t rows, int threads) {
    return {.grid = dim3(static_cast<unsigned>(rows * kBlocks)),
            .block = dim3(static_cast<unsigned>(threads)),
            .cluster = kBlocks};
  }
};

}  // namespace dsmoe::kernels::cuda

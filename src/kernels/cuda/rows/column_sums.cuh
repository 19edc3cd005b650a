// Sums over the tokens of each sequence, per column. The rule's chain per sequence is cut every
// kChunk tokens from the sequence's start; the chains of a sequence are added ascending, then the
// sequences. Only the sequence decides, so micro-batches do not matter.
#pragma once

#include "kernels/cuda/device/ptx.cuh"
#include "kernels/cuda/stream/launch.h"
#include "kernels/layout.h"

namespace dsmoe::kernels::cuda {

constexpr int kChunk = 128;

struct ColumnSums {
  const int32_t* starts;
  float* chains;  // [chunks, columns]
  float* target;  // [columns], accumulated
  int32_t sequences;
  int32_t chunks;  // at most: tokens / kChunk + sequences
  int32_t columns;
};

struct TokenRange {
  int begin;
  int end;
};

// The tokens of chunk `chunk`, the sequences' chunks in order; none past the last. Found by one
// warp.
__device__ inline TokenRange find_chunk(const ColumnSums& p, int chunk) {
  const int lane = threadIdx.x % 32;
  for (int s0 = 0; s0 < p.sequences; s0 += 32) {
    const int s = s0 + lane;
    const int begin = s < p.sequences ? p.starts[s] : 0;
    const int end = s < p.sequences ? p.starts[s + 1] : 0;
    const int own = (end - begin + kChunk - 1) / kChunk;
    int before = own;
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0u, before, step);
      if (lane >= step) before += other;
    }
    const int all = __shfl_sync(~0u, before, 31);
    before -= own;
    const unsigned found = __ballot_sync(~0u, chunk >= before && chunk < before + own);
    if (found) {
      const int source = __ffs(found) - 1;
      const int first = __shfl_sync(~0u, begin + (chunk - before) * kChunk, source);
      return {first, min(__shfl_sync(~0u, end, source), first + kChunk)};
    }
    chunk -= all;
  }
  return {0, 0};
}

// Working memory for the chains; `extra` floats follow them.
ColumnSums column_sums(const Context& context, const TensorView& starts, int64_t tokens,
                       const TensorView& target, int64_t extra);
// Adds the chains to the target.
void add_chains(const Context& context, const ColumnSums& sums);

}  // namespace dsmoe::kernels::cuda

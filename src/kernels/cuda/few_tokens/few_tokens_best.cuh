// The most likely id of each row of logits, found where they are made: the largest of a block in
// its shared memory, that of all blocks by the last one to leave.
#pragma once

#include "kernels/cuda/few_tokens/few_tokens_tile.cuh"

namespace dsmoe::kernels::cuda {

// One number that orders logits as ArgmaxForward does: larger first, then the lower id; what is not
// finite above all others.
constexpr unsigned long long kNotFinite = ~0ull;
__device__ inline unsigned long long logit_key(float logit, int id) {
  if (!isfinite(logit)) return kNotFinite;
  const uint32_t bits = __float_as_uint(logit + 0.0f);  // one zero
  const uint32_t ordered = bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
  return static_cast<unsigned long long>(ordered) << 32 | ~static_cast<uint32_t>(id);
}
__device__ inline int32_t id_of_key(unsigned long long key) {
  return key == kNotFinite ? -1 : static_cast<int32_t>(~static_cast<uint32_t>(key));
}

// The launches of one stream share this. It is all zero before and after each of them.
struct BestMemory {
  unsigned long long keys[kMaxFewRows];
  unsigned left;  // blocks
};

// What a lane has seen of its tokens' logits.
template <int kTiles>
struct BestLogits {
  unsigned long long key[2 * kTiles] = {};

  // sum: of rows `first` and `first` + 8, as MatmulTile has them.
  __device__ void take(const float (&sum)[kTiles][4], int first) {
#pragma unroll
    for (int i = 0; i < 4 * kTiles; ++i) {
      const int slot = i / 4 * 2 + i % 2;
      key[slot] = max(key[slot], logit_key(sum[i / 4][i % 4], first + 8 * (i % 4 / 2)));
    }
  }

  // All threads of the block call it. `block` [kMaxFewRows] in shared memory, zero since a barrier.
  __device__ void finish(unsigned long long* block, BestMemory* all, int32_t* index, int tokens) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int slot = 0; slot < 2 * kTiles; ++slot) {
      for (int step = 4; step < 32; step *= 2)
        key[slot] = max(key[slot], __shfl_xor_sync(~0u, key[slot], step));
      const int token = slot / 2 * 8 + 2 * (lane % 4) + slot % 2;
      if (lane < 4 && token < tokens) atomicMax(block + token, key[slot]);
    }
    __syncthreads();
    static_assert(kMaxFewRows <= 32);
    if (threadIdx.x >= 32) return;
    if (lane < tokens) atomicMax(all->keys + lane, block[lane]);
    __threadfence();
    __syncwarp();
    unsigned left = 0;
    if (lane == 0) left = atomicInc(&all->left, gridDim.x - 1);
    if (__shfl_sync(~0u, left, 0) != gridDim.x - 1) return;
    __threadfence();
    if (lane < tokens) index[lane] = id_of_key(atomicExch(all->keys + lane, 0ull));
  }
};

}  // namespace dsmoe::kernels::cuda

// Copies of neighbouring bytes by the copy engine, from 9.0 on.
#pragma once

#include "kernels/cuda/device/ptx.cuh"

namespace dsmoe::kernels::cuda {

// A multiple of 16 bytes; the barrier counts them.
__device__ inline void bulk_load(uint32_t target, const void* source, uint32_t bytes,
                                 uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(target),
      "l"(source), "r"(bytes), "r"(barrier)
      : "memory");
}

}  // namespace dsmoe::kernels::cuda

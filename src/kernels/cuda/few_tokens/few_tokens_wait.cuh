// Waiting for a counter that other blocks of the launch add to.
#pragma once

namespace dsmoe::kernels::cuda {

__device__ inline unsigned load_acquire(const unsigned* pointer) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(pointer) : "memory");
  return value;
}
// Counts one more. A thread that sees it sees what this thread wrote before, and what others wrote
// before a barrier that they and this thread passed.
__device__ inline void add_release(unsigned* counter) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}
__device__ inline void wait_until(const unsigned* counter, unsigned value) {
  while (load_acquire(counter) < value) {
  }
}
// The same for a counter that is never set back to zero.
__device__ inline void wait_until_round(const unsigned* counter, unsigned value) {
  while (static_cast<int>(load_acquire(counter) - value) < 0) {
  }
}

}  // namespace dsmoe::kernels::cuda

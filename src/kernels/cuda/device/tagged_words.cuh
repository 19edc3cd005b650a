// Values that other blocks of a launch wait for, each with the launch's tag beside it: a reader
// that sees the tag has the value. No counter and no fence: one way through the second-level cache.
#pragma once

#include <cstdint>

namespace dsmoe::kernels::cuda {

// The tag of this launch: one more than that of the last one. `launches` is written by the last
// block to leave.
__device__ inline uint32_t launch_tag(const uint32_t* launches) {
  uint32_t before;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(before) : "l"(launches) : "memory");
  return before + 1;
}

struct TaggedWord {
  uint32_t value;
  uint32_t tag;
};
__device__ inline void store_tagged(uint64_t* word, uint32_t value, uint32_t tag) {
  const uint64_t both = static_cast<uint64_t>(tag) << 32 | value;
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(word), "l"(both) : "memory");
}
__device__ inline TaggedWord load_tagged(const uint64_t* word) {
  uint64_t both;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(both) : "l"(word) : "memory");
  return {static_cast<uint32_t>(both), static_cast<uint32_t>(both >> 32)};
}

}  // namespace dsmoe::kernels::cuda

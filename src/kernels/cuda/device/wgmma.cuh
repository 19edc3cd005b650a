// Warpgroup matrix steps: m64 x N x k16, both operands in shared memory, 128-byte swizzle, k
// contiguous or, transposed, m and n.
#pragma once

#include <cstdint>

namespace dsmoe::kernels::cuda {

// Rows of 128 bytes (64 k), eight rows to a swizzle atom of 1024 bytes; the tile starts on an atom.
// The next k16 step lies 32 bytes further: add 2 to the descriptor.
__device__ inline uint64_t tile_descriptor(uint32_t shared_address) {
  return (static_cast<uint64_t>(1) << 62) | (static_cast<uint64_t>(64) << 32) |
         (static_cast<uint64_t>(1) << 16) | ((shared_address & 0x3ffff) >> 4);
}
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// The same for a tile whose rows are k and hold 64 neighbouring m (or n): eight rows to an atom,
// the next 64 m in a box of its own, kBox bytes further. The next k16 step lies 2048 bytes further:
// add 128.
template <int kBox = 8192>
__device__ inline uint64_t transposed_descriptor(uint32_t shared_address) {
  return (static_cast<uint64_t>(1) << 62) | (static_cast<uint64_t>(64) << 32) |
         (static_cast<uint64_t>(kBox / 16) << 16) | ((shared_address & 0x3ffff) >> 4);
}

#define DSMOE_R4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define DSMOE_R16(d, i) DSMOE_R4(d, i), DSMOE_R4(d, i + 4), DSMOE_R4(d, i + 8), DSMOE_R4(d, i + 12)
#define DSMOE_R32(d, i) DSMOE_R16(d, i), DSMOE_R16(d, i + 16)
#define DSMOE_R64(d, i) DSMOE_R32(d, i), DSMOE_R32(d, i + 32)
#define DSMOE_N8 "%0,%1,%2,%3"
#define DSMOE_N16 DSMOE_N8 ",%4,%5,%6,%7"
#define DSMOE_N32 DSMOE_N16 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define DSMOE_N64 DSMOE_N32 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define DSMOE_N128                                                                             \
  DSMOE_N64                                                                                    \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%" \
  "54,%55,%56,"                                                                                \
  "%57,%58,%59,%60,%61,%62,%63"
#define DSMOE_N160 DSMOE_N128 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define DSMOE_N192 DSMOE_N160 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define DSMOE_N256                                                                               \
  DSMOE_N192                                                                                     \
  ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114," \
  "%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define DSMOE_WGMMA_AS(transposed, n, regs, a, b, ...)                                           \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" n "k16.f32.bf16.bf16 {" regs "}, %" a ", %" b \
               ", 1, 1, 1, " transposed ";\n"                                                    \
               : __VA_ARGS__                                                                     \
               : "l"(desc_a), "l"(desc_b))
#define DSMOE_WGMMA(...)                 \
  if constexpr (kTransposedA) {          \
    DSMOE_WGMMA_AS("1, 0", __VA_ARGS__); \
  } else {                               \
    DSMOE_WGMMA_AS("0, 0", __VA_ARGS__); \
  }
#define DSMOE_WGMMA_TRANSPOSED(...) DSMOE_WGMMA_AS("1, 1", __VA_ARGS__)

// d += A B^T for one k16 step. d starts from explicit zeros: a step that ignores d would make it
// live everywhere before. d[4 j ..] belongs to columns 8 j ..: the same layout for every N. A may
// lie as transposed_descriptor says.
template <int kN, bool kTransposedA = false>
__device__ inline void wgmma_step(float* d, uint64_t desc_a, uint64_t desc_b) {
  if constexpr (kN == 8) {
    DSMOE_WGMMA("8", DSMOE_N8, "4", "5", DSMOE_R4(d, 0));
  } else if constexpr (kN == 16) {
    DSMOE_WGMMA("16", DSMOE_N16, "8", "9", DSMOE_R4(d, 0), DSMOE_R4(d, 4));
  } else if constexpr (kN == 32) {
    DSMOE_WGMMA("32", DSMOE_N32, "16", "17", DSMOE_R16(d, 0));
  } else if constexpr (kN == 64) {
    DSMOE_WGMMA("64", DSMOE_N64, "32", "33", DSMOE_R32(d, 0));
  } else if constexpr (kN == 128) {
    DSMOE_WGMMA("128", DSMOE_N128, "64", "65", DSMOE_R64(d, 0));
  } else {
    static_assert(kN == 256);
    DSMOE_WGMMA("256", DSMOE_N256, "128", "129", DSMOE_R64(d, 0), DSMOE_R64(d, 64));
  }
}

// d += A^T B for one k16 step: both tiles as transposed_descriptor says.
template <int kN>
__device__ inline void wgmma_step_transposed(float* d, uint64_t desc_a, uint64_t desc_b) {
  if constexpr (kN == 64) {
    DSMOE_WGMMA_TRANSPOSED("64", DSMOE_N64, "32", "33", DSMOE_R32(d, 0));
  } else if constexpr (kN == 128) {
    DSMOE_WGMMA_TRANSPOSED("128", DSMOE_N128, "64", "65", DSMOE_R64(d, 0));
  } else if constexpr (kN == 160) {
    DSMOE_WGMMA_TRANSPOSED("160", DSMOE_N160, "80", "81", DSMOE_R64(d, 0), DSMOE_R16(d, 64));
  } else {
    static_assert(kN == 192);
    DSMOE_WGMMA_TRANSPOSED("192", DSMOE_N192, "96", "97", DSMOE_R64(d, 0), DSMOE_R32(d, 64));
  }
}

#undef DSMOE_WGMMA_TRANSPOSED
#undef DSMOE_WGMMA
#undef DSMOE_WGMMA_AS
#undef DSMOE_R4
#undef DSMOE_R16
#undef DSMOE_R32
#undef DSMOE_R64
#undef DSMOE_N8
#undef DSMOE_N16
#undef DSMOE_N32
#undef DSMOE_N64
#undef DSMOE_N128
#undef DSMOE_N160
#undef DSMOE_N192
#undef DSMOE_N256

}  // namespace dsmoe::kernels::cuda

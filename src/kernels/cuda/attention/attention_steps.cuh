// Products of attention tile by tile: sixteen rows to each of four warps, 64 rows of a block in
// shared memory. By single warps on any device, by warpgroups on Hopper: the same ascending chains
// of k16 steps, the same bits (docs/numerics.md).
#pragma once

#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/device/wgmma.cuh"

namespace dsmoe::kernels::cuda {

#define DSMOE_LIST4(m, d, i) m(d[i]), m(d[i + 1]), m(d[i + 2]), m(d[i + 3])
#define DSMOE_LIST16(m, d, i)                                               \
  DSMOE_LIST4(m, d, i), DSMOE_LIST4(m, d, i + 4), DSMOE_LIST4(m, d, i + 8), \
      DSMOE_LIST4(m, d, i + 12)
#define DSMOE_LIST32(m, d, i) DSMOE_LIST16(m, d, i), DSMOE_LIST16(m, d, i + 16)
#define DSMOE_UPDATED(v) "+f"(v)
#define DSMOE_WRITTEN(v) "=f"(v)
#define DSMOE_NAMES32                                                                            \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%" \
  "25,"                                                                                          \
  "%26,%27,%28,%29,%30,%31"
#define DSMOE_NAMES64                                                                            \
  DSMOE_NAMES32                                                                                  \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54" \
  ",%55,%56,%57,%58,%59,%60,%61,%62,%63"

// One k16 step of 64 rows and 64 columns, both in shared memory with k inside; the first of a chain
// starts it.
template <bool kFirst>
__device__ inline void warpgroup_score(float* d, uint64_t rows, uint64_t columns) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (kFirst) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " DSMOE_NAMES32
                 "}, %32, %33, 0, 1, 1, 0, 0;\n"
                 : DSMOE_LIST32(DSMOE_WRITTEN, d, 0)
                 : "l"(rows), "l"(columns));
  } else {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " DSMOE_NAMES32
                 "}, %32, %33, 1, 1, 1, 0, 0;\n"
                 : DSMOE_LIST32(DSMOE_UPDATED, d, 0)
                 : "l"(rows), "l"(columns));
  }
#endif
}
// The same with the rows' values in registers.
template <bool kFirst>
__device__ inline void warpgroup_score(float* d, const uint32_t (&rows)[4], uint64_t columns) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (kFirst) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " DSMOE_NAMES32
                 "}, {%32,%33,%34,%35}, %36, 0, 1, 1, 0;\n"
                 : DSMOE_LIST32(DSMOE_WRITTEN, d, 0)
                 : "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "l"(columns));
  } else {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " DSMOE_NAMES32
                 "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 0;\n"
                 : DSMOE_LIST32(DSMOE_UPDATED, d, 0)
                 : "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "l"(columns));
  }
#endif
}
// One k16 step into kDim columns; the block lies in shared memory with k outside.
template <int kDim>
__device__ inline void warpgroup_add(float* d, const uint32_t (&p)[4], uint64_t block) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (kDim == 64) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " DSMOE_NAMES32
                 "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;\n"
                 : DSMOE_LIST32(DSMOE_UPDATED, d, 0)
                 : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(block));
  } else {
    static_assert(kDim == 128);
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " DSMOE_NAMES64
                 "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;\n"
                 : DSMOE_LIST32(DSMOE_UPDATED, d, 0), DSMOE_LIST32(DSMOE_UPDATED, d, 32)
                 : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(block));
  }
#endif
}

#undef DSMOE_LIST4
#undef DSMOE_LIST16
#undef DSMOE_LIST32
#undef DSMOE_UPDATED
#undef DSMOE_WRITTEN
#undef DSMOE_NAMES32
#undef DSMOE_NAMES64

// Both kinds: s = rows . block^T for 64 rows of the block, o += p . block. By warpgroups in groups:
// start() before the first product after registers were written, close() ends a group, wait<n>()
// until at most n groups are under way.
struct WarpSteps {
  // 64 rows that stay: sixteen of them in this warp's registers.
  template <int kDim>
  struct Rows {
    uint32_t fragment[kDim / 16][4];
    __device__ void load(const bf16* first, int64_t pitch, int count, int head_dim) {
      const bf16* row[2];
      const int own = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
      for (int h = 0; h < 2; ++h)
        row[h] = own + 8 * h < count ? first + (own + 8 * h) * pitch : nullptr;
      load_queries<kDim>(fragment, row, head_dim);
    }
  };
  template <int kDim>
  static __device__ void score(float (&s)[8][4], const uint32_t (&rows)[kDim / 16][4],
                               uint32_t block) {
#pragma unroll
    for (int g = 0; g < 4; ++g)
      score_keys<kDim>(reinterpret_cast<float(&)[2][4]>(s[2 * g]), rows, block, 16 * g);
  }
  template <int kDim>
  static __device__ void score(float (&s)[8][4], const Rows<kDim>& rows, uint32_t block) {
    score<kDim>(s, rows.fragment, block);
  }
  template <int kDim>
  static __device__ void add(float (&o)[kDim / 8][4], const uint32_t (&p)[4][4], uint32_t block) {
#pragma unroll
    for (int g = 0; g < 4; ++g) {
#pragma unroll
      for (int d = 0; d < kDim; d += 16)
        add_values<kDim>(o[d / 8], o[d / 8 + 1], p[g], block, 16 * g, d);
    }
  }
};

struct WarpgroupSteps {
  template <int kDim>
  struct Rows {
    uint64_t descriptor;  // of the tile in shared memory
  };
  // The next 64 dimensions lie in a box of their own.
  static __device__ constexpr int step_offset(int step) { return step % 4 * 2 + step / 4 * 512; }

  template <int kDim>
  static __device__ void score(float (&s)[8][4], const uint32_t (&rows)[kDim / 16][4],
                               uint32_t block) {
    const uint64_t columns = tile_descriptor(block);
    warpgroup_score<true>(&s[0][0], rows[0], columns);
#pragma unroll
    for (int step = 1; step < kDim / 16; ++step)
      warpgroup_score<false>(&s[0][0], rows[step], columns + step_offset(step));
  }
  template <int kDim>
  static __device__ void score(float (&s)[8][4], const Rows<kDim>& rows, uint32_t block) {
    const uint64_t columns = tile_descriptor(block);
    warpgroup_score<true>(&s[0][0], rows.descriptor, columns);
#pragma unroll
    for (int step = 1; step < kDim / 16; ++step)
      warpgroup_score<false>(&s[0][0], rows.descriptor + step_offset(step),
                             columns + step_offset(step));
  }
  template <int kDim>
  static __device__ void add(float (&o)[kDim / 8][4], const uint32_t (&p)[4][4], uint32_t block) {
    const uint64_t values = transposed_descriptor(block);
#pragma unroll
    for (int g = 0; g < 4; ++g) warpgroup_add<kDim>(&o[0][0], p[g], values + 128 * g);
  }
  static __device__ void start() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    wgmma_fence();
#endif
  }
  static __device__ void close() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    wgmma_commit();
#endif
  }
  template <int kPending>
  static __device__ void wait() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    wgmma_wait<kPending>();
#endif
  }
  // After a wait: no use of these sums moves above it.
  template <int kCount>
  static __device__ void keep(float (&sums)[kCount][4]) {
#pragma unroll
    for (auto& four : sums) {
#pragma unroll
      for (float& v : four) asm volatile("" : "+f"(v)::"memory");
    }
  }
  // Before start(): these rows are made now, not when a product of other sums is under way.
  static __device__ void keep(uint32_t (&rows)[4][4]) {
#pragma unroll
    for (auto& four : rows) {
#pragma unroll
      for (uint32_t& v : four) asm volatile("" : "+r"(v)::"memory");
    }
  }
};

// Sums of a tile as the rows of the next product.
__device__ inline void round_tile(uint32_t (&rounded)[4][4], const float (&s)[8][4]) {
#pragma unroll
  for (int g = 0; g < 4; ++g) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      rounded[g][i] = pack_bf16(s[2 * g + i / 2][i % 2 * 2], s[2 * g + i / 2][i % 2 * 2 + 1]);
  }
}

__device__ inline void scale_scores(float (&s)[8][4], float scale) {
#pragma unroll
  for (int t = 0; t < 8; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[t][i] = s[t][i] * scale;
  }
}
// Hides those of 64 keys from `first_key` on that come after the position of the thread's row.
__device__ inline void hide_keys(float (&s)[8][4], int first_key, const int (&position)[2]) {
#pragma unroll
  for (int t = 0; t < 8; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (first_key + 8 * t + 2 * static_cast<int>(threadIdx.x % 4) + i % 2 > position[i / 2])
        s[t][i] = -INFINITY;
    }
  }
}

// The thread's two rows within a span.
struct RowSums {
  float max[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};

  // Takes in the scores of a block, which become numerators; c: what the sums so far are to be
  // multiplied by. Scores may come without their scale where it is a power of two: their product is
  // exact then, so that one fma has the bits of a product and a difference.
  template <bool kScaled = true>
  __device__ void take(float (&s)[8][4], float (&c)[2], float scale = 1) {
    float best[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int t = 0; t < 8; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) best[i / 2] = fmaxf(best[i / 2], s[t][i]);
    }
    float from[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float next = fmaxf(max[h], kScaled ? row_max4(best[h]) : row_max4(best[h]) * scale);
      c[h] = decay(max[h], next);
      max[h] = next;
      // A row that has seen no key yet: exp(-inf - 0) is zero too.
      from[h] = next == -INFINITY ? 0.0f : next;
    }
    float block_sum[2];
#pragma unroll
    for (int g = 0; g < 4; ++g) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int t = 2 * g; t < 2 * g + 2; ++t) {
#pragma unroll
          for (int i = 2 * h; i < 2 * h + 2; ++i)
            s[t][i] = exp_device(kScaled ? s[t][i] - from[h] : fmaf(s[t][i], scale, -from[h]));
        }
        const float part = row_sum4((s[2 * g][2 * h] + s[2 * g][2 * h + 1]) +
                                    (s[2 * g + 1][2 * h] + s[2 * g + 1][2 * h + 1]));
        block_sum[h] = g == 0 ? part : block_sum[h] + part;
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) sum[h] = fmaf(sum[h], c[h], block_sum[h]);
  }
};

template <int kDim>
__device__ void scale_sums(float (&o)[kDim / 8][4], const float (&c)[2]) {
  // Mostly the maximum stays: a factor of one changes nothing.
  if (!__any_sync(~0u, c[0] != 1.0f || c[1] != 1.0f)) return;
#pragma unroll
  for (int j = 0; j < kDim / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) o[j][i] = o[j][i] * c[i / 2];
  }
}

// A span that has ended joins the earlier ones, whose sums wait in `running` [kDim / 2, threads];
// unless it is the last, o starts again from zero.
template <int kDim>
__device__ void join_span(RowSums& all, const RowSums& ended, float (&o)[kDim / 8][4],
                          float* running, int threads, bool is_first, bool is_last) {
  float keep[2];
  float take[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (is_first) {
      all.max[h] = ended.max[h];
      all.sum[h] = ended.sum[h];
    } else {
      const Merge merge(all.max[h], ended.max[h]);
      all.max[h] = merge.max;
      all.sum[h] = merge(all.sum[h], ended.sum[h]);
      keep[h] = merge.keep;
      take[h] = merge.take;
    }
  }
#pragma unroll
  for (int j = 0; j < kDim / 2; ++j) {
    float* slot = running + j * threads + threadIdx.x;
    float& sum = o[j / 4][j % 4];
    if (!is_first) sum = fmaf(*slot, keep[j % 4 / 2], sum * take[j % 4 / 2]);
    if (!is_last) {
      *slot = sum;
      sum = 0;
    }
  }
}

// One of the thread's two rows, at `offset` of the output.
template <int kDim>
__device__ void write_output(const AttentionParameters& p, int64_t offset,
                             const float (&o)[kDim / 8][4], const RowSums& all, int half) {
  const int quarter = static_cast<int>(threadIdx.x % 4);
  const float sum = all.sum[half];
  if (p.log_sums && quarter == 0)
    p.log_sums[offset / p.head_dim] = fmaf(all.max[half], kLog2E, log2f(sum));
  bf16* out = static_cast<bf16*>(p.out) + offset;
#pragma unroll
  for (int j = 0; j < kDim / 8; ++j) {
    const int d = 8 * j + 2 * quarter;
    if (d < p.head_dim)
      *reinterpret_cast<uint32_t*>(out + d) =
          pack_bf16(o[j][2 * half] / sum, o[j][2 * half + 1] / sum);
  }
}

}  // namespace dsmoe::kernels::cuda

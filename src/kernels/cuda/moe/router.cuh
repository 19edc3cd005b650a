// What the router kernels share: exact centroid products, scores, selection and gates of a token.
#pragma once

#include "kernels/cuda/device/ptx.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/router.h"

namespace dsmoe::kernels::cuda {

constexpr int kSegment = 256;  // of k: one chain each, added ascending
constexpr int kMaxTopK = 32;

struct RouterParameters {
  RouterRule rule;
  const void* x;
  const float* centroids;
  const float* bias;
  const int32_t* experts_of_token;
  const int32_t* replayed;
  float* logits;
  float* affinity;
  int32_t* index;
  float* gate;
  int32_t* bad_token;
  unsigned* scratch;  // lowest bad token seen (all ones: none), blocks done
  int32_t tokens;
  int32_t experts;
  int32_t hidden;
};

__device__ inline void load_centroid(float (&v)[8], const float* row, int k, int size) {
  if (size % 8 == 0) {
    if (k >= size) {
#pragma unroll
      for (float& value : v) value = 0;
      return;
    }
    const float4 a = __ldg(reinterpret_cast<const float4*>(row + k));
    const float4 b = __ldg(reinterpret_cast<const float4*>(row + k + 4));
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    return;
  }
  for (int i = 0; i < 8; ++i) v[i] = k + i < size ? row[k + i] : 0.0f;
}

// A pair of fp32 values as three pairs of bf16 whose sum is exact: first the high parts and what
// they leave, then the others.
__device__ inline uint32_t split_high(float& a, float& b) {
  const uint32_t high = pack_bf16(a, b);
  a -= __uint_as_float(high << 16);
  b -= __uint_as_float(high & 0xffff0000u);
  return high;
}
__device__ inline void split_rest(float a, float b, uint32_t& middle, uint32_t& low) {
  middle = pack_bf16(a, b);
  low = pack_bf16(a - __uint_as_float(middle << 16), b - __uint_as_float(middle & 0xffff0000u));
}

// The centroid values one lane needs for a segment of 16 experts: 256 k of two experts, a quarter
// of each 32.
struct SegmentCentroids {
  float c[kSegment / 32][2][8];

  __device__ void load(const RouterParameters& p, int first_expert, int k_begin) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int block = 0; block < kSegment / 32; ++block) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int e = min(first_expert + lane / 4 + 8 * half, p.experts - 1);
        load_centroid(c[block][half], p.centroids + static_cast<int64_t>(e) * p.hidden,
                      k_begin + 32 * block + 8 * (lane % 4), p.hidden);
      }
    }
  }
};

// 32 k: two steps of three chains each. Where all centroids are bf16 numbers, as most checkpoints
// store them, middle and low parts are zero and their steps would add zeros: they are left out.
template <int kTiles>
__device__ void add_block(float (&sum)[3][kTiles][4], const float (&c)[2][8],
                          const uint32_t (&v)[kTiles][4]) {
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    uint32_t high[4];
    float rest[4][2];
    bool exact = true;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      rest[i][0] = c[i % 2][4 * step + 2 * (i / 2)];
      rest[i][1] = c[i % 2][4 * step + 2 * (i / 2) + 1];
      high[i] = split_high(rest[i][0], rest[i][1]);
      exact = exact && rest[i][0] == 0 && rest[i][1] == 0;
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const uint32_t b[2] = {v[t][2 * step], v[t][2 * step + 1]};
      mma_16x8x16(sum[0][t], high, b);
    }
    if (__all_sync(~0u, exact)) continue;
    uint32_t middle[4];
    uint32_t low[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) split_rest(rest[i][0], rest[i][1], middle[i], low[i]);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const uint32_t b[2] = {v[t][2 * step], v[t][2 * step + 1]};
      mma_16x8x16(sum[1][t], middle, b);
      mma_16x8x16(sum[2][t], low, b);
    }
  }
}

// Experts outside the best groups drop to -inf. `selection` lies in shared memory; lane g looks
// after group g.
__device__ inline void mask_groups(const RouterRule& rule, float* selection, int experts) {
  const int lane = threadIdx.x % 32;
  const int size = experts / rule.num_groups;
  float best = -INFINITY;
  float second = -INFINITY;
  if (lane < rule.num_groups) {
    for (int i = 0; i < size; ++i) {
      const float s = selection[lane * size + i];
      if (s > best) {
        second = best;
        best = s;
      } else {
        second = fmaxf(second, s);
      }
    }
  }
  float score = best;
  if (rule.group_score == GroupScore::sum_of_best_two && size > 1) score = best + second;
  int rank = 0;
  for (int g = 0; g < rule.num_groups; ++g) {
    const float other = __shfl_sync(~0u, score, g);
    rank += other > score || (other == score && g < lane);
  }
  if (lane < rule.num_groups && rank >= rule.top_groups) {
    for (int i = 0; i < size; ++i) selection[lane * size + i] = -INFINITY;
  }
  __syncwarp();
}

// A number as an integer of the same order, never zero for a finite one. Adding zero makes -0 equal
// to 0.
__device__ inline uint32_t ordered_key(float value) {
  const uint32_t bits = __float_as_uint(value + 0.0f);
  return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}
__device__ inline float value_of_key(uint32_t key) {
  return __uint_as_float(key ^ (key >> 31 ? 0x80000000u : 0xffffffffu));
}

// Writes the expert of lane's slot and returns it: the best `count` after the first `skip`, by
// descending selection, ties by lower index.
template <int kPerLane>
__device__ int choose(const float* selection, int experts, int skip, int count) {
  const int lane = threadIdx.x % 32;
  uint32_t key[kPerLane];  // zero: taken or absent
#pragma unroll
  for (int i = 0; i < kPerLane; ++i)
    key[i] = lane + 32 * i < experts ? ordered_key(selection[lane + 32 * i]) : 0;
  int mine = -1;
  for (int slot = -skip; slot < count; ++slot) {
    uint32_t best = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) best = max(best, key[i]);
    const uint32_t winner = __reduce_max_sync(~0u, best);
    int expert = 1 << 20;
#pragma unroll
    for (int i = kPerLane - 1; i >= 0; --i) expert = key[i] == winner ? lane + 32 * i : expert;
    expert = __reduce_min_sync(~0u, expert);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (expert == lane + 32 * i) key[i] = 0;
    }
    if (slot == lane) mine = expert;
  }
  return mine;
}

__device__ inline float scaled(const RouterRule& rule, float gate, bool normalised) {
  const bool scales = rule.scale != 1.0f && (!normalised || rule.scale_gates == ScaleGates::always);
  return scales ? gate * rule.scale : gate;
}

// The gate of lane's slot.
__device__ inline float gate_of(const RouterRule& rule, const float* s, int mine, int count,
                                float* sorted) {
  const int lane = threadIdx.x % 32;
  float g = mine >= 0 ? s[mine] : 0.0f;
  const bool normalised = rule.normalise && count > 1;
  if (normalised) {
    int rank = 0;
    for (int slot = 0; slot < count; ++slot) rank += __shfl_sync(~0u, mine, slot) < mine;
    if (mine >= 0) sorted[rank] = g;
    __syncwarp();
    float sum = 0;
    for (int slot = 0; slot < count; ++slot) sum += sorted[slot];
    g = g / (sum + 1e-20f);
    __syncwarp();
  }
  return lane < count ? scaled(rule, g, normalised) : 0.0f;
}

// exp(v - max) / sum over a warp's experts, kPerLane to a lane.
template <int kPerLane>
__device__ void softmax(float (&v)[kPerLane], int experts, float max) {
  const int lane = threadIdx.x % 32;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (lane + 32 * i < experts) {
      v[i] = expf(v[i] - max);
      sum += v[i];
    }
  }
  sum = warp_sum(sum);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) v[i] = v[i] / sum;
}

// One token by one warp. `s` (its logits on entry) and `selection` are the warp's own shared
// memory. Returns finiteness.
template <int kPerLane>
__device__ bool select_token(const RouterParameters& p, int token, float* s, float* selection,
                             float* sorted) {
  const RouterRule& rule = p.rule;
  const int lane = threadIdx.x % 32;
  float v[kPerLane];
  bool finite = true;
  float max = -INFINITY;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = lane + 32 * i;
    v[i] = e < p.experts ? s[e] : -INFINITY;
    if (e < p.experts) {
      finite = finite && isfinite(v[i]);
      if (p.logits) p.logits[static_cast<int64_t>(token) * p.experts + e] = v[i];
    }
    max = fmaxf(max, v[i]);
  }
  max = warp_max(max);
  if (rule.score == ScoreFunction::softmax) softmax<kPerLane>(v, p.experts, max);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = lane + 32 * i;
    if (e >= p.experts) continue;
    if (rule.score != ScoreFunction::softmax) v[i] = 1.0f / (1.0f + expf(-v[i]));
    s[e] = v[i];
    const float biased = p.bias ? v[i] + p.bias[e] : v[i];
    finite = finite && isfinite(biased);
    selection[e] = biased;
    p.affinity[static_cast<int64_t>(token) * p.experts + e] = v[i];
  }
  finite = __all_sync(~0u, finite);
  __syncwarp();

  int count = p.experts_of_token ? p.experts_of_token[token] : rule.top_k;
  int mine = -1;
  if (!finite) {
    count = 0;
  } else if (p.replayed) {
    const int wanted = lane < rule.top_k ? p.replayed[token * rule.top_k + lane] : -1;
    const unsigned absent = __ballot_sync(~0u, wanted < 0);
    count = absent ? __ffs(absent) - 1 : 32;
    mine = lane < count ? wanted : -1;
  } else {
    if (rule.top_groups < rule.num_groups) mask_groups(rule, selection, p.experts);
    mine = choose<kPerLane>(selection, p.experts, rule.skip_best, count);
  }
  const float gate = gate_of(rule, s, mine, count, sorted);
  if (lane < rule.top_k) {
    p.index[token * rule.top_k + lane] = mine;
    p.gate[token * rule.top_k + lane] = gate;
  }
  return finite;
}

}  // namespace dsmoe::kernels::cuda

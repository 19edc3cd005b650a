// What the router's kernels share: operands, the exact split of a centroid, and the selection of one token by one warp.
#pragma once

#include "kernels/cuda/ptx.cuh"
#include "kernels/router.h"

namespace dsmoe::kernels::cuda {

constexpr int kSegment = 256;
constexpr int kMaxExpertsRouted = 512;
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

// Eight consecutive values, zeros past the end of the row.
__device__ inline void load_activation(uint32_t (&v)[4], const bf16* row, int k, int size) {
  if (size % 8 == 0) {
    const uint4 raw = k < size ? *reinterpret_cast<const uint4*>(row + k) : uint4{};
    v[0] = raw.x, v[1] = raw.y, v[2] = raw.z, v[3] = raw.w;
    return;
  }
  const auto* bits = reinterpret_cast<const unsigned short*>(row);
  for (int i = 0; i < 4; ++i) {
    const uint32_t low = k + 2 * i < size ? bits[k + 2 * i] : 0;
    const uint32_t high = k + 2 * i + 1 < size ? bits[k + 2 * i + 1] : 0;
    v[i] = low | (high << 16);
  }
}
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

// A pair of fp32 values as three pairs of bf16 whose sum is exact.
__device__ inline void split(float a, float b, uint32_t& high, uint32_t& middle, uint32_t& low) {
  high = pack_bf16(a, b);
  a -= __uint_as_float(high << 16);
  b -= __uint_as_float(high & 0xffff0000u);
  middle = pack_bf16(a, b);
  low = pack_bf16(a - __uint_as_float(middle << 16), b - __uint_as_float(middle & 0xffff0000u));
}

__device__ inline float warp_sum(float value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  return value;
}
__device__ inline float warp_max(float value) {
  for (int step = 16; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(~0u, value, step));
  return value;
}

// Experts outside the best groups drop to -inf. `selection` lies in shared memory; lane g looks after group g.
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

// Writes the expert of lane's slot and returns it: the best `count` by descending selection, ties by lower index.
template <int kPerLane>
__device__ inline int choose(const float* selection, int experts, int count) {
  const int lane = threadIdx.x % 32;
  // Scores as integers of the same order; zero is left for experts that are taken or absent. Adding zero makes -0 equal to 0.
  uint32_t key[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const uint32_t bits = lane + 32 * i < experts ? __float_as_uint(selection[lane + 32 * i] + 0.0f) : 0xffffffffu;
    key[i] = bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
  }
  int mine = -1;
  for (int slot = 0; slot < count; ++slot) {
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

// The gate of lane's slot.
__device__ inline float gate_of(const RouterRule& rule, const float* s, int mine, int count, float* sorted) {
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
  if (rule.scale != 1.0f && (!normalised || rule.scale_gates == ScaleGates::always)) g = g * rule.scale;
  return lane < count ? g : 0.0f;
}

// One token by one warp. `s` (its logits on entry) and `selection` are the warp's own shared memory. Returns finiteness.
template <int kPerLane>
__device__ inline bool select_token(const RouterParameters& p, int token, float* s, float* selection, float* sorted) {
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
  finite = __all_sync(~0u, finite);
  max = warp_max(max);
  float sum = 0;
  if (rule.score == ScoreFunction::softmax) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (lane + 32 * i < p.experts) {
        v[i] = expf(v[i] - max);
        sum += v[i];
      }
    }
    sum = warp_sum(sum);
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = lane + 32 * i;
    if (e >= p.experts) continue;
    v[i] = rule.score == ScoreFunction::softmax ? v[i] / sum : 1.0f / (1.0f + expf(-v[i]));
    s[e] = v[i];
    selection[e] = p.bias ? v[i] + p.bias[e] : v[i];
    p.affinity[static_cast<int64_t>(token) * p.experts + e] = v[i];
  }
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
    mine = choose<kPerLane>(selection, p.experts, count);
  }
  const float gate = gate_of(rule, s, mine, count, sorted);
  if (lane < rule.top_k) {
    p.index[token * rule.top_k + lane] = mine;
    p.gate[token * rule.top_k + lane] = gate;
  }
  return finite;
}

// The lowest bad token of the grid: each of `parties` reports its own, the last to come writes the result.
__device__ inline void report_bad(const RouterParameters& p, unsigned bad, unsigned parties) {
  if (parties == 1) {
    *p.bad_token = static_cast<int32_t>(bad);
    return;
  }
  if (bad != ~0u) atomicMin(p.scratch, bad);
  __threadfence();
  if (atomicInc(p.scratch + 1, parties - 1) == parties - 1) *p.bad_token = static_cast<int32_t>(atomicExch(p.scratch, ~0u));
}

// Many tokens: false when the shape needs the other kernel.
bool launch_router_many(const Context& context, const RouterParameters& parameters);

}  // namespace dsmoe::kernels::cuda

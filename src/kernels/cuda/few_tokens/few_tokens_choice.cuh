// Routing and combining a few tokens inside one launch: the router's sums by all blocks, the choice
// by each block for itself, the tree of combine.
#pragma once

#include "kernels/cuda/device/tagged_words.cuh"
#include "kernels/cuda/few_tokens/few_tokens.cuh"
#include "kernels/cuda/moe/router.cuh"

namespace dsmoe::kernels::cuda {

constexpr int kMaxSlots = 32;  // tokens * top_k: a warp sorts them
constexpr int kMaxExpertsFew = 256;
constexpr int kMaxLevels = 10;         // of the combine tree, root included
constexpr int kMaxPartials = 1 << 17;  // router sums: segments * tokens * experts

struct FewFamily {
  const bf16* gate;  // [count, width, hidden]; null: no such family
  const bf16* up;
  const bf16* down;  // [count, hidden, width]
  bf16* activation;  // [rows, width]
  int32_t width;
};

struct FewFfnParameters {
  RouterParameters router;  // index, gate, affinity: the results in memory
  const bf16* x;            // null: norm of the residual
  const float* norm_weight;
  float eps;
  FewFamily routed;
  FewFamily shared;
  float* residual;
  int32_t tokens;
  int32_t hidden;
  int32_t router_units;  // 16 experts by 256 k
  unsigned* left;        // blocks that have left the launch; zero before and after
  uint32_t* launches;    // so far
  unsigned* ups;         // warps that have done their part of up, over all launches
  uint64_t* partial;     // [segments, tokens, experts], tagged
};

// What the tokens chose: rows sorted by (expert, token), as the plan has them.
struct FewChoice {
  int group_expert[kMaxSlots];
  int group_first[kMaxSlots + 1];
  int row_token[kMaxSlots];
  int row_expert[kMaxSlots];
  float row_gate[kMaxSlots];
  int num_groups;
  int num_rows;
  bool unpublished;  // list_plain() was enough
  int finite[kMaxFewTokens];
  uint64_t selected;  // barriers: every token has its experts; rows and groups are listed
  uint64_t listed;
};

// A unit's centroids in shared memory: 16 rows of 256 values, in a warp's ring.
constexpr int kCentroidPitch = kSegment * 4 + 32;
static_assert(16 * kCentroidPitch <= 2 * kStageBytes);

__device__ inline void fetch_centroids(const FewFfnParameters& p, int unit, uint32_t target) {
  const int lane = threadIdx.x % 32;
  const int groups = (p.router.experts + 15) / 16;
  const int first_expert = unit % groups * 16;
  const int k_begin = unit / groups * kSegment;
#pragma unroll 1
  for (int i = 0; i < 16; ++i) {
    const float* row = p.router.centroids +
                       static_cast<int64_t>(min(first_expert + i, p.router.experts - 1)) * p.hidden;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int k = k_begin + half * 128 + lane * 4;
      const bool inside = k < p.hidden;
      copy_async_16(target + i * kCentroidPitch + (half * 128 + lane * 4) * 4,
                    row + (inside ? k : 0), inside ? 16 : 0);
    }
  }
  copy_async_commit();
}

// 8 k of two experts: what a lane multiplies of 32 k.
__device__ inline void load_centroids(float (&c)[2][8], const unsigned char* own) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const auto* values = reinterpret_cast<const float4*>(own + 8 * half * kCentroidPitch);
    const float4 a = values[0];
    const float4 b = values[1];
    c[half][0] = a.x, c[half][1] = a.y, c[half][2] = a.z, c[half][3] = a.w;
    c[half][4] = b.x, c[half][5] = b.y, c[half][6] = b.z, c[half][7] = b.w;
  }
}

// Sums of 16 experts over 256 k, as router_kernel makes them.
__device__ inline void router_unit(const FewFfnParameters& p, int unit, const unsigned char* x,
                                   const unsigned char* centroids, uint32_t tag) {
  const int lane = threadIdx.x % 32;
  const int groups = (p.router.experts + 15) / 16;
  const int first_expert = unit % groups * 16;
  const int segment = unit / groups;
  const unsigned char* row = x + min(lane / 4, p.tokens - 1) * x_pitch(p.hidden);
  const unsigned char* own = centroids + lane / 4 * kCentroidPitch + lane % 4 * 32;
  float sum[3][1][4] = {};
  const auto columns = [&](int block) {
    const int k = segment * kSegment + 32 * block + 8 * (lane % 4);
    return k < p.hidden ? *reinterpret_cast<const uint4*>(row + k * 2) : uint4{};
  };
  copy_async_wait<0>();
  __syncwarp();
  // The loop assumes that all centroids are bf16 numbers, and asks once at the end.
  bool exact = true;
#pragma unroll 2
  for (int block = 0; block < kSegment / 32; ++block) {
    float c[2][8];
    load_centroids(c, own + block * 128);
    const uint4 v = columns(block);
    const uint32_t b[2][2] = {{v.x, v.y}, {v.z, v.w}};
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      uint32_t high[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float low = c[i % 2][4 * step + 2 * (i / 2)];
        float next = c[i % 2][4 * step + 2 * (i / 2) + 1];
        high[i] = split_high(low, next);
        exact = exact && low == 0 && next == 0;
      }
      mma_16x8x16(sum[0][0], high, b[step]);
    }
  }
  if (!__all_sync(~0u, exact)) {
#pragma unroll
    for (float& value : sum[0][0]) value = 0;
#pragma unroll 1
    for (int block = 0; block < kSegment / 32; ++block) {
      float c[2][8];
      load_centroids(c, own + block * 128);
      const uint4 raw = columns(block);
      const uint32_t v[1][4] = {{raw.x, raw.y, raw.z, raw.w}};
      add_block<1>(sum, c, v);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int e = first_expert + lane / 4 + 8 * (i / 2);
    const int token = 2 * (lane % 4) + i % 2;
    if (e < p.router.experts && token < p.tokens) {
      store_tagged(p.partial + (segment * p.tokens + token) * p.router.experts + e,
                   __float_as_uint((sum[2][0][i] + sum[1][0][i]) + sum[0][0][i]), tag);
    }
  }
}

// The experts of a single token, where their scores would choose the same ones beyond doubt: listed
// before the scores are made, so that their weights are on their way meanwhile. `listed`: the
// barrier of those who wait for the list; gates are set behind it.
//
// With d = logit - max (rounded) and kGap between the d of the last chosen and the first not chosen
// expert, their exponentials differ by a factor of 1 + 2^-12; rounding of d (2^-18 at most, above
// kFloor), two units in the last place of each exponential and the division cannot make them equal.
template <int kPerLane>
__device__ bool list_plain(const FewFfnParameters& p, const float (&logit)[kPerLane],
                           FewChoice& choice, uint32_t listed) {
  constexpr float kGap = 0x1p-12f;
  constexpr float kFloor = -60;
  const RouterRule& rule = p.router.rule;
  const int lane = threadIdx.x % 32;
  if (rule.score != ScoreFunction::softmax || rule.skip_best != 0 ||
      rule.top_groups < rule.num_groups || rule.normalise || p.router.bias ||
      p.router.experts_of_token || rule.top_k >= p.router.experts)
    return false;
  uint32_t key[kPerLane];
  bool chosen[kPerLane] = {};
  bool finite = true;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const bool inside = lane + 32 * i < p.router.experts;
    finite = finite && isfinite(logit[i]);
    key[i] = inside ? ordered_key(logit[i]) : 0;
  }
  uint32_t first = 0;
  uint32_t last = 0;
  const auto best = [&] {
    uint32_t own = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) own = max(own, key[i]);
    return __reduce_max_sync(~0u, own);
  };
  for (int slot = 0; slot < rule.top_k; ++slot) {
    last = best();
    first = slot == 0 ? last : first;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (key[i] == last) {
        chosen[i] = true;
        key[i] = 0;
      }
    }
  }
  const float maximum = value_of_key(first);
  const float inside = value_of_key(last) - maximum;
  const float outside = value_of_key(best()) - maximum;
  int before = 0;
  int place[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const unsigned taken = __ballot_sync(~0u, chosen[i]);
    place[i] = before + __popc(taken & ((1u << lane) - 1));
    before += __popc(taken);
  }
  if (!__all_sync(~0u, finite) || before != rule.top_k || !(inside > kFloor) ||
      !(inside - outside > kGap))
    return false;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (!chosen[i]) continue;
    choice.group_expert[place[i]] = choice.row_expert[place[i]] = lane + 32 * i;
    choice.group_first[place[i]] = place[i];
    choice.row_token[place[i]] = 0;
  }
  if (lane == 0) {
    choice.num_groups = choice.num_rows = before;
    choice.group_first[before] = before;
  }
  __syncwarp();
  barrier_arrive(listed);
  float score[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) score[i] = logit[i];
  softmax<kPerLane>(score, p.router.experts, maximum);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (chosen[i]) choice.row_gate[place[i]] = scaled(rule, score[i], false);
  }
  return true;
}

// Logits of one token, by one warp; kPerLane experts to a lane. True: list_plain() has listed its
// experts.
template <int kPerLane>
__device__ bool sum_logits(const FewFfnParameters& p, int token, uint32_t tag, float* logits,
                           FewChoice& choice, uint32_t listed) {
  const int lane = threadIdx.x % 32;
  const int experts = p.router.experts;
  const int segments = (p.hidden + kSegment - 1) / kSegment;
  const uint64_t* partial = p.partial + token * experts;
  float logit[kPerLane] = {};
  constexpr int kBatch = 16 / kPerLane;  // loads under way at once, per expert
  for (int first = 0; first < segments; first += kBatch) {
    TaggedWord part[kPerLane][kBatch];
    bool complete;
    do {
      complete = true;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
#pragma unroll
        for (int s = 0; s < kBatch; ++s) {
          const bool inside = lane + 32 * i < experts && first + s < segments;
          const int64_t place =
              static_cast<int64_t>(first + s) * p.tokens * experts + lane + 32 * i;
          part[i][s] = inside ? load_tagged(partial + place) : TaggedWord{0, tag};
        }
      }
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
#pragma unroll
        for (int s = 0; s < kBatch; ++s) complete = complete && part[i][s].tag == tag;
      }
    } while (!complete);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
#pragma unroll
      for (int s = 0; s < kBatch; ++s) {
        if (first + s < segments) logit[i] += __uint_as_float(part[i][s].value);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (lane + 32 * i < experts) logits[lane + 32 * i] = logit[i];
  }
  __syncwarp();
  return p.tokens == 1 && list_plain<kPerLane>(p, logit, choice, listed);
}

// Scores and experts of one token, by one warp; `logits` and what lies behind them is its scratch.
// A function of its own: two places call it, and its code is long.
template <int kPerLane>
__device__ __noinline__ void select(const RouterParameters& local, int token, float* logits,
                                    FewChoice& choice) {
  float* selection = logits + local.experts;
  const bool finite =
      select_token<kPerLane>(local, token, logits, selection, selection + local.experts);
  if (threadIdx.x % 32 == 0) choice.finite[token] = finite;
  __syncwarp();
}

// Sorts the slots into rows and groups, by one warp.
__device__ inline void list_rows(const FewFfnParameters& p, const RouterParameters& local,
                                 FewChoice& choice) {
  const int lane = threadIdx.x % 32;
  const int top_k = p.router.rule.top_k;
  const bool inside = lane < p.tokens * top_k;
  const int expert = inside ? local.index[lane] : -1;
  const int token = lane / top_k;
  const int key = expert >= 0 ? expert * kMaxFewTokens + token : 0x7fffffff;
  int rank = 0;
  for (int other = 0; other < 32; ++other) rank += __shfl_sync(~0u, key, other) < key;
  const int num_rows = __popc(__ballot_sync(~0u, expert >= 0));
  if (expert >= 0) {
    choice.row_token[rank] = token;
    choice.row_expert[rank] = expert;
    choice.row_gate[rank] = local.gate[lane];
  }
  __syncwarp();
  const int own = lane < num_rows ? choice.row_expert[lane] : -1;
  const bool first = lane < num_rows && (lane == 0 || choice.row_expert[lane - 1] != own);
  const unsigned firsts = __ballot_sync(~0u, first);
  if (first) {
    const int group = __popc(firsts & ((1u << lane) - 1));
    choice.group_expert[group] = own;
    choice.group_first[group] = lane;
  }
  if (lane == 0) {
    choice.num_groups = __popc(firsts);
    choice.num_rows = num_rows;
    choice.group_first[__popc(firsts)] = num_rows;
  }
  __syncwarp();
}

// One block writes what the router found.
__device__ inline void publish(const FewFfnParameters& p, const RouterParameters& local,
                               const FewChoice& choice) {
  const int lane = threadIdx.x % 32;
  for (int i = lane; i < p.tokens * p.router.rule.top_k; i += 32) {
    p.router.index[i] = local.index[i];
    p.router.gate[i] = local.gate[i];
  }
  for (int i = lane; i < p.tokens * p.router.experts; i += 32)
    p.router.affinity[i] = local.affinity[i];
  if (lane == 0) {
    int bad = -1;
    for (int t = p.tokens - 1; t >= 0; --t) bad = choice.finite[t] ? bad : t;
    *p.router.bad_token = bad;
  }
}

// One column of one token. Experts come ascending; two neighbours part at the highest bit in which
// they differ, and lower borders join first: a stack of what still waits for its right half.
__device__ inline float join_experts(const FewChoice& choice, const float* rows, int token,
                                     int column, bool& any) {
  float waiting[kMaxLevels];
  int border[kMaxLevels];
  int top = -1;
  int before = 0;
  for (int r = 0; r < choice.num_rows; ++r) {
    if (choice.row_token[r] != token) continue;
    const int expert = choice.row_expert[r];
    const int level = top < 0 ? kMaxLevels : 31 - __clz(before ^ expert);
    while (top > 0 && border[top] < level) {
      waiting[top - 1] = waiting[top - 1] + waiting[top];
      --top;
    }
    ++top;
    border[top] = level;
    waiting[top] = rows[r * 16 + column] * choice.row_gate[r];
    before = expert;
  }
  any = top >= 0;
  for (; top > 0; --top) waiting[top - 1] = waiting[top - 1] + waiting[top];
  return any ? waiting[0] : 0.0f;
}

}  // namespace dsmoe::kernels::cuda

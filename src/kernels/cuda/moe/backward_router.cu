// The router's backward pass: from the gates' gradients to the logits', z loss.
#include "kernels/cuda/device/ptx.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/stream/launch.h"

namespace dsmoe::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kTokens = kThreads / 32;  // of a block, a warp each

struct BackwardParameters {
  const float* affinity;
  const int32_t* index;
  const int32_t* row_of_slot;
  const float* d_gate_of_row;
  const float* d_affinity;
  float* d_logits;
  int32_t tokens;
  int32_t experts;
  int32_t top_k;
  int32_t sigmoid;
  int32_t normalise;
  int32_t always_scale;
  float scale;
};

__global__ void __launch_bounds__(kThreads)
    router_backward_kernel(const __grid_constant__ BackwardParameters p) {
  extern __shared__ float memory[];
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int lane = threadIdx.x % 32;
  const int token = static_cast<int>(blockIdx.x) * kTokens + static_cast<int>(threadIdx.x) / 32;
  if (token >= p.tokens) return;
  float* d_s = memory + threadIdx.x / 32 * p.experts;
  const float* s = p.affinity + static_cast<int64_t>(token) * p.experts;
  for (int e = lane; e < p.experts; e += 32) d_s[e] = 0;
  __syncwarp();

  // Lane i holds slot i.
  const int64_t slot = static_cast<int64_t>(token) * p.top_k + lane;
  const int expert = lane < p.top_k ? p.index[slot] : -1;
  const int count = __popc(__ballot_sync(~0u, expert >= 0));
  const bool normalised = p.normalise && count > 1;
  const bool scaled = p.scale != 1.0f && (!normalised || p.always_scale);
  float d = 0;
  if (expert >= 0) {
    d = p.d_gate_of_row[p.row_of_slot[slot]];
    if (scaled) d = d * p.scale;
  }
  if (normalised) {
    const float own = expert >= 0 ? s[expert] : 0.0f;
    int rank = 0;
    for (int i = 0; i < count; ++i) {
      if (__shfl_sync(~0u, expert, i) < expert) ++rank;
    }
    const auto ascending = [&](float value) {
      float sum = 0;
      for (int r = 0; r < count; ++r) {
        const unsigned holder = __ballot_sync(~0u, expert >= 0 && rank == r);
        sum = sum + __shfl_sync(~0u, value, __ffs(holder) - 1);
      }
      return sum;
    };
    const float divisor = ascending(own) + 1e-20f;
    const float weighted = ascending(d * (own / divisor));
    d = (d - weighted) / divisor;
  }
  if (expert >= 0) d_s[expert] = d;
  __syncwarp();

  const int64_t offset = static_cast<int64_t>(token) * p.experts;
  float mean = 0;
  for (int e = lane; e < p.experts; e += 32) {
    if (p.d_affinity) d_s[e] = d_s[e] + p.d_affinity[offset + e];
    mean = fmaf(s[e], d_s[e], mean);
  }
  if (!p.sigmoid) mean = warp_sum(mean);
  for (int e = lane; e < p.experts; e += 32) {
    p.d_logits[offset + e] = p.sigmoid ? d_s[e] * (s[e] * (1.0f - s[e])) : s[e] * (d_s[e] - mean);
  }
}

// --- z loss
struct ZLossParameters {
  const float* logits;
  const int32_t* is_counted;
  float* d_logits;
  double* token_losses;  // [tokens]
  double* loss;
  double weight;
  int32_t tokens;
  int32_t experts;
};

__global__ void __launch_bounds__(kThreads)
    z_loss_kernel(const __grid_constant__ ZLossParameters p) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int lane = threadIdx.x % 32;
  const int token = static_cast<int>(blockIdx.x) * kTokens + static_cast<int>(threadIdx.x) / 32;
  if (token >= p.tokens) return;
  if (p.is_counted[token] == 0) {
    if (lane == 0) p.token_losses[token] = 0;
    return;
  }
  const float* s = p.logits + static_cast<int64_t>(token) * p.experts;
  float* d_logits = p.d_logits + static_cast<int64_t>(token) * p.experts;
  float max = -INFINITY;
  for (int e = lane; e < p.experts; e += 32) max = fmaxf(max, s[e]);
  max = warp_max(max);
  float sum = 0;
  for (int e = lane; e < p.experts; e += 32) sum += expf(s[e] - max);
  sum = warp_sum(sum);
  const float lse = max + static_cast<float>(log(static_cast<double>(sum)));
  if (lane == 0)
    p.token_losses[token] = p.weight * static_cast<double>(lse) * static_cast<double>(lse);
  const float slope = static_cast<float>(2.0 * p.weight) * lse;
  for (int e = lane; e < p.experts; e += 32)
    d_logits[e] = d_logits[e] + slope * (expf(s[e] - max) / sum);
}

// Tokens ascending, so that the reported loss does not depend on the micro-batches.
__global__ void __launch_bounds__(1024)
    add_token_losses(const __grid_constant__ ZLossParameters p) {
  __shared__ double part[1024];
  wait_for_previous_kernel();
  let_next_kernel_start();
  double sum = *p.loss;
  for (int begin = 0; begin < p.tokens; begin += 1024) {
    const int count = min(1024, p.tokens - begin);
    if (static_cast<int>(threadIdx.x) < count)
      part[threadIdx.x] = p.token_losses[begin + threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) {
#pragma unroll 8
      for (int i = 0; i < count; ++i) sum += part[i];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) *p.loss = sum;
}

}  // namespace

void router_backward(const Context& context, const RouterBackward& args) {
  const BackwardParameters p{.affinity = args.affinity.as<float>(),
                             .index = args.index.as<int32_t>(),
                             .row_of_slot = args.row_of_slot.as<int32_t>(),
                             .d_gate_of_row = args.d_gate_of_row.as<float>(),
                             .d_affinity = args.d_affinity ? args.d_affinity.as<float>() : nullptr,
                             .d_logits = args.d_logits.as<float>(),
                             .tokens = static_cast<int32_t>(args.affinity.dim(0)),
                             .experts = static_cast<int32_t>(args.affinity.dim(1)),
                             .top_k = args.rule.top_k,
                             .sigmoid = args.rule.score == ScoreFunction::sigmoid,
                             .normalise = args.rule.normalise,
                             .always_scale = args.rule.scale_gates == ScaleGates::always,
                             .scale = args.rule.scale};
  if (p.tokens == 0) return;
  DSMOE_CHECK(p.top_k <= 32 && p.experts <= 2048,
              "router on CUDA: top {} of {}; at most 32 of 2048 are supported", p.top_k, p.experts);
  launch(context,
         {.grid = dim3(blocks_for(p.tokens, kTokens)),
          .block = dim3(kThreads),
          .shared_bytes = static_cast<std::size_t>(kTokens * p.experts) * 4},
         router_backward_kernel, p);
}

void router_z_loss(const Context& context, const RouterZLoss& args) {
  ZLossParameters p{.logits = args.logits.as<float>(),
                    .is_counted = args.is_counted.as<int32_t>(),
                    .d_logits = args.d_logits.as<float>(),
                    .token_losses = nullptr,
                    .loss = args.loss.as<double>(),
                    .weight = args.weight,
                    .tokens = static_cast<int32_t>(args.logits.dim(0)),
                    .experts = static_cast<int32_t>(args.logits.dim(1))};
  if (p.tokens == 0) return;
  p.token_losses =
      static_cast<double*>(scratch_of(context, static_cast<std::size_t>(p.tokens) * 8));
  launch(context, {.grid = dim3(blocks_for(p.tokens, kTokens)), .block = dim3(kThreads)},
         z_loss_kernel, p);
  launch(context, {.grid = dim3(1), .block = dim3(1024)}, add_token_losses, p);
}

}  // namespace dsmoe::kernels::cuda

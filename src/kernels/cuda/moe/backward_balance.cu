// Balance losses of the router and their gradients. Statistics of a group of sequences in double:
// 32 chains over its tokens, each every 32nd token ascending, added ascending. The chains are
// shared out to thread blocks; then every block that writes gradients adds them up for itself.
#include "kernels/cuda/device/ptx.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/stream/launch.h"

namespace dsmoe::kernels::cuda {
namespace {

constexpr int kChains = 32;    // of a group, a warp each
constexpr int kWarps = 4;      // of a block that makes chains
constexpr int kSlices = 8;     // blocks of a group that write gradients
constexpr int kThreads = 256;  // of each of them

struct BalanceParameters {
  const float* affinity;
  const int32_t* index;
  const int32_t* starts;
  float* d_affinity;
  double* chains;        // [groups, kChains, experts]
  int32_t* counts;       // [groups, kChains / kWarps, experts]: tokens that chose an expert
  double* group_losses;  // [groups, 2]
  double* losses;
  double alpha;
  double device_alpha;
  double group_weight;
  int32_t sequences;
  int32_t per_group;
  int32_t groups;
  int32_t experts;
  int32_t top_k;
  int32_t devices;
  int32_t sigmoid;

  __device__ int first_token(int group) const { return starts[min(sequences, group * per_group)]; }
  __device__ const float* scores(int token) const {
    return affinity + static_cast<int64_t>(token) * experts;
  }
};

// What a token's scores are divided by, by one warp; softmax scores are not divided.
__device__ double score_sum(const BalanceParameters& p, const float* s) {
  double sum = 0;
  for (int e = threadIdx.x % 32; e < p.experts; e += 32) sum += s[e];
  return warp_sum(sum);
}

__global__ void __launch_bounds__(kWarps * 32)
    balance_chains(const __grid_constant__ BalanceParameters p) {
  extern __shared__ double memory[];  // [kWarps, experts], then the counts
  auto* count = reinterpret_cast<int*>(memory + kWarps * p.experts);
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int group = static_cast<int>(blockIdx.x);
  const int begin = p.first_token(group);
  const int end = p.first_token(group + 1);
  const int lane = threadIdx.x % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int chain = static_cast<int>(blockIdx.y) * kWarps + warp;
  double* own = memory + warp * p.experts;
  for (int e = lane; e < p.experts; e += 32) own[e] = 0;
  for (int e = threadIdx.x; e < p.experts; e += kWarps * 32) count[e] = 0;
  __syncthreads();
  // 32 tokens of the chain at a time; lane i knows what the scores of the i-th are divided by.
  for (int first = begin + chain; first < end; first += 32 * kChains) {
    const int tokens = min(32, (end - first + kChains - 1) / kChains);
    double divisor = 1;
    for (int i = 0; p.sigmoid && i < tokens; ++i) {
      const double sum = score_sum(p, p.scores(first + i * kChains));
      if (lane == i) divisor = sum;
    }
    for (int e0 = 0; e0 < p.experts; e0 += 32) {
      const int e = min(e0 + lane, p.experts - 1);
      float s[32];  // all loads before the first sum
#pragma unroll
      for (int i = 0; i < 32; ++i) s[i] = p.scores(first + min(i, tokens - 1) * kChains)[e];
      const bool inside = e0 + lane < p.experts;
      double sum = inside ? own[e] : 0.0;
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const double by = p.sigmoid ? __shfl_sync(~0u, divisor, i) : 1.0;
        if (i < tokens) sum += p.sigmoid ? s[i] / by : s[i];
      }
      if (inside) own[e] = sum;
    }
    if (lane < tokens) {
      const int32_t* chosen = p.index + static_cast<int64_t>(first + lane * kChains) * p.top_k;
      for (int i = 0; i < p.top_k; ++i) {
        if (chosen[i] >= 0) atomicAdd(count + chosen[i], 1);  // integers: any order
      }
    }
  }
  __syncthreads();
  const int64_t place = static_cast<int64_t>(group) * kChains + chain;
  for (int e = lane; e < p.experts; e += 32) p.chains[place * p.experts + e] = own[e];
  const int64_t part = static_cast<int64_t>(group) * gridDim.y + blockIdx.y;
  for (int e = threadIdx.x; e < p.experts; e += kWarps * 32)
    p.counts[part * p.experts + e] = count[e];
}

__global__ void __launch_bounds__(kThreads)
    balance_gradient(const __grid_constant__ BalanceParameters p) {
  extern __shared__ double memory[];
  double* mean = memory;                 // P [experts]
  double* slope = mean + p.experts;      // d loss / d P [experts]
  double* fraction = slope + p.experts;  // f [experts]
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int group = static_cast<int>(blockIdx.x);
  const int begin = p.first_token(group);
  const int end = p.first_token(group + 1);
  const auto tokens = static_cast<double>(end - begin);
  for (int e = threadIdx.x; e < p.experts; e += kThreads) {
    const double* chain = p.chains + static_cast<int64_t>(group) * kChains * p.experts + e;
    double sum = 0;
#pragma unroll
    for (int w = 0; w < kChains; ++w) sum += chain[static_cast<int64_t>(w) * p.experts];
    int count = 0;
    for (int i = 0; i < kChains / kWarps; ++i)
      count += p.counts[(static_cast<int64_t>(group) * (kChains / kWarps) + i) * p.experts + e];
    mean[e] = end > begin ? sum / tokens : 0.0;
    fraction[e] = end > begin ? count * (static_cast<double>(p.experts) / (p.top_k * tokens)) : 0.0;
    slope[e] = p.group_weight * p.alpha * fraction[e];
  }
  __syncthreads();
  if (threadIdx.x == 0 && (blockIdx.y == 0 || p.device_alpha != 0)) {
    double loss = 0;
    double device_loss = 0;
    for (int e = 0; e < p.experts; ++e) loss += slope[e] * mean[e];
    const int size = p.experts / p.devices;
    for (int d = 0; p.device_alpha != 0 && d < p.devices; ++d) {
      double f = 0;
      double sum = 0;
      for (int e = d * size; e < (d + 1) * size; ++e) {
        f += fraction[e] / size;
        sum += mean[e];
      }
      const double weight = p.group_weight * p.device_alpha * f;
      device_loss += weight * sum;
      for (int e = d * size; e < (d + 1) * size; ++e) slope[e] += weight;
    }
    if (blockIdx.y == 0) {
      p.group_losses[2 * group] = loss;
      p.group_losses[2 * group + 1] = device_loss;
    }
  }
  __syncthreads();
  const int lane = threadIdx.x % 32;
  const int warp = static_cast<int>(blockIdx.y * kThreads + threadIdx.x) / 32;
  for (int t = begin + warp; t < end; t += kSlices * kThreads / 32) {
    const float* s = p.scores(t);
    float* d_s = p.d_affinity + static_cast<int64_t>(t) * p.experts;
    double sum = 1;
    double shared = 0;  // the part of a normalised score's gradient that all scores share
    if (p.sigmoid) {
      sum = score_sum(p, s);
      for (int e = lane; e < p.experts; e += 32) shared += slope[e] * (s[e] / sum);
      shared = warp_sum(shared);
    }
    const double divisor = 1.0 / (tokens * sum);
    for (int e = lane; e < p.experts; e += 32)
      d_s[e] = static_cast<float>((slope[e] - shared) * divisor);
  }
}

__global__ void add_group_losses(const __grid_constant__ BalanceParameters p) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  double sum = p.losses[threadIdx.x];
#pragma unroll 8
  for (int g = 0; g < p.groups; ++g) sum += p.group_losses[2 * g + threadIdx.x];
  p.losses[threadIdx.x] = sum;
}

}  // namespace

void balance_loss(const Context& context, const BalanceLoss& args) {
  BalanceParameters p{.affinity = args.affinity.as<float>(),
                      .index = args.index.as<int32_t>(),
                      .starts = args.sequence_starts.as<int32_t>(),
                      .d_affinity = args.d_affinity.as<float>(),
                      .chains = nullptr,
                      .counts = nullptr,
                      .group_losses = nullptr,
                      .losses = args.losses.as<double>(),
                      .alpha = args.alpha,
                      .device_alpha = args.device_alpha,
                      .group_weight = args.group_weight,
                      .sequences = static_cast<int32_t>(args.sequence_starts.dim(0) - 1),
                      .per_group = static_cast<int32_t>(args.sequences_per_group),
                      .groups = 0,
                      .experts = static_cast<int32_t>(args.affinity.dim(1)),
                      .top_k = static_cast<int32_t>(args.index.dim(1)),
                      .devices = static_cast<int32_t>(args.num_devices),
                      .sigmoid = args.score == ScoreFunction::sigmoid};
  p.groups = (p.sequences + p.per_group - 1) / p.per_group;
  if (p.groups == 0) return;
  const auto groups = static_cast<std::size_t>(p.groups);
  const auto experts = static_cast<std::size_t>(p.experts);
  const std::size_t chain_bytes = experts * (kWarps * sizeof(double) + sizeof(int));
  DSMOE_CHECK(chain_bytes <= 220 * 1024, "balance loss on CUDA: {} experts exceed shared memory",
              p.experts);
  allow_shared_once<balance_chains>(220 * 1024);
  allow_shared_once<balance_gradient>(220 * 1024);
  const std::size_t chains = groups * kChains * experts;
  const std::size_t counts = groups * (kChains / kWarps) * experts;
  p.chains = static_cast<double*>(
      scratch_of(context, (chains + 2 * groups) * sizeof(double) + counts * sizeof(int32_t)));
  p.group_losses = p.chains + chains;
  p.counts = reinterpret_cast<int32_t*>(p.group_losses + 2 * groups);
  launch(context,
         {.grid = dim3(static_cast<unsigned>(p.groups), kChains / kWarps),
          .block = dim3(kWarps * 32),
          .shared_bytes = chain_bytes},
         balance_chains, p);
  launch(context,
         {.grid = dim3(static_cast<unsigned>(p.groups), kSlices),
          .block = dim3(kThreads),
          .shared_bytes = experts * 3 * sizeof(double)},
         balance_gradient, p);
  launch(context, {.grid = dim3(1), .block = dim3(2)}, add_group_losses, p);
}

}  // namespace dsmoe::kernels::cuda

// Row-wise ops: embedding, RMSNorm, RoPE, log-probabilities. One block per row.
#include <algorithm>

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/reduce.cuh"

namespace dsmoe::kernels::cuda {
namespace {

constexpr int kThreads = kReduceThreads;

template <class Operand>
__global__ void __launch_bounds__(kThreads)
    embedding_kernel(const int32_t* ids, const Operand* table, float* out, int hidden) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const Operand* row = table + static_cast<int64_t>(ids[blockIdx.x]) * hidden;
  float* target = out + static_cast<int64_t>(blockIdx.x) * hidden;
  for (int i = threadIdx.x * 8; i < hidden; i += kThreads * 8) {
    float v[8];
    load_eight(v, row, i, hidden);
    store_eight(v, target, i, hidden);
  }
}

template <class Operand>
__global__ void __launch_bounds__(kThreads)
    rms_norm_kernel(const float* x, const float* weight, Operand* out, float* kept, int hidden,
                    float eps) {
  __shared__ float memory[kThreads / 32];
  wait_for_previous_kernel();
  let_next_kernel_start();
  const float* row = x + static_cast<int64_t>(blockIdx.x) * hidden;
  float sum = 0;
  float v[8];
  for (int i = threadIdx.x * 8; i < hidden; i += kThreads * 8) {
    load_eight(v, row, i, hidden);
    if (kept) store_eight(v, kept + static_cast<int64_t>(blockIdx.x) * hidden, i, hidden);
#pragma unroll
    for (float value : v) sum = fmaf(value, value, sum);
  }
  sum = block_sum(sum, memory);
  const float inverse = 1.0f / sqrtf(sum / static_cast<float>(hidden) + eps);
  for (int i = threadIdx.x * 8; i < hidden; i += kThreads * 8) {
    float w[8];
    if (hidden > kThreads * 8) load_eight(v, row, i, hidden);
    load_eight(w, weight, i, hidden);
#pragma unroll
    for (int j = 0; j < 8; ++j) w[j] = (v[j] * inverse) * w[j];
    store_eight(w, out + static_cast<int64_t>(blockIdx.x) * hidden, i, hidden);
  }
}

struct RopeParameters {
  const float* qkv;
  const float* cos;
  const float* sin;
  const int32_t* position;
  const int32_t* kv_slot;
  void* q;
  void* keys;
  void* values;
  int32_t heads;
  int32_t kv_heads;
  int32_t head_dim;
};

// kWide neighbours of each half of a head per thread.
template <class Operand, int kWide>
__global__ void __launch_bounds__(kThreads) rope_kernel(const __grid_constant__ RopeParameters p) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int64_t token = blockIdx.x;
  const int half = p.head_dim / 2;
  const int pieces = half / kWide;
  const float* row = p.qkv + token * (p.heads + 2 * p.kv_heads) * p.head_dim;
  const int64_t angle = static_cast<int64_t>(p.position[token]) * half;
  const int slot = p.kv_slot[token];
  const int64_t page = slot / kKeyBlock;
  const int64_t place = slot % kKeyBlock;
  for (int item = threadIdx.x; item < (p.heads + 2 * p.kv_heads) * pieces; item += blockDim.x) {
    const int head = item / pieces;
    const int i = item % pieces * kWide;
    float a[kWide];
    float b[kWide];
    load_wide(a, row + head * p.head_dim + i);
    load_wide(b, row + head * p.head_dim + i + half);
    const int kv_head = (head - p.heads) % p.kv_heads;
    const bool is_value = head >= p.heads + p.kv_heads;
    auto* target = static_cast<Operand*>(is_value ? p.values : p.keys) +
                   ((page * p.kv_heads + kv_head) * kKeyBlock + place) * p.head_dim;
    if (head < p.heads) target = static_cast<Operand*>(p.q) + (token * p.heads + head) * p.head_dim;
    if (!is_value) {
      float cos[kWide];
      float sin[kWide];
      load_wide(cos, p.cos + angle + i);
      load_wide(sin, p.sin + angle + i);
#pragma unroll
      for (int j = 0; j < kWide; ++j) {
        const float first = fmaf(a[j], cos[j], -(b[j] * sin[j]));
        b[j] = fmaf(b[j], cos[j], a[j] * sin[j]);
        a[j] = first;
      }
    }
    store_wide(a, target + i);
    store_wide(b, target + i + half);
  }
}

__global__ void __launch_bounds__(kThreads)
    log_prob_kernel(const float* logits, const int32_t* target, float* log_prob, int32_t* argmax,
                    int vocabulary) {
  __shared__ float memory[kThreads / 32];
  __shared__ int best_id[kThreads / 32];
  wait_for_previous_kernel();
  let_next_kernel_start();
  const float* row = logits + static_cast<int64_t>(blockIdx.x) * vocabulary;
  float max = -INFINITY;
  int best = 0x7fffffff;
  for (int i = threadIdx.x; i < vocabulary; i += kThreads) {
    if (row[i] > max) {
      max = row[i];
      best = i;
    }
  }
  const float own = max;
  max = block_reduce(
      max, [](float a, float b) { return fmaxf(a, b); }, memory);
  if (argmax) {
    best = own == max ? best : 0x7fffffff;
    for (int step = 16; step > 0; step /= 2) best = min(best, __shfl_xor_sync(~0u, best, step));
    if (threadIdx.x % 32 == 0) best_id[threadIdx.x / 32] = best;
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int other : best_id) best = min(best, other);
      argmax[blockIdx.x] = best == 0x7fffffff ? 0 : best;
    }
  }
  float sum = 0;
  for (int i = threadIdx.x; i < vocabulary; i += kThreads) sum += expf(row[i] - max);
  sum = block_sum(sum, memory);
  if (threadIdx.x == 0) {
    const int id = target[blockIdx.x];
    log_prob[blockIdx.x] =
        id < 0 ? 0.0f : (row[id] - max) - static_cast<float>(log(static_cast<double>(sum)));
  }
}

LaunchShape one_block_per(int64_t rows) {
  return {.grid = dim3(static_cast<unsigned>(rows)), .block = dim3(kThreads)};
}

}  // namespace

void embedding_forward(const Context& context, const EmbeddingForward& args) {
  const int64_t tokens = args.ids.dim(0);
  const int hidden = static_cast<int>(args.table.dim(1));
  if (tokens == 0) return;
  const int32_t* ids = args.ids.as<int32_t>();
  float* out = args.out.as<float>();
  if (args.table.dtype == DType::BF16) {
    launch(context, one_block_per(tokens), embedding_kernel<bf16>, ids,
           static_cast<const bf16*>(args.table.data), out, hidden);
  } else {
    launch(context, one_block_per(tokens), embedding_kernel<float>, ids, args.table.as<float>(),
           out, hidden);
  }
}

void rms_norm_forward(const Context& context, const RmsNormForward& args) {
  const int64_t tokens = args.x.dim(0);
  const int hidden = static_cast<int>(args.x.dim(1));
  if (tokens == 0) return;
  const float* x = args.x.as<float>();
  const float* weight = args.weight.as<float>();
  const auto eps = static_cast<float>(args.eps);
  float* kept = args.kept ? args.kept.as<float>() : nullptr;
  if (args.out.dtype == DType::BF16) {
    launch(context, one_block_per(tokens), rms_norm_kernel<bf16>, x, weight,
           static_cast<bf16*>(args.out.data), kept, hidden, eps);
  } else {
    launch(context, one_block_per(tokens), rms_norm_kernel<float>, x, weight, args.out.as<float>(),
           kept, hidden, eps);
  }
}

void rope_forward(const Context& context, const RopeForward& args) {
  if (args.q.dim(0) == 0) return;
  DSMOE_CHECK(args.kv.layout == WeightLayout::row_major,
              "rope on CUDA: KV pages must be row-major");
  const RopeParameters p{.qkv = args.qkv.as<float>(),
                         .cos = args.cos.as<float>(),
                         .sin = args.sin.as<float>(),
                         .position = args.position.as<int32_t>(),
                         .kv_slot = args.kv_slot.as<int32_t>(),
                         .q = args.q.data,
                         .keys = args.kv.keys,
                         .values = args.kv.values,
                         .heads = static_cast<int32_t>(args.q.dim(1)),
                         .kv_heads = static_cast<int32_t>(args.kv.num_kv_heads),
                         .head_dim = static_cast<int32_t>(args.q.dim(2))};
  LaunchShape shape = one_block_per(args.q.dim(0));
  if (args.q.dtype != DType::BF16) return launch(context, shape, rope_kernel<float, 1>, p);
  if (p.head_dim % 16 != 0) return launch(context, shape, rope_kernel<bf16, 1>, p);
  const int items = (p.heads + 2 * p.kv_heads) * p.head_dim / 16;
  shape.block = dim3(static_cast<unsigned>(std::min(kThreads, (items + 31) / 32 * 32)));
  launch(context, shape, rope_kernel<bf16, 8>, p);
}

void log_prob_forward(const Context& context, const LogProbForward& args) {
  if (args.logits.dim(0) == 0) return;
  launch(context, one_block_per(args.logits.dim(0)), log_prob_kernel, args.logits.as<float>(),
         args.target.as<int32_t>(), args.log_prob.as<float>(),
         args.argmax ? args.argmax.as<int32_t>() : nullptr, static_cast<int>(args.logits.dim(1)));
}

}  // namespace dsmoe::kernels::cuda

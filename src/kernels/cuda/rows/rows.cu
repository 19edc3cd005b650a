// Row-wise ops: embedding, RMSNorm, RoPE, log-probabilities. One block per row.
#include <algorithm>

#include "kernels/cuda/device/elements.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/rows/rope_store.h"
#include "kernels/cuda/stream/launch.h"
#include "kernels/kv_pages.h"

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
    rms_norm_kernel(const float* x, const float* weight, Operand* out, int hidden, float eps) {
  __shared__ float memory[kThreads / 32];
  wait_for_previous_kernel();
  let_next_kernel_start();
  const float* row = x + static_cast<int64_t>(blockIdx.x) * hidden;
  float sum = 0;
  float v[8];
  for (int i = threadIdx.x * 8; i < hidden; i += kThreads * 8) {
    load_eight(v, row, i, hidden);
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

// Many rows of up to 256 kParts values, a multiple of eight: a warp to a row, the same sums.
template <class Operand, int kParts>
__global__ void __launch_bounds__(kThreads)
    rms_norm_warps(const float* x, const float* weight, Operand* out, int tokens, int hidden,
                   float eps) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int64_t token = blockIdx.x * (kThreads / 32) + threadIdx.x / 32;
  if (token >= tokens) return;
  const int first = static_cast<int>(threadIdx.x) % 32 * 8;
  float v[kParts][8];
  float squares[kParts] = {};
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    if (first + 256 * part < hidden) load_eight(v[part], x + token * hidden, first + 256 * part, 8);
  }
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    if (first + 256 * part >= hidden) continue;
#pragma unroll
    for (float value : v[part]) squares[part] = fmaf(value, value, squares[part]);
  }
  const float inverse = 1.0f / sqrtf(row_sum(squares) / static_cast<float>(hidden) + eps);
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const int i = first + 256 * part;
    if (i >= hidden) continue;
    float w[8];
    load_eight(w, weight, i, 8);
#pragma unroll
    for (int j = 0; j < 8; ++j) w[j] = (v[part][j] * inverse) * w[j];
    store_eight(w, out + token * hidden, i, 8);
  }
}

template <class Operand>
void launch_rms_norm(const Context& context, const RmsNormForward& args) {
  constexpr int64_t kManyRows = 1024;  // fewer: a block to a row is done sooner
  const int64_t tokens = args.x.dim(0);
  const int hidden = static_cast<int>(args.x.dim(1));
  const float* x = args.x.as<float>();
  const float* weight = args.weight.as<float>();
  auto* out = static_cast<Operand*>(args.out.data);
  const auto eps = static_cast<float>(args.eps);
  if (tokens < kManyRows || hidden % 8 != 0 || hidden > 2048) {
    const LaunchShape shape{.grid = dim3(static_cast<unsigned>(tokens)), .block = dim3(kThreads)};
    return launch(context, shape, rms_norm_kernel<Operand>, x, weight, out, hidden, eps);
  }
  constexpr int64_t kRows = kThreads / 32;
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>((tokens + kRows - 1) / kRows)),
                          .block = dim3(kThreads)};
  launch(context, shape, hidden <= 1024 ? rms_norm_warps<Operand, 4> : rms_norm_warps<Operand, 8>,
         x, weight, out, static_cast<int>(tokens), hidden, eps);
}

// kWide neighbours of each half of a head per thread.
template <class Operand, int kWide>
__global__ void __launch_bounds__(kThreads)
    rope_kernel(const float* qkv, const __grid_constant__ RopeStore p) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int64_t token = blockIdx.x;
  const int half = p.head_dim / 2;
  const int pieces = half / kWide;
  const float* row = qkv + token * (p.heads + 2 * p.kv_heads) * p.head_dim;
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
  max = block_max(max, memory);
  if (argmax) {
    best = own == max ? best : 0x7fffffff;
    best = warp_reduce(best, [](int a, int b) { return min(a, b); });
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
  if (args.x.dim(0) == 0) return;
  if (args.out.dtype == DType::BF16) return launch_rms_norm<bf16>(context, args);
  launch_rms_norm<float>(context, args);
}

void rope_forward(const Context& context, const RopeForward& args) {
  if (args.q.dim(0) == 0) return;
  DSMOE_CHECK(args.kv.shape.layout == WeightLayout::row_major,
              "rope on CUDA: KV pages must be row-major");
  const float* qkv = args.qkv.as<float>();
  const RopeStore p = rope_store_of(args);
  LaunchShape shape = one_block_per(args.q.dim(0));
  if (args.q.dtype != DType::BF16) return launch(context, shape, rope_kernel<float, 1>, qkv, p);
  if (p.head_dim % 16 != 0) return launch(context, shape, rope_kernel<bf16, 1>, qkv, p);
  const int items = (p.heads + 2 * p.kv_heads) * p.head_dim / 16;
  shape.block = dim3(static_cast<unsigned>(std::min(kThreads, (items + 31) / 32 * 32)));
  launch(context, shape, rope_kernel<bf16, 8>, qkv, p);
}

void log_prob_forward(const Context& context, const LogProbForward& args) {
  if (args.logits.dim(0) == 0) return;
  launch(context, one_block_per(args.logits.dim(0)), log_prob_kernel, args.logits.as<float>(),
         args.target.as<int32_t>(), args.log_prob.as<float>(),
         args.argmax ? args.argmax.as<int32_t>() : nullptr, static_cast<int>(args.logits.dim(1)));
}

}  // namespace dsmoe::kernels::cuda

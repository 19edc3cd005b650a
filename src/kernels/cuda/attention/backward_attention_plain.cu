// Attention's backward pass, one warp per row: any type and head size up to 512. Right, slow.
#include "kernels/cuda/attention/backward_attention.h"
#include "kernels/cuda/device/elements.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/stream/launch.h"

namespace dsmoe::kernels::cuda {
namespace {

constexpr int kShare = 16;  // dimensions per lane

struct Row {
  int sequence;
  int first_token;
  int length;
  int position;
};
__device__ Row find_row(const AttentionBackwardParameters& p, int token) {
  int sequence = 0;
  while (p.q_starts[sequence + 1] <= token) ++sequence;
  const int first = p.q_starts[sequence];
  return {sequence, first, p.q_starts[sequence + 1] - first, token - first};
}

template <class Operand>
__device__ const Operand* page_row(const AttentionBackwardParameters& p, const void* pages,
                                   int sequence, int key, int kv_head) {
  const int64_t page = p.page_table[static_cast<int64_t>(sequence) * p.max_pages + key / 64];
  return static_cast<const Operand*>(pages) +
         ((page * p.kv_heads + kv_head) * 64 + key % 64) * p.head_dim;
}
template <class Operand>
__device__ const Operand* head_row(const AttentionBackwardParameters& p, const void* rows,
                                   int64_t token, int head) {
  return static_cast<const Operand*>(rows) + (token * p.heads + head) * p.head_dim;
}

template <class Operand>
__device__ float dot(const Operand* a, const Operand* b, int size) {
  float acc = 0;
  for (int segment = 0; segment < size; segment += 256) {
    float chain = 0;
    for (int d = segment; d < min(size, segment + 256); ++d)
      chain = fmaf(widen(a[d]), widen(b[d]), chain);
    acc = acc + chain;
  }
  return acc;
}

// sums[i] += factor of lane j * row j [lane + 32 i], j ascending.
template <class Operand, class RowOf>
__device__ void add_rows(float (&sums)[kShare], float factor, int count, int head_dim,
                         RowOf&& row_of) {
  Operand rounded;
  round_into(rounded, factor);
  for (int j = 0; j < count; ++j) {
    const float f = __shfl_sync(~0u, widen(rounded), j);
    const Operand* row = row_of(j);
    for (int i = 0; i < kShare; ++i) {
      const int d = threadIdx.x + 32 * i;
      if (d < head_dim) sums[i] = fmaf(f, widen(row[d]), sums[i]);
    }
  }
}

__device__ void write(const float (&sums)[kShare], float* row, int head_dim) {
  for (int i = 0; i < kShare; ++i) {
    if (threadIdx.x + 32 * i < head_dim) row[threadIdx.x + 32 * i] = sums[i];
  }
}

// Statistics and dq of one token and head.
template <class Operand>
__global__ void __launch_bounds__(32)
    query_gradient_plain(const __grid_constant__ AttentionBackwardParameters p) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int token = static_cast<int>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  const int kv_head = head / (p.heads / p.kv_heads);
  const int lane = threadIdx.x;
  const Row at = find_row(p, token);
  const Operand* q = head_row<Operand>(p, p.q, token, head);
  const Operand* d_out = head_row<Operand>(p, p.d_out, token, head);
  const auto key_row = [&](int key) {
    return page_row<Operand>(p, p.keys, at.sequence, key, kv_head);
  };
  float max = -INFINITY;
  for (int key = lane; key <= at.position; key += 32)
    max = fmaxf(max, dot(q, key_row(key), p.head_dim) * p.scale);
  max = warp_max(max);
  float sum = 0;
  for (int key = lane; key <= at.position; key += 32)
    sum += expf(dot(q, key_row(key), p.head_dim) * p.scale - max);
  sum = warp_sum(sum);
  const Operand* out = head_row<Operand>(p, p.out, token, head);
  float d = 0;
  for (int i = lane; i < p.head_dim; i += 32) d = fmaf(widen(out[i]), widen(d_out[i]), d);
  d = warp_sum(d);
  if (lane == 0)
    p.statistics[static_cast<int64_t>(token) * p.heads + head] = make_float4(max, 1.0f / sum, d, 0);
  float dq[kShare] = {};
  for (int first = 0; first <= at.position; first += 32) {
    const int key = min(first + lane, at.position);
    const float s = dot(q, key_row(key), p.head_dim) * p.scale;
    const float dp =
        dot(d_out, page_row<Operand>(p, p.values, at.sequence, key, kv_head), p.head_dim);
    const float ds = ((expf(s - max) * (1.0f / sum)) * (dp - d)) * p.scale;
    add_rows<Operand>(dq, ds, min(32, at.position + 1 - first), p.head_dim,
                      [&](int j) { return key_row(first + j); });
  }
  write(dq, p.gradient_row(token, head), p.head_dim);
}

// dk and dv of one token and KV head.
template <class Operand>
__global__ void __launch_bounds__(32)
    key_gradient_plain(const __grid_constant__ AttentionBackwardParameters p) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int token = static_cast<int>(blockIdx.x);
  const int kv_head = static_cast<int>(blockIdx.y);
  const int group = p.heads / p.kv_heads;
  const int lane = threadIdx.x;
  const Row at = find_row(p, token);
  const Operand* key = page_row<Operand>(p, p.keys, at.sequence, at.position, kv_head);
  const Operand* value = page_row<Operand>(p, p.values, at.sequence, at.position, kv_head);
  float dk[kShare] = {};
  float dv[kShare] = {};
  for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    for (int first = at.position; first < at.length; first += 32) {
      const int64_t query = at.first_token + min(first + lane, at.length - 1);
      const float4 of = p.statistics[query * p.heads + head];
      const Operand* d_out = head_row<Operand>(p, p.d_out, query, head);
      const float s = dot(head_row<Operand>(p, p.q, query, head), key, p.head_dim) * p.scale;
      const float probability = expf(s - of.x) * of.y;
      const float ds = (probability * (dot(d_out, value, p.head_dim) - of.z)) * p.scale;
      const int count = min(32, at.length - first);
      const auto rows_of = [&](const void* rows) {
        return [&p, &at, rows, first, head](int j) {
          return head_row<Operand>(p, rows, at.first_token + first + j, head);
        };
      };
      add_rows<Operand>(dv, probability, count, p.head_dim, rows_of(p.d_out));
      add_rows<Operand>(dk, ds, count, p.head_dim, rows_of(p.q));
    }
  }
  write(dk, p.gradient_row(token, p.heads + kv_head), p.head_dim);
  write(dv, p.gradient_row(token, p.heads + p.kv_heads + kv_head), p.head_dim);
}

template <class Operand>
void launch_plain(const Context& context, const AttentionBackwardParameters& p, int64_t tokens) {
  const auto rows = static_cast<unsigned>(tokens);
  launch(context, {.grid = dim3(rows, static_cast<unsigned>(p.heads)), .block = dim3(32)},
         query_gradient_plain<Operand>, p);
  launch(context, {.grid = dim3(rows, static_cast<unsigned>(p.kv_heads)), .block = dim3(32)},
         key_gradient_plain<Operand>, p);
}

}  // namespace

void attention_backward_plain(const Context& context, DType dtype,
                              const AttentionBackwardParameters& p, int64_t tokens) {
  DSMOE_CHECK(p.head_dim <= 32 * kShare, "attention on CUDA: head size {}; at most {} is supported",
              p.head_dim, 32 * kShare);
  if (dtype == DType::BF16) return launch_plain<bf16>(context, p, tokens);
  launch_plain<float>(context, p, tokens);
}

}  // namespace dsmoe::kernels::cuda

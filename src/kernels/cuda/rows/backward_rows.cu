// Row-wise ops of the backward pass: rounding, RoPE, biases, embedding, cross-entropy,
// gates.
#include <algorithm>

#include "kernels/cuda/device/elements.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/rows/column_sums.cuh"
#include "kernels/cuda/stream/launch.h"

namespace dsmoe::kernels::cuda {
namespace {

constexpr int kThreads = kReduceThreads;

LaunchShape blocks(int64_t count) {
  return {.grid = dim3(static_cast<unsigned>(count)), .block = dim3(kThreads)};
}

template <class Operand>
__global__ void __launch_bounds__(kThreads)
    round_kernel(const float* x, Operand* out, int64_t size) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int64_t begin = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 8;
  if (begin + 8 <= size) {
    float v[8];
    load_eight(v, x + begin, 0, 8);
    store_eight(v, out + begin, 0, 8);
  } else {
    for (int64_t i = begin; i < size; ++i) round_into(out[i], x[i]);
  }
}

// --- biases
template <class Operand>
__global__ void __launch_bounds__(kThreads)
    bias_chains(const __grid_constant__ ColumnSums p, const Operand* dy) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const TokenRange tokens = find_chunk(p, static_cast<int>(blockIdx.y));
  const int column = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (column >= p.columns || tokens.begin == tokens.end) return;
  float chain = 0;
#pragma unroll 8
  for (int t = tokens.begin; t < tokens.end; ++t)
    chain = chain + widen(dy[static_cast<int64_t>(t) * p.columns + column]);
  p.chains[static_cast<int64_t>(blockIdx.y) * p.columns + column] = chain;
}

// --- RoPE
struct RopeBackwardParameters {
  const float* d_qkv;
  const float* cos;
  const float* sin;
  const int32_t* position;
  void* out;
  int32_t rotated_heads;
  int32_t heads;  // all
  int32_t head_dim;
};

// kWide neighbours of each half of a head per thread.
template <class Operand, int kWide>
__global__ void __launch_bounds__(kThreads)
    rope_backward_kernel(const __grid_constant__ RopeBackwardParameters p) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int64_t token = blockIdx.x;
  const int half = p.head_dim / 2;
  const int pieces = half / kWide;
  const float* row = p.d_qkv + token * p.heads * p.head_dim;
  Operand* out = static_cast<Operand*>(p.out) + token * p.heads * p.head_dim;
  const int64_t angle = static_cast<int64_t>(p.position[token]) * half;
  for (int item = threadIdx.x; item < p.heads * pieces; item += blockDim.x) {
    const int head = item / pieces;
    const int i = item % pieces * kWide;
    const int place = head * p.head_dim + i;
    float a[kWide];
    float b[kWide];
    load_wide(a, row + place);
    load_wide(b, row + place + half);
    if (head < p.rotated_heads) {
      float cos[kWide];
      float sin[kWide];
      load_wide(cos, p.cos + angle + i);
      load_wide(sin, p.sin + angle + i);
#pragma unroll
      for (int j = 0; j < kWide; ++j) {
        const float first = fmaf(a[j], cos[j], b[j] * sin[j]);
        b[j] = fmaf(b[j], cos[j], -(a[j] * sin[j]));
        a[j] = first;
      }
    }
    store_wide(a, out + place);
    store_wide(b, out + place + half);
  }
}

// --- embedding
// The block of an id's first token adds all of its tokens' rows, ascending; the others have nothing
// to do. blockIdx.y: 1024 columns.
constexpr int kScan = kThreads * 4;  // ids looked at in one turn

// Which of the four ids of this thread are `id`; ids lie on a multiple of 16 bytes, `begin` is one
// of four ids.
__device__ int matches(const int32_t* ids, int begin, int end, int id) {
  const int t = begin + static_cast<int>(threadIdx.x) * 4;
  if (t + 4 <= end) {
    const int4 four = *reinterpret_cast<const int4*>(ids + t);
    return (four.x == id) | (four.y == id) << 1 | (four.z == id) << 2 | (four.w == id) << 3;
  }
  int mask = 0;
  for (int i = 0; i < 4; ++i) {
    if (t + i < end && ids[t + i] == id) mask |= 1 << i;
  }
  return mask;
}

__global__ void __launch_bounds__(kThreads)
    embedding_backward_kernel(const int32_t* ids, const float* d_out, float* d_table, int tokens,
                              int hidden) {
  __shared__ int list[kScan];
  __shared__ int warp_count[kThreads / 32];
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int first = static_cast<int>(blockIdx.x);
  const int id = ids[first];
  for (int begin = 0; begin < first; begin += kScan) {
    if (__syncthreads_or(matches(ids, begin, first, id))) return;
  }
  const int column = static_cast<int>(blockIdx.y) * 1024 + static_cast<int>(threadIdx.x);
  float* row = d_table + static_cast<int64_t>(id) * hidden;
  float sum[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    sum[i] = column + i * kThreads < hidden ? row[column + i * kThreads] : 0.0f;
  const int lane = threadIdx.x % 32;
  // The scan begins at a multiple of four: earlier ids differ.
  for (int begin = first / 4 * 4; begin < tokens; begin += kScan) {
    const int mask = matches(ids, begin, tokens, id);
    if (!__syncthreads_or(mask)) continue;
    int before = __popc(mask);
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0u, before, step);
      if (lane >= step) before += other;
    }
    if (lane == 31) warp_count[threadIdx.x / 32] = before;
    before -= __popc(mask);
    __syncthreads();
    int count = 0;
    for (int w = 0; w < kThreads / 32; ++w) {
      if (w < static_cast<int>(threadIdx.x) / 32) before += warp_count[w];
      count += warp_count[w];
    }
    for (int i = 0; i < 4; ++i) {
      if (mask >> i & 1) list[before++] = begin + static_cast<int>(threadIdx.x) * 4 + i;
    }
    __syncthreads();
#pragma unroll 4
    for (int m = 0; m < count; ++m) {
      const float* from = d_out + static_cast<int64_t>(list[m]) * hidden;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (column + i * kThreads < hidden) sum[i] = sum[i] + from[column + i * kThreads];
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (column + i * kThreads < hidden) row[column + i * kThreads] = sum[i];
  }
}

// --- cross-entropy: the same sums as log_prob_forward
constexpr int kKept = 27 * 1024;  // logits of a row that stay in shared memory; two rows fit there

template <class Operand>
__global__ void __launch_bounds__(kThreads, 2)
    cross_entropy_kernel(const float* logits, const int32_t* target, float* log_prob,
                         Operand* d_logits, int vocabulary, float scale) {
  extern __shared__ __align__(16) float kept[];
  __shared__ float memory[kThreads / 32];
  wait_for_previous_kernel();
  let_next_kernel_start();
  const float* row = logits + static_cast<int64_t>(blockIdx.x) * vocabulary;
  Operand* out = d_logits + static_cast<int64_t>(blockIdx.x) * vocabulary;
  const int id = target[blockIdx.x];
  if (id < 0) {
    if (threadIdx.x == 0) log_prob[blockIdx.x] = 0;
    for (int i = threadIdx.x; i < vocabulary; i += kThreads) round_into(out[i], 0.0f);
    return;
  }
  float max = -INFINITY;
#pragma unroll 4
  for (int i = threadIdx.x * 8; i < vocabulary; i += kThreads * 8) {
    float v[8];
    load_eight(v, row, i, vocabulary);
    if (i < kKept) store_eight(v, kept, i, kKept);
#pragma unroll
    for (int j = 0; j < 8; ++j) max = fmaxf(max, i + j < vocabulary ? v[j] : -INFINITY);
  }
  max = block_max(max, memory);
  // Numerators take the logits' place.
  float sum = 0;
  const int end = min(vocabulary, kKept);
#pragma unroll 4
  for (int i = threadIdx.x; i < end; i += kThreads) {
    const float e = expf(kept[i] - max);
    kept[i] = e;
    sum += e;
  }
#pragma unroll 4
  for (int i = kKept + threadIdx.x; i < vocabulary; i += kThreads) sum += expf(row[i] - max);
  sum = block_sum(sum, memory);
  if (threadIdx.x == 0)
    log_prob[blockIdx.x] = (row[id] - max) - static_cast<float>(log(static_cast<double>(sum)));
  const float inverse = 1.0f / sum;
#pragma unroll 2
  for (int i = threadIdx.x * 8; i < vocabulary; i += kThreads * 8) {
    float v[8];
    if (i < kKept) {
      load_eight(v, kept, i, kKept);
    } else {
      load_eight(v, row, i, vocabulary);
#pragma unroll
      for (float& e : v) e = expf(e - max);
    }
#pragma unroll
    for (float& e : v) e = (e * inverse) * scale;
    store_eight(v, out, i, vocabulary);
    if (id >= i && id < i + 8) round_into(out[id], (expf(row[id] - max) * inverse - 1.0f) * scale);
  }
}

__global__ void __launch_bounds__(kThreads)
    dispatch_gates_kernel(const float* gate, const int32_t* row_of_slot, float* gate_of_row,
                          int64_t slots) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int64_t slot = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (slot < slots && row_of_slot[slot] >= 0) gate_of_row[row_of_slot[slot]] = gate[slot];
}

// A thread per row: its sums over 16 outputs in 32 lanes, each ascending, then a tree.
__global__ void __launch_bounds__(kThreads)
    add_partial_sums_kernel(const float* partial_sums, const int32_t* offsets, float* out,
                            int count, int rows, int groups) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int row = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (row >= offsets[count]) return;
  float lane[32] = {};
  for (int first = 0; first < groups; first += 32) {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      if (first + i < groups) lane[i] += partial_sums[static_cast<int64_t>(first + i) * rows + row];
    }
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
#pragma unroll
    for (int i = 0; i < step; ++i) lane[i] = lane[i] + lane[i + step];
  }
  out[row] = lane[0];
}

}  // namespace

void round_values(const Context& context, const RoundValues& args) {
  const int64_t size = args.x.num_elements();
  if (size == 0) return;
  const LaunchShape shape = blocks(blocks_for(size, kThreads * 8));
  const float* x = args.x.as<float>();
  if (args.out.dtype == DType::BF16)
    return launch(context, shape, round_kernel<bf16>, x, static_cast<bf16*>(args.out.data), size);
  launch(context, shape, round_kernel<float>, x, args.out.as<float>(), size);
}

void bias_gradient(const Context& context, const BiasGradient& args) {
  const int64_t tokens = args.dy.dim(0);
  if (tokens == 0) return;
  const ColumnSums sums = column_sums(context, args.sequence_starts, tokens, args.d_bias, 0);
  const LaunchShape shape{
      .grid = dim3(blocks_for(sums.columns, kThreads), static_cast<unsigned>(sums.chunks)),
      .block = dim3(kThreads)};
  if (args.dy.dtype == DType::BF16) {
    launch(context, shape, bias_chains<bf16>, sums, static_cast<const bf16*>(args.dy.data));
  } else {
    launch(context, shape, bias_chains<float>, sums, args.dy.as<float>());
  }
  add_chains(context, sums);
}

void rope_backward(const Context& context, const RopeBackward& args) {
  if (args.d_qkv.dim(0) == 0) return;
  const int64_t heads = args.num_heads + 2 * args.num_kv_heads;
  const RopeBackwardParameters p{
      .d_qkv = args.d_qkv.as<float>(),
      .cos = args.cos.as<float>(),
      .sin = args.sin.as<float>(),
      .position = args.position.as<int32_t>(),
      .out = args.out.data,
      .rotated_heads = static_cast<int32_t>(args.num_heads + args.num_kv_heads),
      .heads = static_cast<int32_t>(heads),
      .head_dim = static_cast<int32_t>(args.d_qkv.dim(1) / heads)};
  LaunchShape shape = blocks(args.d_qkv.dim(0));
  if (args.out.dtype != DType::BF16)
    return launch(context, shape, rope_backward_kernel<float, 1>, p);
  if (p.head_dim % 16 != 0) return launch(context, shape, rope_backward_kernel<bf16, 1>, p);
  const int items = p.heads * p.head_dim / 16;
  shape.block = dim3(static_cast<unsigned>(std::min(kThreads, (items + 31) / 32 * 32)));
  launch(context, shape, rope_backward_kernel<bf16, 8>, p);
}

void embedding_backward(const Context& context, const EmbeddingBackward& args) {
  const int64_t tokens = args.ids.dim(0);
  const int64_t hidden = args.d_out.dim(1);
  if (tokens == 0) return;
  DSMOE_CHECK(is_aligned(args.ids.data),
              "embedding backward on CUDA: ids must lie on a multiple of 16 bytes");
  launch(context,
         {.grid = dim3(static_cast<unsigned>(tokens), blocks_for(hidden, 1024)),
          .block = dim3(kThreads)},
         embedding_backward_kernel, args.ids.as<int32_t>(), args.d_out.as<float>(),
         args.d_table.as<float>(), static_cast<int>(tokens), static_cast<int>(hidden));
}

void cross_entropy_backward(const Context& context, const CrossEntropyBackward& args) {
  if (args.logits.dim(0) == 0) return;
  const std::size_t bytes = kKept * sizeof(float);
  allow_shared_once<cross_entropy_kernel<bf16>>(bytes);
  allow_shared_once<cross_entropy_kernel<float>>(bytes);
  LaunchShape shape = blocks(args.logits.dim(0));
  shape.shared_bytes = bytes;
  const auto scale = static_cast<float>(args.scale);
  const int vocabulary = static_cast<int>(args.logits.dim(1));
  const float* logits = args.logits.as<float>();
  const int32_t* target = args.target.as<int32_t>();
  float* log_prob = args.log_prob.as<float>();
  if (args.d_logits.dtype == DType::BF16) {
    return launch(context, shape, cross_entropy_kernel<bf16>, logits, target, log_prob,
                  static_cast<bf16*>(args.d_logits.data), vocabulary, scale);
  }
  launch(context, shape, cross_entropy_kernel<float>, logits, target, log_prob,
         args.d_logits.as<float>(), vocabulary, scale);
}

void dispatch_gates(const Context& context, const DispatchGates& args) {
  const int64_t slots = args.gate.num_elements();
  if (slots == 0) return;
  launch(context, blocks(blocks_for(slots, kThreads)), dispatch_gates_kernel, args.gate.as<float>(),
         args.row_of_slot.as<int32_t>(), args.gate_of_row.as<float>(), slots);
}

void add_partial_sums(const Context& context, const ExpertFamilyBackward& family,
                      const float* partial_sums) {
  const int64_t rows = family.activation.dim(0);
  if (rows == 0) return;
  launch(context, blocks(blocks_for(rows, kThreads)), add_partial_sums_kernel, partial_sums,
         family.offsets.as<int32_t>(), family.d_gate_of_row.as<float>(),
         static_cast<int>(family.offsets.dim(0) - 1), static_cast<int>(rows),
         static_cast<int>((family.activation.dim(1) + 15) / 16));
}

}  // namespace dsmoe::kernels::cuda

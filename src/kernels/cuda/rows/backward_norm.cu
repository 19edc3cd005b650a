// RMSNorm's backward pass: the gradient of its input row by row, that of its weights over the
// tokens of each sequence.
#include "kernels/cuda/device/bulk_copy.cuh"
#include "kernels/cuda/device/elements.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/rows/column_sums.cuh"
#include "kernels/cuda/stream/launch.h"

namespace dsmoe::kernels::cuda {
namespace {

constexpr int kThreads = kReduceThreads;

struct NormParameters {
  const float* x;
  const float* weight;
  const float* d_out;
  float* d_x;
  float* inverse;  // [tokens], written by the kernel that takes one row to a block
  bf16* rounded;   // d_x once more, or null
  int32_t hidden;
  float eps;
};

__device__ float inverse_of(float squares, const NormParameters& p) {
  return 1.0f / sqrtf(squares / static_cast<float>(p.hidden) + p.eps);
}
// d: d_out * weight.
__device__ void add_gradient(float (&d_x)[8], const float (&x)[8], const float (&d)[8],
                             float inverse, float mean) {
#pragma unroll
  for (int j = 0; j < 8; ++j) d_x[j] = d_x[j] + inverse * (d[j] - (x[j] * inverse) * mean);
}

// --- rows of any length: a block to a row, then the weights' chains in a kernel of their own
__global__ void __launch_bounds__(kThreads) norm_rows(const __grid_constant__ NormParameters p) {
  __shared__ float memory[kThreads / 32];
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int64_t offset = static_cast<int64_t>(blockIdx.x) * p.hidden;
  float v[8];
  float d[8];
  float w[8];
  float squares = 0;
  float mean = 0;
  // The mean of (d_out * weight) * y, y = x * inverse, before the factor inverse is known.
  for (int i = threadIdx.x * 8; i < p.hidden; i += kThreads * 8) {
    load_eight(v, p.x + offset, i, p.hidden);
    load_eight(d, p.d_out + offset, i, p.hidden);
    load_eight(w, p.weight, i, p.hidden);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      squares = fmaf(v[j], v[j], squares);
      d[j] = d[j] * w[j];
      mean = fmaf(d[j], v[j], mean);
    }
  }
  const float inverse = inverse_of(block_sum(squares, memory), p);
  mean = block_sum(mean, memory) * inverse / static_cast<float>(p.hidden);
  if (threadIdx.x == 0) p.inverse[blockIdx.x] = inverse;
  for (int i = threadIdx.x * 8; i < p.hidden; i += kThreads * 8) {
    if (p.hidden > kThreads * 8) {
      load_eight(v, p.x + offset, i, p.hidden);
      load_eight(d, p.d_out + offset, i, p.hidden);
      load_eight(w, p.weight, i, p.hidden);
#pragma unroll
      for (int j = 0; j < 8; ++j) d[j] = d[j] * w[j];
    }
    float out[8];
    load_eight(out, p.d_x + offset, i, p.hidden);
    add_gradient(out, v, d, inverse, mean);
    store_eight(out, p.d_x + offset, i, p.hidden);
    if (p.rounded) store_eight(out, p.rounded + offset, i, p.hidden);
  }
}

__global__ void __launch_bounds__(kThreads)
    weight_chains(const __grid_constant__ NormParameters p, const __grid_constant__ ColumnSums s) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const TokenRange tokens = find_chunk(s, static_cast<int>(blockIdx.y));
  const int column = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (column >= p.hidden || tokens.begin == tokens.end) return;
  float chain = 0;
#pragma unroll 8
  for (int t = tokens.begin; t < tokens.end; ++t) {
    const int64_t i = static_cast<int64_t>(t) * p.hidden + column;
    chain = fmaf(p.d_out[i], p.x[i] * p.inverse[t], chain);
  }
  s.chains[static_cast<int64_t>(blockIdx.y) * p.hidden + column] = chain;
}

// --- rows that fit the registers of a warp, from 9.0 on: a block to a chunk, everything read once
constexpr int kParts = 4;  // of 256 columns, what a warp of norm_rows would hold
constexpr int kWarpRow = 256 * kParts;
constexpr int kRows = kThreads / 32;  // at a time, a warp each
constexpr int kBatches = 3;           // of so many rows in shared memory or on their way there

// x and d_out of kRows tokens at a time.
struct RowRing {
  float rows[kBatches][kRows][2][kWarpRow];
  float inverse[kRows];
  uint64_t full[kBatches];
};

// A warp's part of a row: columns 256 part + 8 lane and the seven after it.
template <class Body>
__device__ void for_each_part(const NormParameters& p, Body&& body) {
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const int i = part * 256 + static_cast<int>(threadIdx.x % 32) * 8;
    if (i < p.hidden) body(part, i);
  }
}

// d_x of a warp's row; returns 1 / sqrt(mean square). Used from 9.0 on.
[[maybe_unused]] __device__ float norm_row(const NormParameters& p, const float* row_x,
                                           const float* row_d_out, float (&d_x)[kParts][8],
                                           int64_t token) {
  float x[kParts][8];
  float d[kParts][8];
  float squares[kParts] = {};
  float means[kParts] = {};
  for_each_part(p, [&](int part, int i) {
    float w[8];
    load_eight(w, p.weight, i, p.hidden);
    load_eight(x[part], row_x, i, kWarpRow);
    load_eight(d[part], row_d_out, i, kWarpRow);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      squares[part] = fmaf(x[part][j], x[part][j], squares[part]);
      d[part][j] = d[part][j] * w[j];
      means[part] = fmaf(d[part][j], x[part][j], means[part]);
    }
  });
  const float inverse = inverse_of(row_sum(squares), p);
  const float mean = row_sum(means) * inverse / static_cast<float>(p.hidden);
  for_each_part(p, [&](int part, int i) {
    add_gradient(d_x[part], x[part], d[part], inverse, mean);
    store_eight(d_x[part], p.d_x + token * p.hidden, i, p.hidden);
    if (p.rounded) store_eight(d_x[part], p.rounded + token * p.hidden, i, p.hidden);
  });
  return inverse;
}

__global__ void __launch_bounds__(kThreads, 1)
    norm_chunks(const __grid_constant__ NormParameters p, const __grid_constant__ ColumnSums s) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) unsigned char memory[];
  RowRing& ring = *reinterpret_cast<RowRing*>(memory);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (threadIdx.x == 0) {
    for (uint64_t& barrier : ring.full) barrier_init(shared_address(&barrier), kRows);
    barrier_init_fence();
  }
  __syncthreads();
  wait_for_previous_kernel();
  let_next_kernel_start();
  const TokenRange tokens = find_chunk(s, static_cast<int>(blockIdx.x));
  const int batches = (tokens.end - tokens.begin + kRows - 1) / kRows;
  const auto token_of = [&](int batch) { return tokens.begin + batch * kRows + warp; };
  // One lane of every warp asks for the warp's row.
  const auto ask_for = [&](int batch) {
    if (batch >= batches || threadIdx.x % 32 != 0) return;
    const uint32_t full = shared_address(&ring.full[batch % kBatches]);
    if (token_of(batch) >= tokens.end) return barrier_arrive(full);
    const auto bytes = static_cast<uint32_t>(p.hidden) * 4;
    const int64_t offset = static_cast<int64_t>(token_of(batch)) * p.hidden;
    auto& row = ring.rows[batch % kBatches][warp];
    barrier_expect(full, 2 * bytes);
    bulk_load(shared_address(row[0]), p.x + offset, bytes, full);
    bulk_load(shared_address(row[1]), p.d_out + offset, bytes, full);
  };
  for (int batch = 0; batch < kBatches; ++batch) ask_for(batch);
  const int column = static_cast<int>(threadIdx.x) * 4;
  float chain[4] = {};  // of columns `column` ..
  for (int batch = 0; batch < batches; ++batch) {
    const int64_t token = token_of(batch);
    float d_x[kParts][8];
    if (token < tokens.end) {
      for_each_part(p, [&](int part, int i) {
        load_eight(d_x[part], p.d_x + token * p.hidden, i, p.hidden);
      });
    }
    barrier_wait(shared_address(&ring.full[batch % kBatches]), batch / kBatches & 1);
    const auto& rows = ring.rows[batch % kBatches];
    if (token < tokens.end) {
      const float inverse = norm_row(p, rows[warp][0], rows[warp][1], d_x, token);
      if (threadIdx.x % 32 == 0) ring.inverse[warp] = inverse;
    }
    __syncthreads();
    const int count = min(kRows, tokens.end - tokens.begin - batch * kRows);
    if (column < p.hidden) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (r < count) {
          const float4 x = *reinterpret_cast<const float4*>(&rows[r][0][column]);
          const float4 d = *reinterpret_cast<const float4*>(&rows[r][1][column]);
          const float inverse = ring.inverse[r];
          chain[0] = fmaf(d.x, x.x * inverse, chain[0]);
          chain[1] = fmaf(d.y, x.y * inverse, chain[1]);
          chain[2] = fmaf(d.z, x.z * inverse, chain[2]);
          chain[3] = fmaf(d.w, x.w * inverse, chain[3]);
        }
      }
    }
    __syncthreads();
    ask_for(batch + kBatches);
  }
  if (batches > 0 && column < p.hidden) {
    *reinterpret_cast<float4*>(s.chains + static_cast<int64_t>(blockIdx.x) * p.hidden + column) =
        make_float4(chain[0], chain[1], chain[2], chain[3]);
  }
#endif
}

}  // namespace

void rms_norm_backward(const Context& context, const RmsNormBackward& args) {
  const int64_t tokens = args.x.dim(0);
  if (tokens == 0) return;
  const ColumnSums sums = column_sums(context, args.sequence_starts, tokens, args.d_weight, tokens);
  const bool in_kernel = args.rounded && args.rounded.dtype == DType::BF16;
  const NormParameters p{.x = args.x.as<float>(),
                         .weight = args.weight.as<float>(),
                         .d_out = args.d_out.as<float>(),
                         .d_x = args.d_x.as<float>(),
                         .inverse = sums.chains + static_cast<int64_t>(sums.chunks) * sums.columns,
                         .rounded = in_kernel ? static_cast<bf16*>(args.rounded.data) : nullptr,
                         .hidden = static_cast<int32_t>(args.x.dim(1)),
                         .eps = static_cast<float>(args.eps)};
  const auto chunks = static_cast<unsigned>(sums.chunks);
  const bool by_chunks =
      has_clusters() && args.d_weight && p.hidden <= kWarpRow && p.hidden % 8 == 0;
  if (by_chunks) {
    constexpr std::size_t kBytes = sizeof(RowRing);
    allow_shared_once<norm_chunks>(kBytes);
    launch(context, {.grid = dim3(chunks), .block = dim3(kThreads), .shared_bytes = kBytes},
           norm_chunks, p, sums);
  } else {
    launch(context, {.grid = dim3(static_cast<unsigned>(tokens)), .block = dim3(kThreads)},
           norm_rows, p);
    if (args.d_weight) {
      const auto columns = static_cast<unsigned>((p.hidden + kThreads - 1) / kThreads);
      launch(context, {.grid = dim3(columns, chunks), .block = dim3(kThreads)}, weight_chains, p,
             sums);
    }
  }
  if (args.rounded && !in_kernel) cuda::round_values(context, {.x = args.d_x, .out = args.rounded});
  if (args.d_weight) add_chains(context, sums);
}

}  // namespace dsmoe::kernels::cuda

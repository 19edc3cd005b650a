// The grouped product for shapes the copy engine cannot read, and for fp32 operands. Any size, any
// alignment; slow.
//
// bf16: the same ascending chain of k16 steps, zero-padded at the end, through mma.sync: bits equal
// the Hopper kernels'. fp32: segments of 256 k, each an ascending FMA chain; segments added
// ascending.
#include <type_traits>

#include "kernels/cuda/device/elements.cuh"
#include "kernels/cuda/product/product.h"
#include "kernels/cuda/product/product_store_backward.cuh"
#include "kernels/cuda/stream/launch.h"

namespace dsmoe::kernels::cuda {
namespace {

constexpr int kWarps = 4;

struct Parameters {
  const void* weight;
  const void* second;
  const void* x;
  const int32_t* offsets;
  const int32_t* token_of_row;
  const float* bias;
  void* out;
  const float* base;  // what is added to
  void* gate_out;
  void* up_out;
  const void* second_x;  // round: the chain goes on with second and second_x, or null
  SwigluBackward swiglu;
  int32_t count;
  int32_t rows;
  int32_t n;
  int32_t k;
  int32_t accumulate;
  int32_t output_step;  // from a weight to that of the next output
  int32_t k_step;       // and of the next k
};

// Two neighbouring values of a row as one register, zero past the end.
__device__ uint32_t load_pair(const bf16* row, int k, int size, int step = 1) {
  if (row == nullptr) return 0;
  const auto* bits = reinterpret_cast<const unsigned short*>(row);
  const uint32_t low = k < size ? bits[static_cast<int64_t>(k) * step] : 0;
  const uint32_t high = k + 1 < size ? bits[static_cast<int64_t>(k + 1) * step] : 0;
  return low | (high << 16);
}

// Rows [first, first + 8) of one expert times 16 outputs of `weight`.
__device__ void multiply(float (&sum)[4], const Parameters& p, const bf16* weight, int first_output,
                         const bf16* x_row) {
  const int lane = threadIdx.x % 32;
  const int k0 = 2 * (lane % 4);
  const bf16* w[2];
  for (int half = 0; half < 2; ++half) {
    const int n = first_output + lane / 4 + 8 * half;
    w[half] = n < p.n ? weight + static_cast<int64_t>(n) * p.output_step : nullptr;
  }
  for (int k = k0; k - k0 < p.k; k += 16) {
    const auto pair = [&](int half, int at) { return load_pair(w[half], at, p.k, p.k_step); };
    const uint32_t a[4] = {pair(0, k), pair(1, k), pair(0, k + 8), pair(1, k + 8)};
    const uint32_t b[2] = {load_pair(x_row, k, p.k), load_pair(x_row, k + 8, p.k)};
    mma_16x8x16(sum, a, b);
  }
}

__device__ float dot(float acc, const Parameters& p, const float* weight, const float* x) {
  for (int segment = 0; segment < p.k; segment += 256) {
    float chain = 0;
    for (int k = segment; k < min(p.k, segment + 256); ++k)
      chain = fmaf(x[k], weight[static_cast<int64_t>(k) * p.k_step], chain);
    acc = acc + chain;
  }
  return acc;
}

// The sum over 16 outputs of one row: this lane's two, then the eight lanes that share the row.
__device__ float sum_of_sixteen(float first, float second) {
  float sum = first + second;
  for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
  return sum;
}

// One output of the backward pass.
template <class Operand>
__device__ void finish_backward(const Parameters& p, int row, int n, float a) {
  const SwigluBackward& io = p.swiglu;
  const int64_t place = static_cast<int64_t>(row) * p.n + n;
  const auto at = [&](const void* rows) { return widen(static_cast<const Operand*>(rows)[place]); };
  const float gate = io.gate_of_row ? io.gate_of_row[row] : 1.0f;
  const float scaled = gate * at(io.activation);
  const SwigluGradient result(gate * a, at(io.gate_product), at(io.up_product));
  round_into(static_cast<Operand*>(io.d_gate_product)[place], result.d_gate);
  round_into(static_cast<Operand*>(io.d_up_product)[place], result.d_up);
  if (io.gate_of_row) round_into(static_cast<Operand*>(io.scaled_activation)[place], scaled);
}

template <Epilogue kEpilogue, class Operand>
__device__ void finish(const Parameters& p, int row, int n, float sum, float up) {
  const int64_t place = static_cast<int64_t>(row) * p.n + n;
  if constexpr (kEpilogue == Epilogue::dense) {
    float* out = static_cast<float*>(p.out);
    const float y = p.bias ? sum + p.bias[n] : sum;
    out[place] = p.accumulate ? p.base[place] + y : y;
  } else {
    if (kEpilogue == Epilogue::swiglu && p.gate_out) {
      round_into(static_cast<Operand*>(p.gate_out)[place], sum);
      round_into(static_cast<Operand*>(p.up_out)[place], up);
    }
    round_into(static_cast<Operand*>(p.out)[place],
               kEpilogue == Epilogue::swiglu ? silu_device(sum) * up : sum);
  }
}

// blockIdx.x: 16 outputs per warp; blockIdx.y: expert; blockIdx.z: every gridDim.z-th tile of 8
// rows.
template <Epilogue kEpilogue>
__global__ void __launch_bounds__(kWarps * 32) product_bf16(const __grid_constant__ Parameters p) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int lane = threadIdx.x % 32;
  const int expert = static_cast<int>(blockIdx.y);
  const int begin = p.offsets ? p.offsets[expert] : 0;
  const int end = p.offsets ? p.offsets[expert + 1] : p.rows;
  const int first_output = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / 32) * 16;
  if (first_output >= p.n) return;
  const int64_t matrix = static_cast<int64_t>(expert) * p.n * p.k;
  for (int first = begin + static_cast<int>(blockIdx.z) * 8; first < end;
       first += static_cast<int>(gridDim.z) * 8) {
    const int mine = first + lane / 4;
    const bf16* x_row = nullptr;
    if (mine < end) {
      const int64_t token = p.token_of_row ? p.token_of_row[mine] : mine;
      x_row = static_cast<const bf16*>(p.x) + token * p.k;
    }
    float sum[4] = {};
    float up[4] = {};
    multiply(sum, p, static_cast<const bf16*>(p.weight) + matrix, first_output, x_row);
    if (kEpilogue == Epilogue::round && p.second_x) {
      multiply(sum, p, static_cast<const bf16*>(p.second) + matrix, first_output,
               mine < end ? static_cast<const bf16*>(p.second_x) + static_cast<int64_t>(mine) * p.k
                          : nullptr);
    }
    if (kEpilogue == Epilogue::swiglu_backward && p.swiglu.gate_of_row) {
      const auto activation = [&](int i) {
        const int row = first + 2 * (lane % 4) + i % 2;
        const int n = first_output + lane / 4 + 8 * (i / 2);
        return row < end && n < p.n ? widen(static_cast<const bf16*>(
                                          p.swiglu.activation)[static_cast<int64_t>(row) * p.n + n])
                                    : 0.0f;
      };
      for (int i = 0; i < 2; ++i) {
        const float partial =
            sum_of_sixteen(sum[i] * activation(i), sum[i + 2] * activation(i + 2));
        const int row = first + 2 * lane + i;
        if (lane < 4 && row < end) {
          p.swiglu.partial_sums[static_cast<int64_t>(first_output / 16) * p.rows + row] = partial;
        }
      }
    }
    if constexpr (kEpilogue == Epilogue::swiglu) {
      multiply(up, p, static_cast<const bf16*>(p.second) + matrix, first_output, x_row);
    }
    for (int i = 0; i < 4; ++i) {
      const int row = first + 2 * (lane % 4) + i % 2;
      const int n = first_output + lane / 4 + 8 * (i / 2);
      if (row >= end || n >= p.n) continue;
      if constexpr (kEpilogue == Epilogue::swiglu_backward) {
        finish_backward<bf16>(p, row, n, sum[i]);
      } else {
        finish<kEpilogue, bf16>(p, row, n, sum[i], up[i]);
      }
    }
  }
}

// blockIdx.x: 128 outputs; blockIdx.y: expert; blockIdx.z: every gridDim.z-th row.
template <Epilogue kEpilogue>
__global__ void __launch_bounds__(kWarps * 32) product_f32(const __grid_constant__ Parameters p) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int expert = static_cast<int>(blockIdx.y);
  const int begin = p.offsets ? p.offsets[expert] : 0;
  const int end = p.offsets ? p.offsets[expert + 1] : p.rows;
  const int n = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  constexpr bool kBackward = kEpilogue == Epilogue::swiglu_backward;
  if (!kBackward && n >= p.n) return;  // on the way back, warps stay whole for their row sums
  const int64_t place = static_cast<int64_t>(expert) * p.n * p.k +
                        static_cast<int64_t>(min(n, p.n - 1)) * p.output_step;
  for (int row = begin + static_cast<int>(blockIdx.z); row < end;
       row += static_cast<int>(gridDim.z)) {
    const int64_t token = p.token_of_row ? p.token_of_row[row] : row;
    const float* x = static_cast<const float*>(p.x) + token * p.k;
    float sum = dot(0, p, static_cast<const float*>(p.weight) + place, x);
    if (kEpilogue == Epilogue::round && p.second_x) {
      sum = dot(sum, p, static_cast<const float*>(p.second) + place,
                static_cast<const float*>(p.second_x) + static_cast<int64_t>(row) * p.k);
    }
    if constexpr (kBackward) {
      if (p.swiglu.gate_of_row) {
        const float h = n < p.n ? static_cast<const float*>(
                                      p.swiglu.activation)[static_cast<int64_t>(row) * p.n + n]
                                : 0.0f;
        float partial = sum * h;
        for (int step = 1; step < 16; step *= 2) partial += __shfl_xor_sync(~0u, partial, step);
        if (n < p.n && n % 16 == 0) {
          p.swiglu.partial_sums[static_cast<int64_t>(n / 16) * p.rows + row] = partial;
        }
      }
      if (n < p.n) finish_backward<float>(p, row, n, sum);
    } else {
      const float up = kEpilogue == Epilogue::swiglu
                           ? dot(0, p, static_cast<const float*>(p.second) + place, x)
                           : 0.0f;
      finish<kEpilogue, float>(p, row, n, sum, up);
    }
  }
}

// One matrix, fp32 out: tiles of 64 or 128 rows x 128 outputs through shared memory, 4 or 8 x 8 to
// a thread. The same chains. 128 rows where k is one segment (the router's input gradient): then
// the chains are all a thread has to keep.
constexpr int kTileOutputs = 128;
constexpr int kTileDepth = 32;
constexpr int kTileThreads = 256;

// Where line `line` of depth k lies in a tile of kLines: groups of four lines are permuted so that
// neither writing four k of a line nor reading four lines of a k meets in a bank.
template <int kLines>
__device__ int tile_place(int k, int line) {
  return k * kLines + ((line / 4) ^ (k / 4)) * 4 + line % 4;
}

// Rows [first, first + kLines) and k [k0, k0 + kTileDepth) of `from`, zero outside.
template <int kLines>
__device__ void load_tile(float* tile, const float* from, int first, int lines, int k0, int size) {
  constexpr int kPieces = kTileDepth / 4;
  constexpr int kShare = kLines * kPieces / kTileThreads;
  float v[kShare][4];
#pragma unroll
  for (int i = 0; i < kShare; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * kTileThreads;
    const int line = first + at / kPieces;
    const int k = k0 + at % kPieces * 4;
    const float* row = from + static_cast<int64_t>(line) * size + k;
    if (size % 4 == 0 && line < lines && k < size) {
      const float4 four = *reinterpret_cast<const float4*>(row);
      v[i][0] = four.x, v[i][1] = four.y, v[i][2] = four.z, v[i][3] = four.w;
    } else {
      for (int j = 0; j < 4; ++j) v[i][j] = line < lines && k + j < size ? row[j] : 0.0f;
    }
  }
#pragma unroll
  for (int i = 0; i < kShare; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * kTileThreads;
    const int k = at % kPieces * 4;
#pragma unroll
    for (int j = 0; j < 4; ++j) tile[tile_place<kLines>(k + j, at / kPieces)] = v[i][j];
  }
}

// The same of `from` [size, lines].
template <int kLines>
__device__ void load_tile_transposed(float* tile, const float* from, int first, int lines, int k0,
                                     int size) {
  constexpr int kPieces = kLines / 4;
#pragma unroll
  for (int at = static_cast<int>(threadIdx.x); at < kTileDepth * kPieces; at += kTileThreads) {
    const int k = k0 + at / kPieces;
    const int line = first + at % kPieces * 4;
    const float* row = from + static_cast<int64_t>(k) * lines + line;
    float4 v = make_float4(0, 0, 0, 0);
    if (lines % 4 == 0) {
      if (k < size && line < lines) v = *reinterpret_cast<const float4*>(row);
    } else if (k < size) {
      if (line < lines) v.x = row[0];
      if (line + 1 < lines) v.y = row[1];
      if (line + 2 < lines) v.z = row[2];
      if (line + 3 < lines) v.w = row[3];
    }
    *reinterpret_cast<float4*>(tile + tile_place<kLines>(at / kPieces, at % kPieces * 4)) = v;
  }
}

// Four neighbouring outputs of a row.
__device__ void finish_four(const Parameters& p, int row, int n, const float* y) {
  if (row >= p.rows || n >= p.n) return;
  if (p.n % 4 != 0 || p.bias) {
    for (int j = 0; j < 4 && n + j < p.n; ++j)
      finish<Epilogue::dense, float>(p, row, n + j, y[j], 0.0f);
    return;
  }
  const int64_t place = static_cast<int64_t>(row) * p.n + n;
  float4 sum = make_float4(y[0], y[1], y[2], y[3]);
  if (p.accumulate) {
    const float4 old = *reinterpret_cast<const float4*>(p.base + place);
    sum = make_float4(old.x + sum.x, old.y + sum.y, old.z + sum.z, old.w + sum.w);
  }
  *reinterpret_cast<float4*>(static_cast<float*>(p.out) + place) = sum;
}

template <int kRows, bool kTransposed>
__global__ void __launch_bounds__(kTileThreads, 2)
    product_f32_tiled(const __grid_constant__ Parameters p) {
  constexpr int kHalves = kRows / 64;
  constexpr bool kOneSegment = kHalves == 2;
  __shared__ __align__(16) float x_tile[kTileDepth * kRows];
  __shared__ __align__(16) float w_tile[kTileDepth * kTileOutputs];
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int first_n = static_cast<int>(blockIdx.x) * kTileOutputs;
  const int first_row = static_cast<int>(blockIdx.y) * kRows;
  const int tn = threadIdx.x % 16 * 4;  // these four outputs, and those 64 further
  const int tr = threadIdx.x / 16 * 4;  // rows likewise
  float acc[kOneSegment ? 1 : 4][8] = {};
  float chain[4 * kHalves][8] = {};
  for (int k0 = 0; k0 < p.k; k0 += kTileDepth) {
    if (k0 > 0) __syncthreads();
    load_tile<kRows>(x_tile, static_cast<const float*>(p.x), first_row, p.rows, k0, p.k);
    constexpr auto load_weights =
        kTransposed ? load_tile_transposed<kTileOutputs> : load_tile<kTileOutputs>;
    load_weights(w_tile, static_cast<const float*>(p.weight), first_n, p.n, k0, p.k);
    __syncthreads();
#pragma unroll 4
    for (int k = 0; k < kTileDepth; ++k) {
      alignas(16) float x[4 * kHalves];
      alignas(16) float w[8];
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        *reinterpret_cast<float4*>(x + 4 * half) =
            *reinterpret_cast<const float4*>(x_tile + tile_place<kRows>(k, tr + 64 * half));
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        *reinterpret_cast<float4*>(w + 4 * half) =
            *reinterpret_cast<const float4*>(w_tile + tile_place<kTileOutputs>(k, tn + 64 * half));
      }
#pragma unroll
      for (int i = 0; i < 4 * kHalves; ++i) {
#pragma unroll
        for (int j = 0; j < 8; ++j) chain[i][j] = fmaf(x[i], w[j], chain[i][j]);
      }
    }
    if (!kOneSegment && (k0 + kTileDepth) % 256 == 0) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          acc[i % std::extent_v<decltype(acc)>][j] += chain[i][j];
          chain[i][j] = 0;
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 4 * kHalves; ++i) {
    // The last segment's sum, whole or not: if there is none, zero changes nothing.
#pragma unroll
    for (int j = 0; j < 8; ++j)
      chain[i][j] = acc[i % std::extent_v<decltype(acc)>][j] + chain[i][j];
    const int row = first_row + tr + i % 4 + i / 4 * 64;
    finish_four(p, row, first_n + tn, chain[i]);
    finish_four(p, row, first_n + tn + 64, chain[i] + 4);
  }
}

template <Epilogue kEpilogue>
void launch_group(const Context& context, const Product& product, const ProductGroup& group) {
  const bool transposed = group.weight.layout == WeightLayout::column_major;
  const Parameters p{
      .weight = group.weight.data,
      .second = group.second.data,
      .x = group.x.x.data,
      .offsets = group.offsets ? group.offsets.as<int32_t>() : nullptr,
      .token_of_row = group.x.indices(),
      .bias = group.bias ? group.bias.as<float>() : nullptr,
      .out = group.out.data,
      .base = static_cast<const float*>(group.base ? group.base.data : group.out.data),
      .gate_out = group.gate_out.data,
      .up_out = group.up_out.data,
      .second_x = group.second_x.data,
      .swiglu = group.swiglu,
      .count = static_cast<int32_t>(group.weight.count),
      .rows = static_cast<int32_t>(group.out.dim(0)),
      .n = static_cast<int32_t>(group.weight.n),
      .k = static_cast<int32_t>(group.weight.k),
      .accumulate = product.accumulate,
      .output_step = static_cast<int32_t>(transposed ? 1 : group.weight.k),
      .k_step = static_cast<int32_t>(transposed ? group.weight.n : 1)};
  if (p.rows == 0) return;
  const bool wide = group.weight.dtype == DType::BF16;
  if (!wide && kEpilogue == Epilogue::dense && p.count == 1 && p.rows <= 65535 * 64) {
    const bool one_segment = p.k <= 256;
    const int side = one_segment ? 128 : 64;
    const dim3 grid(static_cast<unsigned>((p.n + kTileOutputs - 1) / kTileOutputs),
                    static_cast<unsigned>((p.rows + side - 1) / side));
    const auto kernel =
        transposed ? (one_segment ? product_f32_tiled<128, true> : product_f32_tiled<64, true>)
                   : (one_segment ? product_f32_tiled<128, false> : product_f32_tiled<64, false>);
    return launch(context, {.grid = grid, .block = dim3(kTileThreads)}, kernel, p);
  }
  const int per_block = wide ? kWarps * 16 : kWarps * 32;
  const int row_tiles = wide ? (p.rows + 7) / 8 : p.rows;
  const dim3 grid(static_cast<unsigned>((p.n + per_block - 1) / per_block),
                  static_cast<unsigned>(p.count), static_cast<unsigned>(std::min(row_tiles, 1024)));
  const LaunchShape shape{.grid = grid, .block = dim3(kWarps * 32)};
  if (wide) return launch(context, shape, product_bf16<kEpilogue>, p);
  launch(context, shape, product_f32<kEpilogue>, p);
}

}  // namespace

void launch_product_portable(const Context& context, const Product& product) {
  for (int g = 0; g < product.num_groups; ++g) {
    const ProductGroup& group = product.group[g];
    DSMOE_CHECK(group.weight.dtype == DType::BF16 || group.weight.dtype == DType::F32,
                "products on CUDA take BF16 or F32, not {}", tensor::name_of(group.weight.dtype));
    DSMOE_CHECK(group.out.dim(1) == group.weight.n,
                "a part of a product that the copy engine cannot read: [{}, {}]", group.weight.n,
                group.weight.k);
    switch (product.epilogue) {
      case Epilogue::swiglu:
        launch_group<Epilogue::swiglu>(context, product, group);
        break;
      case Epilogue::round:
        launch_group<Epilogue::round>(context, product, group);
        break;
      case Epilogue::dense:
        launch_group<Epilogue::dense>(context, product, group);
        break;
      case Epilogue::swiglu_backward:
        launch_group<Epilogue::swiglu_backward>(context, product, group);
        break;
      case Epilogue::rope:
        fail(ErrorKind::internal, "rope as an epilogue needs the copy engine");
    }
  }
}

}  // namespace dsmoe::kernels::cuda

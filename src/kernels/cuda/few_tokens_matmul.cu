// Dense products of a few rows: any projection, and the one of attention with norm before it and
// rotation behind it.
#include <algorithm>

#include "kernels/cuda/few_tokens.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/residency.h"

namespace dsmoe::kernels::cuda {
namespace {

constexpr int kMaxFewRows = 32;

// Tile t of the grid is unit t / gridDim.x of block t % gridDim.x; units go to the first
// `ring_warps` warps in turn.
struct Work {
  int32_t tiles;
  int32_t ring_warps;
};

__device__ int own_units(const Work& work) {
  return (work.tiles - static_cast<int>(blockIdx.x) + static_cast<int>(gridDim.x) - 1) /
         static_cast<int>(gridDim.x);
}
__device__ int tile_of(int unit) { return static_cast<int>(blockIdx.x + unit * gridDim.x); }

struct MatmulParameters {
  const bf16* weight;  // [n, k]
  const bf16* x;       // [tokens, k]
  const float* bias;
  float* out;  // [tokens, n]
  int32_t tokens;
  int32_t n;
  int32_t k;
  int32_t accumulate;
  Work work;
};

template <int kStages, int kTiles>
__global__ void __launch_bounds__(kFewThreads, 1)
    few_matmul_kernel(const __grid_constant__ MatmulParameters p) {
  extern __shared__ __align__(128) unsigned char memory[];
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  unsigned char* const x = memory + p.work.ring_warps * kStages * kStageBytes;
  const int units = warp < p.work.ring_warps ? own_units(p.work) : 0;
  const auto rows = [&](int unit) {
    const bf16* low = p.weight + static_cast<int64_t>(tile_of(unit)) * 16 * p.k;
    return WeightRows{low, low + static_cast<int64_t>(8) * p.k, p.k};
  };
  RowStream<kStages, decltype(rows)> stream(
      shared_address(memory) + min(warp, p.work.ring_warps - 1) * kStages * kStageBytes, warp,
      units, p.work.ring_warps, rows);
  stream.start();
  let_next_kernel_start();
  wait_for_previous_kernel();
  if constexpr (kTiles == 1) {
    load_rows(x, p.x, p.tokens, p.k);
  } else {
    fetch_rows(shared_address(x), p.x, p.tokens, p.k);
    copy_async_commit();
    copy_async_wait<0>();
  }
  __syncthreads();
  // Rows past the last one of a tile of eight hold whatever is there: their columns are not used.
  const uint32_t own = x_row_address(
      shared_address(x) + (kTiles == 1 ? min(lane % 8, p.tokens - 1) : lane % 8) * x_pitch(p.k));
  for (int unit = warp; unit < units; unit += p.work.ring_warps) {
    float sum[kTiles][4];
    stream.multiply(sum, p.k, own, 8 * x_pitch(p.k));
#pragma unroll
    for (int i = 0; i < 4 * kTiles; ++i) {
      const int token = i / 4 * 8 + 2 * (lane % 4) + i % 2;
      const int n = tile_of(unit) * 16 + lane / 4 + 8 * (i % 4 / 2);
      if (token >= p.tokens) continue;
      float* target = p.out + static_cast<int64_t>(token) * p.n + n;
      const float y = p.bias ? sum[i / 4][i % 4] + p.bias[n] : sum[i / 4][i % 4];
      *target = p.accumulate ? *target + y : y;
    }
  }
}

struct QkvParameters {
  const float* residual;
  const float* norm_weight;
  float eps;
  const bf16* weight;
  const float* bias;
  const float* cos;
  const float* sin;
  const int32_t* position;
  const int32_t* kv_slot;
  bf16* q;
  bf16* keys;
  bf16* values;
  int32_t tokens;
  int32_t hidden;
  int32_t heads;
  int32_t kv_heads;
  int32_t head_dim;
  Work work;
};

// A tile holds eight dimensions of a head and the eight they are rotated with.
template <int kStages>
__global__ void __launch_bounds__(kFewThreads, 1)
    few_qkv_kernel(const __grid_constant__ QkvParameters p) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ float reduce[kFewWarps];
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int half = p.head_dim / 2;
  const int head_tiles = half / 8;
  unsigned char* const x = memory + p.work.ring_warps * kStages * kStageBytes;
  const int units = warp < p.work.ring_warps ? own_units(p.work) : 0;
  const auto first_row = [&](int unit) {
    const int tile = tile_of(unit);
    return tile / head_tiles * p.head_dim + tile % head_tiles * 8;
  };
  const auto rows = [&](int unit) {
    const bf16* low = p.weight + static_cast<int64_t>(first_row(unit)) * p.hidden;
    return WeightRows{low, low + static_cast<int64_t>(half) * p.hidden, p.hidden};
  };
  RowStream<kStages, decltype(rows)> stream(
      shared_address(memory) + min(warp, p.work.ring_warps - 1) * kStages * kStageBytes, warp,
      units, p.work.ring_warps, rows);
  stream.start();
  let_next_kernel_start();
  wait_for_previous_kernel();
  // What the end needs, asked for early.
  int position[2], slots[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int token = min(2 * (lane % 4) + i, p.tokens - 1);
    position[i] = p.position[token];
    slots[i] = p.kv_slot[token];
  }
  load_normalised(x, p.residual, p.norm_weight, p.eps, p.tokens, p.hidden, reduce);
  __syncthreads();
  const uint32_t own =
      x_row_address(shared_address(x) + min(lane % 8, p.tokens - 1) * x_pitch(p.hidden));
  for (int unit = warp; unit < units; unit += p.work.ring_warps) {
    const int head = tile_of(unit) / head_tiles;
    const int d = tile_of(unit) % head_tiles * 8 + lane / 4;
    const int row = first_row(unit) + lane / 4;
    const bool is_value = head >= p.heads + p.kv_heads;
    float cosine[2], sine[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t angle = static_cast<int64_t>(position[i]) * half + d;
      cosine[i] = p.cos[angle];
      sine[i] = p.sin[angle];
    }
    float sum[1][4];
    stream.multiply(sum, p.hidden, own, 0);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = 2 * (lane % 4) + i;
      if (token >= p.tokens) continue;
      float a = sum[0][i];
      float b = sum[0][2 + i];
      if (p.bias) {
        a = a + p.bias[row];
        b = b + p.bias[row + half];
      }
      if (!is_value) {
        const float rotated = fmaf(a, cosine[i], -(b * sine[i]));
        b = fmaf(b, cosine[i], a * sine[i]);
        a = rotated;
      }
      const int slot = slots[i];
      const int64_t page = slot / kKeyBlock;
      const int64_t kv_head = (head - p.heads) % p.kv_heads;
      bf16* target =
          head < p.heads
              ? p.q + (static_cast<int64_t>(token) * p.heads + head) * p.head_dim
              : (is_value ? p.values : p.keys) +
                    ((page * p.kv_heads + kv_head) * kKeyBlock + slot % kKeyBlock) * p.head_dim;
      round_into(target[d], a);
      round_into(target[d + half], b);
    }
  }
}

// Few tiles to a block: all their weights are under way at once, if that leaves room for x. Many:
// short rings for all warps.
template <class Kernels, class Parameters>
bool launch_work(const Context& context, Parameters& p, int tiles, int k) {
  const int blocks = std::min(num_multiprocessors(), tiles);
  const int per_block = (tiles + blocks - 1) / blocks;
  // A tile of eight rows is read in full.
  const int x_rows = p.tokens <= kMaxFewTokens ? p.tokens
                     : p.tokens <= 8           ? 8
                     : p.tokens <= 16          ? 16
                                               : 32;
  const int room = shared_memory_limit() - 256 - x_rows * x_pitch(k);
  constexpr int kDeep = 8, kShallow = 3;
  const bool deep = per_block * kDeep * kStageBytes <= room;
  const int warps = std::min(per_block, kFewWarps);
  if (!deep && warps * kShallow * kStageBytes > room) return false;
  p.work = {.tiles = tiles, .ring_warps = warps};
  const auto kernel = deep ? Kernels::template choose<kDeep>(p.tokens)
                           : Kernels::template choose<kShallow>(p.tokens);
  const auto bytes = static_cast<std::size_t>(x_rows * x_pitch(k) +
                                              warps * (deep ? kDeep : kShallow) * kStageBytes);
  allow_shared(kernel, bytes);
  launch(context,
         {.grid = dim3(static_cast<unsigned>(blocks)),
          .block = dim3(kFewThreads),
          .shared_bytes = bytes},
         kernel, p);
  return true;
}

struct MatmulKernels {
  template <int kStages>
  static auto choose(int tokens) {
    if (tokens <= 8) return few_matmul_kernel<kStages, 1>;
    return tokens <= 16 ? few_matmul_kernel<kStages, 2> : few_matmul_kernel<kStages, 4>;
  }
};
struct QkvKernels {
  template <int kStages>
  static auto choose(int) {
    return few_qkv_kernel<kStages>;
  }
};

bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

}  // namespace

bool few_rows_matmul(const Context& context, const MatmulForward& args) {
  const int64_t tokens = args.x.dim(0);
  if (tokens < 1 || tokens > kMaxFewRows || args.weight.dtype != DType::BF16 ||
      args.weight.k % 8 != 0 || args.weight.n % 16 != 0 || args.weight.k > (1 << 20) ||
      !aligned(args.x.data) || !aligned(args.weight.data))
    return false;
  MatmulParameters p{.weight = static_cast<const bf16*>(args.weight.data),
                     .x = static_cast<const bf16*>(args.x.data),
                     .bias = args.bias ? args.bias.as<float>() : nullptr,
                     .out = args.out.as<float>(),
                     .tokens = static_cast<int32_t>(tokens),
                     .n = static_cast<int32_t>(args.weight.n),
                     .k = static_cast<int32_t>(args.weight.k),
                     .accumulate = args.store == Store::accumulate,
                     .work = {}};
  return launch_work<MatmulKernels>(context, p, p.n / 16, p.k);
}

bool few_tokens_qkv(const Context& context, const FewTokensQkv& args) {
  const int64_t tokens = args.q.dim(0);
  const int64_t head_dim = args.q.dim(2);
  if (tokens < 1 || tokens > kMaxFewTokens || args.weight.dtype != DType::BF16 ||
      args.weight.k % 8 != 0 || head_dim % 16 != 0 || args.weight.k > (1 << 20) ||
      !aligned(args.weight.data) || !aligned(args.residual.data))
    return false;
  QkvParameters p{.residual = args.residual.as<float>(),
                  .norm_weight = args.norm_weight.as<float>(),
                  .eps = static_cast<float>(args.eps),
                  .weight = static_cast<const bf16*>(args.weight.data),
                  .bias = args.bias ? args.bias.as<float>() : nullptr,
                  .cos = args.cos.as<float>(),
                  .sin = args.sin.as<float>(),
                  .position = args.position.as<int32_t>(),
                  .kv_slot = args.kv_slot.as<int32_t>(),
                  .q = static_cast<bf16*>(args.q.data),
                  .keys = static_cast<bf16*>(args.kv.keys),
                  .values = static_cast<bf16*>(args.kv.values),
                  .tokens = static_cast<int32_t>(tokens),
                  .hidden = static_cast<int32_t>(args.weight.k),
                  .heads = static_cast<int32_t>(args.q.dim(1)),
                  .kv_heads = static_cast<int32_t>(args.kv.num_kv_heads),
                  .head_dim = static_cast<int32_t>(head_dim),
                  .work = {}};
  return launch_work<QkvKernels>(context, p, static_cast<int>(args.weight.n / 16), p.hidden);
}

}  // namespace dsmoe::kernels::cuda

// Dense products of a few rows: any projection, and the one of attention with norm before it and
// rotation behind it.
#include <algorithm>

#include "kernels/cuda/few_tokens/few_tokens_best.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/stream/launch.h"

namespace dsmoe::kernels::cuda {
namespace {

// Whether the most likely row of each token is looked for.
enum class Find { nothing, best };

template <int kStages, int kTiles, Find kFind>
__global__ void __launch_bounds__(kFewThreads, 1)
    few_matmul_kernel(const __grid_constant__ MatmulParameters p) {
  extern __shared__ __align__(128) unsigned char memory[];
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  unsigned char* const x = memory + p.work.ring_warps * kStages * kStageBytes;
  const int units = warp < p.work.ring_warps ? own_units(p.work) : 0;
  const auto rows = [&](int unit) { return MatmulTile<kTiles>::rows(p, tile_of(unit)); };
  RowStream<kStages, decltype(rows)> stream(
      shared_address(memory) + min(warp, p.work.ring_warps - 1) * kStages * kStageBytes, warp,
      units, p.work.ring_warps, rows);
  stream.start();
  __shared__ unsigned long long keys[kMaxFewRows];
  if (kFind == Find::best && threadIdx.x < kMaxFewRows) keys[threadIdx.x] = 0;
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
  BestLogits<kTiles> best;
  for (int unit = warp; unit < units; unit += p.work.ring_warps) {
    const MatmulTile<kTiles> tile(p, tile_of(unit));
    float sum[kTiles][4];
    stream.multiply(sum, p.k, own, 8 * x_pitch(p.k));
    tile.store(sum);
    if constexpr (kFind == Find::best) best.take(sum, tile.first);
  }
  if constexpr (kFind == Find::best) best.finish(keys, p.best, p.index, p.tokens);
}

template <int kStages, int kTiles>
__global__ void __launch_bounds__(kFewThreads, 1)
    few_qkv_kernel(const __grid_constant__ QkvParameters p) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ float reduce[kFewWarps];
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  unsigned char* const x = memory + p.work.ring_warps * kStages * kStageBytes;
  const int units = warp < p.work.ring_warps ? own_units(p.work) : 0;
  const auto rows = [&](int unit) { return QkvTile<kTiles>::rows(p, tile_of(unit)); };
  RowStream<kStages, decltype(rows)> stream(
      shared_address(memory) + min(warp, p.work.ring_warps - 1) * kStages * kStageBytes, warp,
      units, p.work.ring_warps, rows);
  stream.start();
  const NormWeights norm_weights(p.x ? nullptr : p.norm_weight, p.hidden);
  let_next_kernel_start();
  wait_for_previous_kernel();
  const QkvTokens<kTiles> tokens(p);
  if (p.x) {
    fetch_rows(shared_address(x), p.x, p.tokens, p.hidden);
    copy_async_commit();
    copy_async_wait<0>();
  } else {
    load_normalised(x, p.residual, norm_weights, p.eps, p.tokens, p.hidden, reduce);
  }
  __syncthreads();
  // Rows past the last one of a tile of eight repeat it, or hold whatever is there: their columns
  // are not used.
  const uint32_t own =
      x_row_address(shared_address(x) +
                    (kTiles == 1 ? min(lane % 8, p.tokens - 1) : lane % 8) * x_pitch(p.hidden));
  for (int unit = warp; unit < units; unit += p.work.ring_warps) {
    const QkvTile<kTiles> tile(p, tokens, tile_of(unit));
    float sum[kTiles][4];
    stream.multiply(sum, p.hidden, own, 8 * x_pitch(p.hidden));
    tile.store(sum);
  }
}

// Few tiles to a block: most of their weights are under way at once, and there is room beside them
// for a block of the attention that follows. Many: short rings for all warps.
struct WorkShape {
  static constexpr int kDeep = 7, kShallow = 3;
  int blocks;
  int warps;
  bool deep;
  int bytes;  // of shared memory; 0: too many rows of x

  WorkShape(int tokens, int tiles, int k) {
    blocks = std::min(num_multiprocessors(), tiles);
    const int per_block = (tiles + blocks - 1) / blocks;
    // A tile of eight rows is read in full.
    const int x_rows = tokens <= kMaxFewTokens ? tokens : tokens <= 8 ? 8 : tokens <= 16 ? 16 : 32;
    const int room = shared_memory_limit() - 256 - x_rows * x_pitch(k);
    deep = per_block * kDeep * kStageBytes <= room;
    warps = std::min(per_block, kFewWarps);
    const int rings = warps * (deep ? kDeep : kShallow) * kStageBytes;
    bytes = rings <= room ? x_rows * x_pitch(k) + rings : 0;
  }
};

template <class Kernels, class Parameters>
bool launch_work(const Context& context, Parameters& p, int tiles, int k) {
  const WorkShape shape(p.tokens, tiles, k);
  if (shape.bytes == 0) return false;
  p.work = {.tiles = tiles, .ring_warps = shape.warps};
  const auto kernel = shape.deep ? Kernels::template choose<WorkShape::kDeep>(p.tokens)
                                 : Kernels::template choose<WorkShape::kShallow>(p.tokens);
  const auto bytes = static_cast<std::size_t>(shape.bytes);
  allow_shared(kernel, bytes);
  launch(context,
         {.grid = dim3(static_cast<unsigned>(shape.blocks)),
          .block = dim3(kFewThreads),
          .shared_bytes = bytes},
         kernel, p);
  return true;
}

template <Find kFind>
struct MatmulKernels {
  template <int kStages>
  static auto choose(int tokens) {
    if (tokens <= 8) return few_matmul_kernel<kStages, 1, kFind>;
    return tokens <= 16 ? few_matmul_kernel<kStages, 2, kFind>
                        : few_matmul_kernel<kStages, 4, kFind>;
  }
};
struct QkvKernels {
  template <int kStages>
  static auto choose(int tokens) {
    if (tokens <= 8) return few_qkv_kernel<kStages, 1>;
    return tokens <= 16 ? few_qkv_kernel<kStages, 2> : few_qkv_kernel<kStages, 4>;
  }
};

bool fits(const TensorView& x, const WeightStack& weight) {
  const int64_t tokens = x.dim(0);
  return tokens >= 1 && tokens <= kMaxFewRows && weight.dtype == DType::BF16 && weight.k % 8 == 0 &&
         weight.n % 16 == 0 && weight.k <= (1 << 20) && is_aligned(x.data) &&
         is_aligned(weight.data);
}

MatmulParameters describe(const TensorView& x, const WeightStack& weight, const TensorView& out) {
  MatmulParameters p{};
  p.weight = static_cast<const bf16*>(weight.data);
  p.x = static_cast<const bf16*>(x.data);
  p.out = out.as<float>();
  p.tokens = static_cast<int32_t>(x.dim(0));
  p.n = static_cast<int32_t>(weight.n);
  p.k = static_cast<int32_t>(weight.k);
  return p;
}

constexpr Attempt kTooLarge{"x does not fit into shared memory"};

struct Best {
  DeviceArray<BestMemory> memory{1};
};

}  // namespace

bool few_rows_matmul(const Context& context, const MatmulForward& args) {
  if (!fits(args.x, args.weight.stack)) return false;
  MatmulParameters p = describe(args.x, args.weight.stack, args.out);
  p.bias = args.bias ? args.bias.as<float>() : nullptr;
  p.accumulate = args.store == Store::accumulate;
  return launch_work<MatmulKernels<Find::nothing>>(context, p, p.n / 16, p.k);
}

void prepare_few_tokens_head(const Context& context) { state_of<Best>(context); }

Attempt few_tokens_head(const Context& context, const FewTokensHead& args) {
  // One stream of the device has the memory in which blocks leave what they found.
  if (!fits(args.x, args.weight)) return {"there are too many rows, or sizes it cannot read"};
  if (!waits_allowed(context)) return {"the stream may not wait inside kernels"};
  MatmulParameters p = describe(args.x, args.weight, args.logits);
  p.best = state_of<Best>(context).memory.data();
  p.index = args.index.as<int32_t>();
  if (!launch_work<MatmulKernels<Find::best>>(context, p, p.n / 16, p.k)) return kTooLarge;
  return {};
}

Attempt few_tokens_qkv(const Context& context, const FewTokensQkv& args) {
  const int64_t tokens = args.q.dim(0);
  const int64_t head_dim = args.q.dim(2);
  if (tokens < 1 || tokens > kMaxFewRows || args.weight.dtype != DType::BF16 ||
      args.weight.k % 8 != 0 || head_dim % 16 != 0 || args.weight.k > (1 << 20) ||
      !is_aligned(args.weight.data) || !is_aligned(args.residual.data) || !is_aligned(args.x.data))
    return {"there are too many rows, or sizes it cannot read"};
  QkvParameters p{.x = nullptr,
                  .residual = args.residual.as<float>(),
                  .norm_weight = args.norm_weight.as<float>(),
                  .eps = static_cast<float>(args.eps),
                  .weight = static_cast<const bf16*>(args.weight.data),
                  .bias = args.bias ? args.bias.as<float>() : nullptr,
                  .rope = rope_store_of(args),
                  .tokens = static_cast<int32_t>(tokens),
                  .hidden = static_cast<int32_t>(args.weight.k),
                  .work = {}};
  const auto tiles = static_cast<int>(args.weight.n / 16);
  if (tokens > kMaxFewTokens) {
    // Every block would normalise all rows: one launch that does it once is shorter.
    if (WorkShape(p.tokens, tiles, p.hidden).bytes == 0) return kTooLarge;
    cuda::rms_norm_forward(
        context, {.x = args.residual, .weight = args.norm_weight, .eps = args.eps, .out = args.x});
    p.x = static_cast<const bf16*>(args.x.data);
  }
  if (!launch_work<QkvKernels>(context, p, tiles, p.hidden)) return kTooLarge;
  return {};
}

}  // namespace dsmoe::kernels::cuda

// Combine: one pass that gathers a token's expert rows, adds them by the tree over expert indices,
// then shared, then residual.
#include "kernels/cuda/moe/combine_tree.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/stream/launch.h"

namespace dsmoe::kernels::cuda {
namespace {

constexpr int kThreads = 256;

struct Parameters {
  Slots slots;
  const void* routed;
  const void* shared;
  float* residual;
  const float* base;  // what is added to
  int32_t tokens;
  int32_t hidden;
  int32_t first_column;
  int32_t columns;  // of routed and shared
  int32_t accumulate;
  int32_t tokens_per_block;
};

constexpr int kTokens = 8;  // of a block; warp w builds the tree of token w, the others wait for it

// Eight neighbouring values of a token per thread, one token after the other.
template <class Operand, int kSlots>
__global__ void __launch_bounds__(kThreads, sizeof(Operand) == 2 && kSlots <= 6 ? 3 : 1)
    combine_kernel(const __grid_constant__ Parameters p) {
  __shared__ Recipe<kSlots> recipes[kTokens];
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int first = static_cast<int>(blockIdx.x) * p.tokens_per_block;
  const int count = min(p.tokens_per_block, p.tokens - first);
  const auto* routed = static_cast<const Operand*>(p.routed);
  const auto* shared = static_cast<const Operand*>(p.shared);
  const int warp = threadIdx.x / 32;
  if (routed && warp < count) {
    Recipe<kSlots> recipe;
    recipe.build(p.slots, first + warp);
    if (threadIdx.x % 32 == 0) recipes[warp] = recipe;
  }
  __syncthreads();
  const int pieces = (p.columns + 7) / 8;
  for (int piece = threadIdx.x; piece < count * pieces; piece += kThreads) {
    const int token = piece / pieces;
    const int begin = piece % pieces * 8;
    const Recipe<kSlots>* recipe = routed ? &recipes[token] : nullptr;
    const int64_t place = static_cast<int64_t>(first + token) * p.columns;
    const int64_t row = static_cast<int64_t>(first + token) * p.hidden + p.first_column;
    // All loads before the first use.
    float out[8] = {};
    if (p.accumulate) load_eight(out, p.base + row, begin, p.columns);
    RawRows<Operand, kSlots> raw;
    raw.load(recipe, routed, shared ? shared + place : nullptr, begin, p.columns, p.columns);
    if (p.accumulate && !(recipe && recipe->any()) && !shared) {
      if (p.base != p.residual) store_eight(out, p.residual + row, begin, p.columns);
      continue;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum[4];
      raw.template sum<4, true>(sum, recipe, shared != nullptr, 4 * half);
#pragma unroll
      for (int j = 0; j < 4; ++j)
        out[4 * half + j] = p.accumulate ? out[4 * half + j] + sum[j] : sum[j];
    }
    store_eight(out, p.residual + row, begin, p.columns);
  }
}

template <class Operand>
void launch_combine(const Context& context, const Parameters& p) {
  const LaunchShape shape{
      .grid = dim3(static_cast<unsigned>((p.tokens + p.tokens_per_block - 1) / p.tokens_per_block)),
      .block = dim3(kThreads)};
  if (p.slots.top_k <= 2) return launch(context, shape, combine_kernel<Operand, 2>, p);
  if (p.slots.top_k <= 4) return launch(context, shape, combine_kernel<Operand, 4>, p);
  if (p.slots.top_k <= 6) return launch(context, shape, combine_kernel<Operand, 6>, p);
  if (p.slots.top_k <= 8) return launch(context, shape, combine_kernel<Operand, 8>, p);
  DSMOE_CHECK(p.slots.top_k <= 16, "combine on CUDA: top {}; at most 16 is supported",
              p.slots.top_k);
  launch(context, shape, combine_kernel<Operand, 16>, p);
}

}  // namespace

void combine_forward(const Context& context, const CombineForward& args) {
  Slots slots{};
  if (args.routed) {
    slots = {.index = args.index.as<int32_t>(),
             .gate = args.gate ? args.gate.as<float>() : nullptr,
             .row_of_slot = args.row_of_slot.as<int32_t>(),
             .top_k = static_cast<int32_t>(args.index.dim(1))};
  }
  const Parameters p{.slots = slots,
                     .routed = args.routed.data,
                     .shared = args.shared.data,
                     .residual = args.residual.as<float>(),
                     .base = (args.base ? args.base : args.residual).as<float>(),
                     .tokens = static_cast<int32_t>(args.residual.dim(0)),
                     .hidden = static_cast<int32_t>(args.residual.dim(1)),
                     .first_column = static_cast<int32_t>(args.columns.begin),
                     .columns = static_cast<int32_t>(args.columns.count_of(args.residual.dim(1))),
                     .accumulate = args.store == Store::accumulate,
                     // Few tokens: one to a block, for the latency.
                     .tokens_per_block = args.residual.dim(0) <= 1024 ? 1 : kTokens};
  if (p.tokens == 0) return;
  const DType operand = args.routed ? args.routed.dtype : args.shared.dtype;
  if (operand == DType::BF16) return launch_combine<bf16>(context, p);
  launch_combine<float>(context, p);
}

}  // namespace dsmoe::kernels::cuda

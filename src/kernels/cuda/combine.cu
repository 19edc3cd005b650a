// Combine: one pass that gathers a token's expert rows, adds them by the tree over expert indices,
// then shared, then residual.
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/ptx.cuh"

namespace dsmoe::kernels::cuda {
namespace {

constexpr int kThreads = 256;

struct Parameters {
  const int32_t* index;
  const float* gate;
  const int32_t* row_of_slot;
  const void* routed;
  const void* shared;
  float* residual;
  int32_t tokens;
  int32_t top_k;
  int32_t hidden;
  int32_t first_column;
  int32_t columns;  // of routed and shared
  int32_t accumulate;
  int32_t tokens_per_block;
};

// The slots of a token by ascending expert, and the order of additions. Two neighbours in expert
// order part at the highest bit in which they differ, so the tree joins the lowest such bit first;
// joining at border i adds part i + 1 to the part that ends there. One warp builds the trees of a
// block's tokens, the others wait for it. Beyond eight slots loops stay loops: right, slow, and
// quick to compile.
template <int kSlots>
constexpr int kUnroll = kSlots <= 8 ? kSlots : 1;

template <int kSlots>
struct Tree {
  int expert[kSlots];
  int row[kSlots];
  float gate[kSlots];
  int join[kSlots];  // step m: (left << 8) | right; -1: no more

  __device__ void build(const Parameters& p, int token) {
#pragma unroll kUnroll < kSlots>
    for (int i = 0; i < kSlots; ++i) {
      const bool present = i < p.top_k;
      const int64_t slot = static_cast<int64_t>(token) * p.top_k + (present ? i : 0);
      row[i] = present ? p.row_of_slot[slot] : -1;
      expert[i] = row[i] >= 0 ? p.index[slot] : 0x7fffffff;
      gate[i] = p.gate ? p.gate[slot] : 1.0f;
    }
#pragma unroll kUnroll < kSlots>
    for (int pass = 0; pass < kSlots; ++pass) {  // odd-even transposition: static indices only
#pragma unroll kUnroll < kSlots>
      for (int i = pass % 2; i + 1 < kSlots; i += 2) {
        if (expert[i] > expert[i + 1]) {
          const int e = expert[i], r = row[i];
          const float g = gate[i];
          expert[i] = expert[i + 1], row[i] = row[i + 1], gate[i] = gate[i + 1];
          expert[i + 1] = e, row[i + 1] = r, gate[i + 1] = g;
        }
      }
    }
    int level[kSlots];  // of the border after i; 32: done or none
    int start[kSlots];  // first slot of the part that ends at border i
#pragma unroll kUnroll < kSlots>
    for (int i = 0; i < kSlots; ++i) {
      start[i] = i;
      level[i] = 32;
      if (i + 1 < kSlots && row[i + 1 < kSlots ? i + 1 : i] >= 0)
        level[i] = 31 - __clz(expert[i] ^ expert[i + 1 < kSlots ? i + 1 : i]);
    }
#pragma unroll kUnroll < kSlots>
    for (int m = 0; m + 1 < kSlots; ++m) {
      int lowest = 32;
      int border = 0;
      int left = 0;
#pragma unroll kUnroll < kSlots>
      for (int i = 0; i + 1 < kSlots; ++i) {
        if (level[i] < lowest) {
          lowest = level[i];
          border = i;
          left = start[i];
        }
      }
      join[m] = lowest < 32 ? (left << 8) | (border + 1) : -1;
      // The joined part starts at `left` and ends at the next open border.
      bool open = lowest < 32;
#pragma unroll kUnroll < kSlots>
      for (int i = 0; i < kSlots; ++i) {
        if (i == border && lowest < 32) level[i] = 32;
        if (open && i > border) {
          start[i] = left;
          if (level[i] < 32) open = false;
        }
      }
    }
  }
};

template <int kSlots>
__device__ void add_part(float (&part)[kSlots][4], int join) {
#pragma unroll kUnroll < kSlots>
  for (int right = 1; right < kSlots; ++right) {
    if ((join & 0xff) != right) continue;
#pragma unroll kUnroll < kSlots>
    for (int left = 0; left < right; ++left) {
      if (join >> 8 == left) {
#pragma unroll
        for (int i = 0; i < 4; ++i) part[left][i] += part[right][i];
      }
    }
  }
}

constexpr int kTokens = 8;  // of a block; warp w builds the tree of token w

// What a thread needs of a token's tree.
template <int kSlots>
struct Recipe {
  int row[kSlots];
  float gate[kSlots];
  int join[kSlots];
};

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
    Tree<kSlots> tree;
    tree.build(p, first + warp);
    if (threadIdx.x % 32 == 0) {
#pragma unroll kUnroll < kSlots>
      for (int i = 0; i < kSlots; ++i) {
        recipes[warp].row[i] = tree.row[i];
        recipes[warp].gate[i] = tree.gate[i];
        recipes[warp].join[i] = i + 1 < kSlots ? tree.join[i] : -1;
      }
    }
  }
  __syncthreads();
  const int pieces = (p.columns + 7) / 8;
  for (int piece = threadIdx.x; piece < count * pieces; piece += kThreads) {
    const int token = piece / pieces;
    const int begin = piece % pieces * 8;
    const Recipe<kSlots>& recipe = recipes[token];
    const int64_t place = static_cast<int64_t>(first + token) * p.columns;
    float* residual = p.residual + static_cast<int64_t>(first + token) * p.hidden + p.first_column;
    // All loads before the first use; an absent slot reads row 0 and is never joined.
    float out[8] = {};
    if (p.accumulate) load_eight(out, residual, begin, p.columns);
    RawEight<Operand> common;
    if (shared) common.load(shared + place, begin, p.columns);
    RawEight<Operand> raw[kSlots];
    if (routed) {
#pragma unroll kUnroll < kSlots>
      for (int i = 0; i < kSlots; ++i) {
        raw[i].load(routed + static_cast<int64_t>(max(recipe.row[i], 0)) * p.columns, begin,
                    p.columns);
      }
    }
    const bool any = routed && recipe.row[0] >= 0;
    if (p.accumulate && !any && !shared) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float part[kSlots][4] = {};
      if (any) {
#pragma unroll kUnroll < kSlots>
        for (int i = 0; i < kSlots; ++i) {
          raw[i].widen(part[i], half);
#pragma unroll
          for (int j = 0; j < 4; ++j) part[i][j] *= recipe.gate[i];
        }
#pragma unroll kUnroll < kSlots>
        for (int m = 0; m + 1 < kSlots; ++m) {
          if (recipe.join[m] >= 0) add_part(part, recipe.join[m]);
        }
      }
      float other[4];
      if (shared) common.widen(other, half);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float sum = part[0][j];
        if (shared) sum = any ? sum + other[j] : other[j];
        out[4 * half + j] = p.accumulate ? out[4 * half + j] + sum : sum;
      }
    }
    store_eight(out, residual, begin, p.columns);
  }
}

template <class Operand>
void launch_combine(const Context& context, const Parameters& p) {
  const LaunchShape shape{
      .grid = dim3(static_cast<unsigned>((p.tokens + p.tokens_per_block - 1) / p.tokens_per_block)),
      .block = dim3(kThreads)};
  if (p.top_k <= 2) return launch(context, shape, combine_kernel<Operand, 2>, p);
  if (p.top_k <= 4) return launch(context, shape, combine_kernel<Operand, 4>, p);
  if (p.top_k <= 6) return launch(context, shape, combine_kernel<Operand, 6>, p);
  if (p.top_k <= 8) return launch(context, shape, combine_kernel<Operand, 8>, p);
  DSMOE_CHECK(p.top_k <= 16, "combine on CUDA: top {}; at most 16 is supported", p.top_k);
  launch(context, shape, combine_kernel<Operand, 16>, p);
}

}  // namespace

void combine_forward(const Context& context, const CombineForward& args) {
  const Parameters p{.index = args.routed ? args.index.as<int32_t>() : nullptr,
                     .gate = args.routed && args.gate ? args.gate.as<float>() : nullptr,
                     .row_of_slot = args.routed ? args.row_of_slot.as<int32_t>() : nullptr,
                     .routed = args.routed.data,
                     .shared = args.shared.data,
                     .residual = args.residual.as<float>(),
                     .tokens = static_cast<int32_t>(args.residual.dim(0)),
                     .top_k = args.routed ? static_cast<int32_t>(args.index.dim(1)) : 0,
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

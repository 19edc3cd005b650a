// Combine on the way back, with the router's share of the input gradient: one pass instead of a
// combine and an fp32 product that reads and writes its result once more. Multiplying waits for
// nothing while rows are on their way.
#include <algorithm>

#include "kernels/cuda/combine_tree.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"

namespace dsmoe::kernels::cuda {
namespace {

constexpr int kWarps = 16;
constexpr int kThreads = 32 * kWarps;  // one block to a multiprocessor
constexpr int kColumns = 256;          // of a block, eight to a lane
constexpr int kUnit = 32;              // tokens of a warp, a lane builds the tree of each
constexpr int kAtOnce = 4;             // of them
constexpr int kMostExperts = 64;

struct Parameters {
  Slots slots;
  const bf16* routed;     // [rows, columns]
  const bf16* shared;     // [tokens, columns], or null
  const float* d_logits;  // [tokens, experts]
  const float* weight;    // [experts, hidden]
  float* out;             // [tokens, hidden]
  int32_t tokens;
  int32_t experts;  // a multiple of 4
  int32_t hidden;
  int32_t first_column;
  int32_t columns;  // of routed and shared, a multiple of 8
};

// What a warp keeps of its unit.
template <int kSlots>
struct WarpMemory {
  Recipe<kSlots> recipes[kUnit];
  float x[kMostExperts][kAtOnce];
  float chain[kAtOnce][2][32][4];  // finished products, as weights lie
};

template <int kSlots>
struct Shared {
  // Columns 8 l .. 8 l + 3 of all lanes, then 8 l + 4 .. 8 l + 7: a warp reads without conflicts.
  float weight[kMostExperts][2][32][4];
  WarpMemory<kSlots> warp[kWarps];
};

template <int kSlots>
__device__ void load_weights(Shared<kSlots>& shared, const Parameters& p, int first_column) {
  for (int i = static_cast<int>(threadIdx.x); i < kColumns / 4 * p.experts; i += kThreads) {
    const int column = i % (kColumns / 4) * 4;
    const int k = i / (kColumns / 4);
    float4 v = make_float4(0, 0, 0, 0);
    if (first_column + column < p.columns) {
      v = *reinterpret_cast<const float4*>(p.weight + static_cast<int64_t>(k) * p.hidden +
                                           p.first_column + first_column + column);
    }
    *reinterpret_cast<float4*>(shared.weight[k][column / 4 % 2][column / 8]) = v;
  }
}

// d_logits of four tokens on their way: value i of lane l is number 32 i + l of them.
struct NextLogits {
  float v[kAtOnce * kMostExperts / 32];

  __device__ void load(const Parameters& p, int first, int end, int lane) {
#pragma unroll
    for (int i = 0; i < kAtOnce * kMostExperts / 32; ++i) {
      const int at = 32 * i + lane;
      if (at >= kAtOnce * p.experts) break;
      const int token = min(first + at / p.experts, end - 1);
      v[i] = p.d_logits[static_cast<int64_t>(token) * p.experts + at % p.experts];
    }
  }
  __device__ void store(float (&x)[kMostExperts][kAtOnce], const Parameters& p, int lane) const {
#pragma unroll
    for (int i = 0; i < kAtOnce * kMostExperts / 32; ++i) {
      const int at = 32 * i + lane;
      if (at >= kAtOnce * p.experts) break;
      x[at % p.experts][at / p.experts] = v[i];
    }
  }
};

// The router's share of four tokens, eight columns to a lane: one ascending chain each. It stays in
// shared memory, so that registers are free for rows.
template <int kSlots>
__device__ void multiply(const Shared<kSlots>& shared, WarpMemory<kSlots>& own, int experts,
                         int lane) {
  float chain[kAtOnce][8] = {};
#pragma unroll 4
  for (int k = 0; k < experts; ++k) {
    const float4 of_token = *reinterpret_cast<const float4*>(own.x[k]);
    const float4 low = *reinterpret_cast<const float4*>(shared.weight[k][0][lane]);
    const float4 high = *reinterpret_cast<const float4*>(shared.weight[k][1][lane]);
    const float factor[kAtOnce] = {of_token.x, of_token.y, of_token.z, of_token.w};
    const float w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int t = 0; t < kAtOnce; ++t) {
#pragma unroll
      for (int j = 0; j < 8; ++j) chain[t][j] = fmaf(factor[t], w[j], chain[t][j]);
    }
  }
#pragma unroll
  for (int t = 0; t < kAtOnce; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float* four = chain[t] + 4 * half;
      *reinterpret_cast<float4*>(own.chain[t][half][lane]) =
          make_float4(four[0], four[1], four[2], four[3]);
    }
  }
}

// blockIdx.x: 256 columns; warps of blocks blockIdx.y take units of tokens in turn. A token's rows
// are asked for before the products, or the sums of the token ahead, begin.
template <int kSlots>
__global__ void __launch_bounds__(kThreads, 1)
    combine_backward_kernel(const __grid_constant__ Parameters p) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<kSlots>*>(memory);
  const int lane = threadIdx.x % 32;
  const int block_column = static_cast<int>(blockIdx.x) * kColumns;
  load_weights(shared, p, block_column);  // nobody changes weights on the way back
  wait_for_previous_kernel();
  let_next_kernel_start();
  __syncthreads();
  const int column = block_column + lane * 8;
  const bool inside = column < p.columns;
  WarpMemory<kSlots>& own = shared.warp[threadIdx.x / 32];
  const int stride = static_cast<int>(gridDim.y) * kWarps;
  for (int unit = static_cast<int>(blockIdx.y * kWarps + threadIdx.x / 32); unit * kUnit < p.tokens;
       unit += stride) {
    const int begin = unit * kUnit;
    const int end = min(p.tokens, begin + kUnit);
    NextLogits next;
    next.load(p, begin, end, lane);
    {
      Recipe<kSlots> recipe;
      recipe.build(p.slots, min(begin + lane, end - 1));
      __syncwarp();
      own.recipes[lane] = recipe;
      __syncwarp();
    }
    for (int first = begin; first < end; first += kAtOnce) {
      RawRows<bf16, kSlots> raw[2];
      const auto ask_for = [&](int t) {
        const int token = min(first + t, end - 1);
        const bf16* row = p.shared ? p.shared + static_cast<int64_t>(token) * p.columns : nullptr;
        if (inside)
          raw[t % 2].load(&own.recipes[token - begin], p.routed, row, column, p.columns, 8);
      };
      ask_for(0);
      __syncwarp();
      next.store(own.x, p, lane);
      __syncwarp();
      if (first + kAtOnce < end) next.load(p, first + kAtOnce, end, lane);
      multiply(shared, own, p.experts, lane);
      if (!inside) continue;
#pragma unroll
      for (int t = 0; t < kAtOnce; ++t) {
        const int token = first + t;
        if (token >= end) break;
        if (t + 1 < kAtOnce) ask_for(t + 1);
        float out[8];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float sum[4];
          raw[t % 2].template sum<4, false>(sum, &own.recipes[token - begin], p.shared != nullptr,
                                            4 * half);
          const float4 four = *reinterpret_cast<const float4*>(own.chain[t][half][lane]);
          const float chain[4] = {four.x, four.y, four.z, four.w};
          // The product is one segment, added to zero, of the fp32 rule.
#pragma unroll
          for (int j = 0; j < 4; ++j) out[4 * half + j] = sum[j] + (0.0f + chain[j]);
        }
        store_eight(out, p.out + static_cast<int64_t>(token) * p.hidden + p.first_column, column,
                    8);
      }
    }
  }
}

template <int kSlots>
void launch_slots(const Context& context, const Parameters& p) {
  const auto kernel = combine_backward_kernel<kSlots>;
  constexpr std::size_t kBytes = sizeof(Shared<kSlots>);
  static_assert(kBytes <= 227 * 1024);
  static const bool once = (allow_shared(kernel, kBytes), true);
  (void)once;
  const int across = (p.columns + kColumns - 1) / kColumns;
  const int units = (p.tokens + kUnit - 1) / kUnit;
  const int down =
      std::min((units + kWarps - 1) / kWarps, std::max(1, num_multiprocessors() / across));
  launch(context,
         {.grid = dim3(static_cast<unsigned>(across), static_cast<unsigned>(down)),
          .block = dim3(kThreads),
          .shared_bytes = kBytes},
         kernel, p);
}

}  // namespace

bool combine_backward(const Context& context, const CombineBackward& args) {
  const CombineForward& all = args.combine;
  const int64_t experts = args.centroids.k;
  const int64_t columns = all.columns.count_of(all.residual.dim(1));
  const auto aligned = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
  DSMOE_CHECK(args.centroids.layout == WeightLayout::column_major,
              "combine_backward reads the centroids as they lie");
  if (!has_clusters() || !all.routed || all.gate || all.routed.dtype != DType::BF16 ||
      all.store != Store::assign || all.index.dim(1) > 8 || experts > kMostExperts ||
      experts % 4 != 0 || columns % 8 != 0 || all.columns.begin % 8 != 0 ||
      all.residual.dim(1) % 8 != 0 || !aligned(args.centroids.data) || !aligned(all.routed.data) ||
      !aligned(all.shared.data) || !aligned(all.residual.data))
    return false;
  const Parameters p{.slots = {.index = all.index.as<int32_t>(),
                               .gate = nullptr,
                               .row_of_slot = all.row_of_slot.as<int32_t>(),
                               .top_k = static_cast<int32_t>(all.index.dim(1))},
                     .routed = static_cast<const bf16*>(all.routed.data),
                     .shared = static_cast<const bf16*>(all.shared.data),
                     .d_logits = args.d_logits.as<float>(),
                     .weight = static_cast<const float*>(args.centroids.data),
                     .out = all.residual.as<float>(),
                     .tokens = static_cast<int32_t>(all.residual.dim(0)),
                     .experts = static_cast<int32_t>(experts),
                     .hidden = static_cast<int32_t>(all.residual.dim(1)),
                     .first_column = static_cast<int32_t>(all.columns.begin),
                     .columns = static_cast<int32_t>(columns)};
  if (p.tokens == 0) return true;
  if (p.slots.top_k <= 6) {
    launch_slots<6>(context, p);
  } else {
    launch_slots<8>(context, p);
  }
  return true;
}

}  // namespace dsmoe::kernels::cuda

// Combine on the way back, with the router's share of the input gradient: one pass instead of a
// combine and an fp32 product that reads and writes its result once more. The products of four
// tokens are made between the sums of the four before, so that neither waits for rows on their way.
#include <algorithm>

#include "kernels/cuda/moe/combine_tree.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/stream/launch.h"

namespace dsmoe::kernels::cuda {
namespace {

constexpr int kWarps = 12;
constexpr int kThreads = 32 * kWarps;  // one block to a multiprocessor
constexpr int kColumns = 256;          // of a block, eight to a lane
constexpr int kUnit = 32;              // at most, tokens of a warp: a lane builds the tree of each
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
  int32_t unit;     // tokens of a warp at a time, a multiple of kAtOnce
};

// What a warp keeps of its unit.
template <int kSlots>
struct WarpMemory {
  uint4 rows[2][kSlots + 1][32];  // of two tokens, shared last: a lane's own columns
  Recipe<kSlots> recipes[kUnit];
  float x[kMostExperts][kAtOnce];
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

// The router's share of four tokens, eight columns to a lane: one ascending chain each, of which
// this is the part from `first` to `last`.
template <int kSlots>
__device__ void multiply(float (&chain)[kAtOnce][8], const Shared<kSlots>& shared,
                         const WarpMemory<kSlots>& own, int first, int last, int lane) {
#pragma unroll 4
  for (int k = first; k < last; ++k) {
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
}

// A unit's tokens from `begin` on, `count` of them: rows of two are on their way while others are
// added.
template <int kSlots>
struct UnitRows {
  const Parameters& p;
  WarpMemory<kSlots>& own;
  int begin;
  int count;
  int column;
  int lane;

  __device__ bool inside() const { return column < p.columns; }
  __device__ void ask_for(int token) const {
    if (token < count && inside()) {
      const auto copy = [&](int row, const bf16* from) {
        copy_async_16(shared_address(&own.rows[token % 2][row][lane]), from + column, 16);
      };
      // An absent slot reads row 0 and is never joined.
#pragma unroll
      for (int i = 0; i < kSlots; ++i) {
        const int row = max(own.recipes[token].row[i], 0);
        copy(i, p.routed + static_cast<int64_t>(row) * p.columns);
      }
      if (p.shared) copy(kSlots, p.shared + static_cast<int64_t>(begin + token) * p.columns);
    }
    copy_async_commit();  // a group for every token, so that they can be counted
  }
  // Adds a token's rows and its finished chain, and asks for those of the token after the next.
  __device__ void add(int token, const float (&chain)[8]) const {
    copy_async_wait<1>();
    if (token < count && inside()) {
      RawRows<bf16, kSlots> raw;
#pragma unroll
      for (int i = 0; i < kSlots; ++i) raw.slot[i].words = own.rows[token % 2][i][lane];
      if (p.shared) raw.shared.words = own.rows[token % 2][kSlots][lane];
      float out[8];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float sum[4];
        raw.template sum<4, false>(sum, &own.recipes[token], p.shared != nullptr, 4 * half);
        // The product is one segment, added to zero, of the fp32 rule.
#pragma unroll
        for (int j = 0; j < 4; ++j) out[4 * half + j] = sum[j] + (0.0f + chain[4 * half + j]);
      }
      store_eight(out, p.out + static_cast<int64_t>(begin + token) * p.hidden + p.first_column,
                  column, 8);
    }
    ask_for(token + 2);
  }
};

// blockIdx.x: 256 columns; warps of blocks blockIdx.y take units of tokens in turn.
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
  WarpMemory<kSlots>& own = shared.warp[threadIdx.x / 32];
  const int stride = static_cast<int>(gridDim.y) * kWarps * p.unit;
  for (int begin = static_cast<int>(blockIdx.y * kWarps + threadIdx.x / 32) * p.unit;
       begin < p.tokens; begin += stride) {
    const int count = min(p.unit, p.tokens - begin);
    NextLogits next;
    next.load(p, begin, begin + count, lane);
    {
      Recipe<kSlots> recipe;
      recipe.build(p.slots, begin + min(lane, count - 1));
      __syncwarp();
      own.recipes[lane] = recipe;
      __syncwarp();
    }
    const UnitRows<kSlots> rows{p, own, begin, count, block_column + lane * 8, lane};
    rows.ask_for(0);
    rows.ask_for(1);
    float done[kAtOnce][8] = {};
    for (int first = 0; first < count + kAtOnce; first += kAtOnce) {
      float chain[kAtOnce][8] = {};
      const bool more = first < count;
      if (more) {
        __syncwarp();
        next.store(own.x, p, lane);
        __syncwarp();
        if (first + kAtOnce < count) next.load(p, begin + first + kAtOnce, begin + count, lane);
      }
#pragma unroll
      for (int t = 0; t < kAtOnce; ++t) {
        if (more)
          multiply(chain, shared, own, p.experts / kAtOnce * t, p.experts / kAtOnce * (t + 1),
                   lane);
        if (first > 0) rows.add(first - kAtOnce + t, done[t]);
      }
#pragma unroll
      for (int t = 0; t < kAtOnce; ++t) {
#pragma unroll
        for (int j = 0; j < 8; ++j) done[t][j] = chain[t][j];
      }
    }
    copy_async_wait<0>();
  }
}

template <int kSlots>
void launch_slots(const Context& context, Parameters p) {
  constexpr std::size_t kBytes = sizeof(Shared<kSlots>);
  static_assert(kBytes <= 227 * 1024);
  allow_shared_once<combine_backward_kernel<kSlots>>(kBytes);
  const int across = (p.columns + kColumns - 1) / kColumns;
  const int down = std::min((p.tokens + kWarps * kUnit - 1) / (kWarps * kUnit),
                            std::max(1, num_multiprocessors() / across));
  // Units as large as leave all warps as many.
  const int most = down * kWarps;
  const int turns = (p.tokens + most * kUnit - 1) / (most * kUnit);
  p.unit = ((p.tokens + most * turns - 1) / (most * turns) + kAtOnce - 1) / kAtOnce * kAtOnce;
  launch(context,
         {.grid = dim3(static_cast<unsigned>(across), static_cast<unsigned>(down)),
          .block = dim3(kThreads),
          .shared_bytes = kBytes},
         combine_backward_kernel<kSlots>, p);
}

}  // namespace

Attempt combine_backward(const Context& context, const CombineBackward& args) {
  const CombineForward& all = args.combine;
  const int64_t experts = args.centroids.k;
  const int64_t columns = all.columns.count_of(all.residual.dim(1));
  DSMOE_CHECK(args.centroids.layout == WeightLayout::column_major,
              "combine_backward reads the centroids as they lie");
  if (!has_clusters() || !all.routed || all.gate || all.routed.dtype != DType::BF16 ||
      all.store != Store::assign || all.index.dim(1) > 8 || experts > kMostExperts ||
      experts % 4 != 0 || columns % 8 != 0 || all.columns.begin % 8 != 0 ||
      all.residual.dim(1) % 8 != 0 || !is_aligned(args.centroids.data) ||
      !is_aligned(all.routed.data) || !is_aligned(all.shared.data) ||
      !is_aligned(all.residual.data))
    return {"it cannot read these types or sizes"};
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
                     .columns = static_cast<int32_t>(columns),
                     .unit = kUnit};
  if (p.tokens == 0) return {};
  if (p.slots.top_k <= 6) {
    launch_slots<6>(context, p);
  } else {
    launch_slots<8>(context, p);
  }
  return {};
}

}  // namespace dsmoe::kernels::cuda

// The feed-forward part of a block for a few tokens, in one launch: norm, router, gate and up with
// SwiGLU, down, combine. Same sums as the ops one by one.
//
// One block per multiprocessor, all of them resident: they wait for one another twice, once for the
// router's sums (meanwhile warps multiply the shared experts) and once between up and down
// (meanwhile the first weights of down arrive). A block owns 16 columns of the result and all
// experts' shares of them, so combine needs no third wait.
#include <algorithm>

#include "kernels/cuda/few_tokens/few_tokens_choice.cuh"
#include "kernels/cuda/few_tokens/few_tokens_wait.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/stream/launch.h"

namespace dsmoe::kernels::cuda {
namespace {

constexpr int kRouterWarp = kFewWarps - 1;
constexpr int kLongWarp = kFewWarps - 2;           // has the ring of the last warp too, at times
constexpr int kFirstSelectWarp = kRouterWarp - 1;  // token t: warp kFirstSelectWarp - t

// A stream that may wait inside kernels has one: its launches follow one another.
struct FfnMemory {
  DeviceArray<unsigned> left{1};
  DeviceArray<uint32_t> launches{1};
  DeviceArray<unsigned> ups{1};
  DeviceArray<uint64_t> partial{kMaxPartials};
};

// Bytes of dynamic shared memory, in order: rings, rows of x and later of the activations, then
// what the router's selection needs.
struct FfnShared {
  int x;
  int shared_rows;  // within x: where the shared experts' activations begin
  int select;
  int affinity;
  int index;
  int gate;
  int total;

  __host__ __device__ FfnShared(int stages, const FewFfnParameters& p) {
    const int top_k = p.routed.gate ? p.router.rule.top_k : 0;
    const int experts = p.routed.gate ? p.router.experts : 0;
    shared_rows = p.tokens * top_k * x_pitch(p.routed.width);
    const int activations = shared_rows + (p.shared.gate ? p.tokens * x_pitch(p.shared.width) : 0);
    const int normed = p.tokens * x_pitch(p.hidden);
    x = kFewWarps * stages * kStageBytes;
    select = x + (activations > normed ? activations : normed);
    affinity = select + p.tokens * (2 * experts + kMaxTopK) * 4;
    index = affinity + p.tokens * experts * 4;
    gate = index + p.tokens * top_k * 4;
    total = gate + p.tokens * top_k * 4;
  }
};

// Eight gates and their eight ups: a lane holds output lane / 4 of rows 2 (lane % 4) and the next.
__device__ void store_up(const FewFamily& family, int first_row, int num_rows, int first_output,
                         const float (&sum)[4]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = 2 * (lane % 4) + i;
    if (row < num_rows) {
      const uint32_t h = pack_bf16(silu_device(sum[i]) * sum[2 + i], 0.0f);
      reinterpret_cast<unsigned short*>(
          family.activation)[static_cast<int64_t>(first_row + row) * family.width + first_output +
                             lane / 4] = static_cast<unsigned short>(h);
    }
  }
}

// Sixteen rounded columns of each row, in shared memory.
__device__ void store_down(float* rows, int num_rows, const float (&sum)[4]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = 2 * (lane % 4) + i % 2;
    if (row < num_rows) {
      rows[row * 16 + lane / 4 + 8 * (i / 2)] = __uint_as_float(pack_bf16(sum[i], 0.0f) << 16);
    }
  }
}

// Units of this block: unit j is tile blockIdx.x + j * gridDim.x.
__device__ int own_units(int tiles) {
  return (tiles - static_cast<int>(blockIdx.x) + static_cast<int>(gridDim.x) - 1) /
         static_cast<int>(gridDim.x);
}
__device__ int tile_of(int unit) { return static_cast<int>(blockIdx.x + unit * gridDim.x); }

// Shared experts of few tiles are multiplied by few warps, which then have longer rings: all but
// the router's, kSharedStages each.
template <int kStages, int kSharedStages>
__global__ void __launch_bounds__(kFewThreads, 1)
    few_ffn_kernel(const __grid_constant__ FewFfnParameters p) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ FewChoice choice;
  __shared__ float rows[(kMaxSlots + kMaxFewTokens) * 16];
  __shared__ float reduce[kFewWarps];
  const FfnShared place(kStages, p);
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  unsigned char* const x = memory + place.x;
  const uint32_t x_base = shared_address(x);
  const uint32_t ring = shared_address(memory) + warp * kStages * kStageBytes;
  const int hidden = p.hidden;
  const bool has_shared = p.shared.gate != nullptr;
  const bool has_routed = p.routed.gate != nullptr;
  const uint32_t selected = shared_address(&choice.selected);
  const uint32_t listed = shared_address(&choice.listed);
  if (threadIdx.x == 0) {
    choice.num_groups = choice.num_rows = 0;
    barrier_init(selected, 32 * static_cast<uint32_t>(p.tokens));
    barrier_init(listed, 32);
  }
  // The router's results go to shared memory first.
  __shared__ alignas(RouterParameters) unsigned char local_memory[sizeof(RouterParameters)];
  auto& local = *reinterpret_cast<RouterParameters*>(local_memory);
  if (threadIdx.x == 32) {
    local = p.router;
    local.index = reinterpret_cast<int32_t*>(memory + place.index);
    local.gate = reinterpret_cast<float*>(memory + place.gate);
    local.affinity = reinterpret_cast<float*>(memory + place.affinity);
    local.logits = nullptr;
    local.replayed = nullptr;
  }

  // Weights that do not wait for the router.
  const int shared_units = has_shared ? own_units(p.shared.width / 8) : 0;
  const auto shared_rows = [&](int unit) {
    const int64_t begin = static_cast<int64_t>(tile_of(unit)) * 8 * hidden;
    return WeightRows{p.shared.gate + begin, p.shared.up + begin, hidden};
  };
  constexpr bool kLongShared = kSharedStages > kStages;
  constexpr int kSharedWarps = kLongShared ? kRouterWarp * kStages / kSharedStages : kFewWarps;
  RowStream<kSharedStages, decltype(shared_rows)> shared_up(
      shared_address(memory) + warp * kSharedStages * kStageBytes, warp,
      warp < kSharedWarps ? shared_units : 0, kSharedWarps, shared_rows);
  const bool routes = has_routed && warp == kRouterWarp;
  const int first_router_unit = static_cast<int>(blockIdx.x);
  // x comes first where the rings are long: the choice of experts waits for it, and the shared
  // experts have time until that is made.
  constexpr int kBeforeX = kLongShared ? 2 : kSharedStages - 1;
  unsigned char* const centroids = memory + warp * kStages * kStageBytes;
  if (!routes) {
    shared_up.start(kBeforeX);
  } else if (first_router_unit < p.router_units) {
    fetch_centroids(p, first_router_unit, ring);
  }
  const NormWeights norm_weights(p.x ? nullptr : p.norm_weight, hidden);
  let_next_kernel_start();
  wait_for_previous_kernel();
  const uint32_t tag = launch_tag(p.launches);

  if (p.x) {
    load_rows(x, p.x, p.tokens, hidden);
  } else {
    load_normalised(x, p.residual, norm_weights, p.eps, p.tokens, hidden, reduce);
  }
  __syncthreads();
  if (routes) {
    const int step = static_cast<int>(gridDim.x);
    for (int unit = first_router_unit; unit < p.router_units; unit += step) {
      router_unit(p, unit, x, centroids, tag);
      __syncwarp();
      if (unit + step < p.router_units) fetch_centroids(p, unit + step, ring);
    }
    if constexpr (!kLongShared) shared_up.start();
  }
  // The router's sums are what all blocks wait for: no other copies before them.
  if (first_router_unit < p.router_units) __syncthreads();
  if (!routes) shared_up.go_on(kSharedStages - 1 - kBeforeX);
  const bool publishes = blockIdx.x == gridDim.x - 1;  // often has no columns of down
  const int token = kFirstSelectWarp - warp;
  const bool few_experts = p.router.experts <= 64;
  auto* const logits =
      reinterpret_cast<float*>(memory + place.select) + token * (2 * p.router.experts + kMaxTopK);
  if (has_routed && token >= 0 && token < p.tokens) {
    const bool plain = few_experts ? sum_logits<2>(p, token, tag, logits, choice, listed)
                                   : sum_logits<8>(p, token, tag, logits, choice, listed);
    if (!plain) {
      few_experts ? select<2>(local, token, logits, choice)
                  : select<8>(local, token, logits, choice);
      barrier_arrive(selected);
      if (token == 0) {
        barrier_poll(selected, 0);
        list_rows(p, local, choice);
      }
    }
    if (token == 0) {
      if (lane == 0) choice.unpublished = plain;
      if (!plain) {
        barrier_arrive(listed);
        if (publishes) publish(p, local, choice);
      }
    }
  }

  float sum[1][4];
  const int same = lane % 8;
  for (int unit = warp; warp < kSharedWarps && unit < shared_units; unit += kSharedWarps) {
    shared_up.multiply(sum, hidden,
                       x_row_address(x_base + min(same, p.tokens - 1) * x_pitch(hidden)), 0);
    store_up(p.shared, 0, p.tokens, tile_of(unit) * 8, sum[0]);
  }

  if (has_routed) barrier_poll(listed, 0);
  if constexpr (kLongShared) __syncthreads();  // the others' rings have been read
  const int group_tiles = has_routed ? p.routed.width / 8 : 1;
  const int routed_units = own_units(choice.num_groups * group_tiles);
  const auto routed_rows = [&](int unit) {
    const int tile = tile_of(unit);
    const int64_t begin =
        (static_cast<int64_t>(choice.group_expert[tile / group_tiles]) * p.routed.width +
         tile % group_tiles * 8) *
        hidden;
    return WeightRows{p.routed.gate + begin, p.routed.up + begin, hidden};
  };
  {
    // The last warp begins: the first ones may still be at their shared experts.
    const int first = kFewWarps - 1 - warp;
    RowStream<kStages, decltype(routed_rows)> up(ring, first, routed_units, kFewWarps, routed_rows);
    up.start();
    for (int unit = first; unit < routed_units; unit += kFewWarps) {
      const int tile = tile_of(unit);
      const int group = tile / group_tiles;
      const int first_row = choice.group_first[group];
      const int num_rows = choice.group_first[group + 1] - first_row;
      const int own = choice.row_token[first_row + min(same, num_rows - 1)];
      up.multiply(sum, hidden, x_row_address(x_base + own * x_pitch(hidden)), 0);
      store_up(p.routed, first_row, num_rows, tile % group_tiles * 8, sum[0]);
    }
  }

  // Down: 16 columns after 16 columns; of each, the shared experts first, then the groups.
  const int column_blocks = own_units(hidden / 16);
  const int per_block = choice.num_groups + has_shared;
  const auto down_rows = [&](int unit) {
    const int64_t first = static_cast<int64_t>(tile_of(unit / per_block)) * 16;
    const int group = unit % per_block - has_shared;
    if (group < 0) {
      const bf16* low = p.shared.down + first * p.shared.width;
      return WeightRows{low, low + static_cast<int64_t>(8) * p.shared.width, p.shared.width};
    }
    const bf16* low =
        p.routed.down +
        (static_cast<int64_t>(choice.group_expert[group]) * hidden + first) * p.routed.width;
    return WeightRows{low, low + static_cast<int64_t>(8) * p.routed.width, p.routed.width};
  };
  // The shared experts' rows are the longest. Where a warp has nothing else to do, theirs is the
  // ring of two.
  const int down_units = column_blocks * per_block;
  const bool spare = has_shared && column_blocks == 1 && down_units < kFewWarps;
  const bool is_long = spare && warp == kLongWarp;
  const int first_down = spare ? (warp < kLongWarp ? warp + 1 : down_units) : warp;
  RowStream<kStages, decltype(down_rows)> down(ring, first_down, down_units, kFewWarps, down_rows);
  RowStream<2 * kStages, decltype(down_rows)> long_down(ring, is_long ? 0 : 1, 1, 1, down_rows);
  // Every warp reports for itself, before its next weights are under way.
  __syncwarp();
  if (lane == 0) add_release(p.ups);
  if (is_long) {
    long_down.start(kStages);  // the last warp still reads its own
  } else if (!(spare && warp > kLongWarp)) {
    down.start(1);  // the activations would wait behind more
  }
  if (threadIdx.x == 0) wait_until_round(p.ups, tag * gridDim.x * kFewWarps);
  __syncthreads();
  if (has_routed) fetch_rows(x_base, p.routed.activation, choice.num_rows, p.routed.width);
  if (has_shared)
    fetch_rows(x_base + place.shared_rows, p.shared.activation, p.tokens, p.shared.width);
  copy_async_commit();
  if (is_long) {
    long_down.go_on(kStages - 1);
    copy_async_wait<kStages - 1>();
  } else {
    if (!spare || warp < kLongWarp) down.go_on(kStages - 2);
    copy_async_wait<kStages - 2>();
  }
  __syncthreads();

  if (publishes && warp == kRouterWarp && has_routed && choice.unpublished) {
    auto* logits_of_one = reinterpret_cast<float*>(memory + place.select);
    few_experts ? select<2>(local, 0, logits_of_one, choice)
                : select<8>(local, 0, logits_of_one, choice);
    publish(p, local, choice);
  }
  int unit = first_down;
  if (is_long) {
    long_down.multiply(sum, p.shared.width,
                       x_row_address(x_base + place.shared_rows +
                                     min(same, p.tokens - 1) * x_pitch(p.shared.width)),
                       0);
    store_down(rows + kMaxSlots * 16, p.tokens, sum[0]);
  }
  for (int block = 0; block < column_blocks; ++block) {
    // What the sums are added to, asked for early.
    const bool combines = static_cast<int>(threadIdx.x) < p.tokens * 16;
    const int t = threadIdx.x / 16;
    const int column = threadIdx.x % 16;
    float* out = p.residual + static_cast<int64_t>(t) * hidden + tile_of(block) * 16 + column;
    const float old = combines ? *out : 0.0f;
    for (; unit < (block + 1) * per_block; unit += kFewWarps) {
      const int group = unit % per_block - has_shared;
      if (group < 0) {
        down.multiply(sum, p.shared.width,
                      x_row_address(x_base + place.shared_rows +
                                    min(same, p.tokens - 1) * x_pitch(p.shared.width)),
                      0);
        store_down(rows + kMaxSlots * 16, p.tokens, sum[0]);
      } else {
        const int first_row = choice.group_first[group];
        const int num_rows = choice.group_first[group + 1] - first_row;
        down.multiply(
            sum, p.routed.width,
            x_row_address(x_base + (first_row + min(same, num_rows - 1)) * x_pitch(p.routed.width)),
            0);
        store_down(rows + first_row * 16, num_rows, sum[0]);
      }
    }
    __syncthreads();
    if (combines) {
      bool any = false;
      float total = join_experts(choice, rows, t, column, any);
      if (has_shared) {
        const float common = rows[(kMaxSlots + t) * 16 + column];
        total = any ? total + common : common;
      }
      *out = old + total;
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    // The last block to leave counts the launch.
    if (atomicInc(p.left, gridDim.x - 1) == gridDim.x - 1) *p.launches = tag;
  }
}

FewFamily describe(const ExpertFamily& family) {
  if (!family.gate) return {};
  return {.gate = static_cast<const bf16*>(family.gate.stack.data),
          .up = static_cast<const bf16*>(family.up.stack.data),
          .down = static_cast<const bf16*>(family.down.stack.data),
          .activation = static_cast<bf16*>(family.activation.data),
          .width = static_cast<int32_t>(family.gate.stack.n)};
}

bool fits(const ExpertFamily& family) {
  return !family.gate || (family.gate.stack.dtype == DType::BF16 && family.gate.stack.n % 8 == 0);
}

template <int kStages, int kSharedStages = kStages>
bool launch_ffn(const Context& context, const FewFfnParameters& p) {
  const FfnShared shared(kStages, p);
  constexpr int kStatic = sizeof(FewChoice) + (kMaxSlots + kMaxFewTokens) * 64 + 256;
  if (shared.total + kStatic > shared_memory_limit()) return false;
  allow_shared(few_ffn_kernel<kStages, kSharedStages>, static_cast<std::size_t>(shared.total));
  launch(context,
         {.grid = dim3(static_cast<unsigned>(num_multiprocessors())),
          .block = dim3(kFewThreads),
          .shared_bytes = static_cast<std::size_t>(shared.total)},
         few_ffn_kernel<kStages, kSharedStages>, p);
  return true;
}

}  // namespace

void prepare_few_tokens_ffn(const Context& context) { state_of<FfnMemory>(context); }

Attempt few_tokens_ffn(const Context& context, const FewTokensFfn& args) {
  const auto tokens = static_cast<int32_t>(args.residual.dim(0));
  const auto hidden = static_cast<int32_t>(args.residual.dim(1));
  const bool routed = static_cast<bool>(args.routed.gate);
  if (tokens < 1 || tokens > kMaxFewTokens) return {"there are too many tokens"};
  if (!waits_allowed(context)) return {"the stream may not wait inside kernels"};
  if (hidden % 16 != 0 || !fits(args.routed) || !fits(args.shared) ||
      args.residual.dtype != DType::F32)
    return {"it cannot read these types or sizes"};
  if (!args.routed.gate && !args.shared.gate) return {"there are no experts"};
  FewFfnParameters p{};
  if (routed) {
    if (args.centroids.n > kMaxExpertsFew || tokens * args.rule.top_k > kMaxSlots ||
        args.rule.num_groups > 32)
      return {"there are too many experts"};
    p.router = {
        .rule = args.rule,
        .centroids = static_cast<const float*>(args.centroids.data),
        .bias = args.selection_bias ? args.selection_bias.as<float>() : nullptr,
        .experts_of_token = args.experts_of_token ? args.experts_of_token.as<int32_t>() : nullptr,
        .affinity = args.affinity.as<float>(),
        .index = args.index.as<int32_t>(),
        .gate = args.gate.as<float>(),
        .bad_token = args.bad_token.as<int32_t>(),
        .tokens = tokens,
        .experts = static_cast<int32_t>(args.centroids.n),
        .hidden = hidden};
    const int segments = (hidden + kSegment - 1) / kSegment;
    if (segments * tokens * p.router.experts > kMaxPartials) return {"there are too many experts"};
    p.router_units = (p.router.experts + 15) / 16 * segments;
  }
  p.x = static_cast<const bf16*>(args.x.data);
  p.norm_weight = args.norm_weight ? args.norm_weight.as<float>() : nullptr;
  p.eps = static_cast<float>(args.eps);
  p.routed = describe(args.routed);
  p.shared = describe(args.shared);
  p.residual = args.residual.as<float>();
  p.tokens = tokens;
  p.hidden = hidden;
  const auto& memory = state_of<FfnMemory>(context);
  p.left = memory.left.data();
  p.launches = memory.launches.data();
  p.ups = memory.ups.data();
  p.partial = memory.partial.data();
  const int shared_tiles = p.shared.gate ? p.shared.width / 8 : 0;
  if (tokens == 1 && routed && shared_tiles <= 3 * num_multiprocessors() &&
      launch_ffn<3, 4>(context, p))
    return {};
  if (tokens == 1 && launch_ffn<3>(context, p)) return {};
  if (launch_ffn<2>(context, p)) return {};
  return {"x does not fit into shared memory"};
}

}  // namespace dsmoe::kernels::cuda

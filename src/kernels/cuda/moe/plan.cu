// The dispatch plan: a counting sort of (expert, token) pairs without atomics on order.
//
// Tokens are cut into chunks. A chunk keeps one bit per (expert, token); the rank of a token within
// its expert is a count of lower bits. One chunk: one kernel. More: counts per chunk, an exclusive
// scan over chunks, then placement. The counts of a chunk wait in its own part of row_of_slot until
// that chunk overwrites them with its result, so no other memory is needed.
#include <algorithm>

#include "kernels/cuda/device/ptx.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/stream/launch.h"

namespace dsmoe::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kChunkTokens = 128;  // more where a chunk's slots are fewer than the experts

struct Parameters {
  const int32_t* index;
  const int32_t* starts;
  int32_t* expert_offsets;
  int32_t* sequence_offsets;
  int32_t* token_of_row;
  int32_t* row_of_slot;
  int32_t tokens;
  int32_t top_k;
  int32_t experts;
  int32_t sequences;
  int32_t chunk_tokens;  // the last chunk takes the remainder too
  int32_t chunks;
  int32_t words;  // of a chunk's bits, per expert
};

struct Chunk {
  int begin;
  int count;
};
__device__ Chunk chunk_of(const Parameters& p, int idx) {
  const int begin = idx * p.chunk_tokens;
  return {begin, idx + 1 == p.chunks ? p.tokens - begin : p.chunk_tokens};
}

// bits[w * experts + e]: which tokens of the chunk chose expert e.
__device__ void mark_tokens(const Parameters& p, Chunk chunk, uint32_t* bits) {
  for (int i = threadIdx.x; i < p.experts * p.words; i += kThreads) bits[i] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < chunk.count * p.top_k; i += kThreads) {
    const int e = p.index[static_cast<int64_t>(chunk.begin) * p.top_k + i];
    const int token = i / p.top_k;
    if (e >= 0) atomicOr(&bits[token / 32 * p.experts + e], 1u << (token % 32));
  }
  __syncthreads();
}

// How many tokens before `token` of the chunk chose the expert.
__device__ int rank_of(const Parameters& p, const uint32_t* bits, int e, int token) {
  int rank = __popc(bits[token / 32 * p.experts + e] & ((1u << (token % 32)) - 1));
  for (int w = 0; w < token / 32; ++w) rank += __popc(bits[w * p.experts + e]);
  return rank;
}
__device__ int total_of(const Parameters& p, const uint32_t* bits, int e) {
  int total = 0;
  for (int w = 0; w < p.words; ++w) total += __popc(bits[w * p.experts + e]);
  return total;
}

// first[e]: the first row of the chunk's tokens of expert e.
__device__ void place_tokens(const Parameters& p, Chunk chunk, const uint32_t* bits,
                             const int32_t* first) {
  for (int i = threadIdx.x; i < chunk.count * p.top_k; i += kThreads) {
    const int64_t slot = static_cast<int64_t>(chunk.begin) * p.top_k + i;
    const int e = p.index[slot];
    const int token = i / p.top_k;
    int row = -1;
    if (e >= 0) {
      row = first[e] + rank_of(p, bits, e, token);
      p.token_of_row[row] = chunk.begin + token;
    }
    p.row_of_slot[slot] = row;
  }
  const bool last = chunk.begin + chunk.count == p.tokens;
  for (int i = threadIdx.x; i < p.experts * (p.sequences + 1); i += kThreads) {
    const int e = i % p.experts;
    const int s = i / p.experts;
    const int start = p.starts[s] - chunk.begin;
    if (start < 0 || (start >= chunk.count && !(last && start == chunk.count))) continue;
    const int rank = start == chunk.count ? total_of(p, bits, e) : rank_of(p, bits, e, start);
    p.sequence_offsets[static_cast<int64_t>(e) * (p.sequences + 1) + s] = first[e] + rank;
  }
}

// Exclusive prefix sums of count[0 .. experts) by one warp; the total comes back in every lane.
__device__ int scan_experts(const int32_t* count, int32_t* offset, int experts) {
  const int lane = threadIdx.x % 32;
  int base = 0;
  for (int e0 = 0; e0 < experts; e0 += 32) {
    const int own = e0 + lane < experts ? count[e0 + lane] : 0;
    int sum = own;
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += other;
    }
    if (e0 + lane < experts) offset[e0 + lane] = base + sum - own;
    base += __shfl_sync(~0u, sum, 31);
  }
  return base;
}

__global__ void __launch_bounds__(kThreads) plan_one_chunk(const __grid_constant__ Parameters p) {
  extern __shared__ uint32_t bits[];
  auto* first = reinterpret_cast<int32_t*>(bits + p.experts * p.words);
  auto* count = first + p.experts;
  // The experts' kernel may start fetching weights at once: whatever came before the kernel ahead
  // of this one has finished.
  let_next_kernel_start();
  wait_for_previous_kernel();
  const Chunk chunk{0, p.tokens};
  mark_tokens(p, chunk, bits);
  for (int e = threadIdx.x; e < p.experts; e += kThreads) count[e] = total_of(p, bits, e);
  __syncthreads();
  if (threadIdx.x < 32) {
    const int rows = scan_experts(count, first, p.experts);
    __syncwarp();
    for (int e = threadIdx.x; e < p.experts; e += 32) p.expert_offsets[e] = first[e];
    if (threadIdx.x == 0) p.expert_offsets[p.experts] = rows;
  }
  __syncthreads();
  place_tokens(p, chunk, bits, first);
}

__global__ void __launch_bounds__(kThreads) plan_count(const __grid_constant__ Parameters p) {
  extern __shared__ uint32_t bits[];
  wait_for_previous_kernel();
  let_next_kernel_start();
  const Chunk chunk = chunk_of(p, static_cast<int>(blockIdx.x));
  mark_tokens(p, chunk, bits);
  int32_t* counts = p.row_of_slot + static_cast<int64_t>(chunk.begin) * p.top_k;
  for (int e = threadIdx.x; e < p.experts; e += kThreads) counts[e] = total_of(p, bits, e);
}

// One block: counts per chunk become first rows per chunk. A thread per expert and group of chunks,
// so that a warp reads neighbours.
constexpr int kScanThreads = 1024;
constexpr int kScanBatch = 8;  // chunks whose counts are under way together

struct ScanShape {
  int across;  // experts side by side
  int groups;  // of chunks
  int chunks;  // of a group
  __host__ __device__ explicit ScanShape(const Parameters& p) {
    across = (p.experts + 31) / 32 * 32;
    if (across > kScanThreads) across = kScanThreads;
    groups = kScanThreads / across;
    chunks = (p.chunks + groups - 1) / groups;
  }
  __host__ __device__ std::size_t shared_bytes(const Parameters& p) const {
    return static_cast<std::size_t>(p.experts) * (2 + groups) * 4;
  }
};

// body(chunk, count) for the group's chunks of expert e, ascending.
template <class Body>
__device__ void for_each_chunk(const Parameters& p, const ScanShape& shape, int group, int e,
                               Body&& body) {
  const int64_t stride = static_cast<int64_t>(p.chunk_tokens) * p.top_k;
  const int end = min(p.chunks, (group + 1) * shape.chunks);
  for (int c0 = group * shape.chunks; c0 < end; c0 += kScanBatch) {
    int count[kScanBatch];
#pragma unroll
    for (int i = 0; i < kScanBatch; ++i)
      count[i] = c0 + i < end ? p.row_of_slot[(c0 + i) * stride + e] : 0;
#pragma unroll
    for (int i = 0; i < kScanBatch; ++i) {
      if (c0 + i < end) body(p.row_of_slot[(c0 + i) * stride + e], count[i]);
    }
  }
}

__global__ void __launch_bounds__(kScanThreads) plan_scan(const __grid_constant__ Parameters p) {
  extern __shared__ uint32_t memory[];
  auto* count = reinterpret_cast<int32_t*>(memory);
  auto* first = count + p.experts;
  auto* of_group = first + p.experts;  // [groups, experts]
  wait_for_previous_kernel();
  let_next_kernel_start();
  const ScanShape shape(p);
  const int group = static_cast<int>(threadIdx.x) / shape.across;
  const int column = static_cast<int>(threadIdx.x) % shape.across;
  for (int e = column; group < shape.groups && e < p.experts; e += shape.across) {
    int sum = 0;
    for_each_chunk(p, shape, group, e, [&](int32_t&, int own) { sum += own; });
    of_group[group * p.experts + e] = sum;
  }
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < p.experts; e += kScanThreads) {
    int sum = 0;
    for (int g = 0; g < shape.groups; ++g) sum += of_group[g * p.experts + e];
    count[e] = sum;
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    const int rows = scan_experts(count, first, p.experts);
    __syncwarp();
    for (int e = threadIdx.x; e < p.experts; e += 32) p.expert_offsets[e] = first[e];
    if (threadIdx.x == 0) p.expert_offsets[p.experts] = rows;
  }
  __syncthreads();
  for (int e = column; group < shape.groups && e < p.experts; e += shape.across) {
    int row = first[e];
    for (int g = 0; g < group; ++g) row += of_group[g * p.experts + e];
    for_each_chunk(p, shape, group, e, [&](int32_t& place, int own) {
      place = row;
      row += own;
    });
  }
}

__global__ void __launch_bounds__(kThreads) plan_place(const __grid_constant__ Parameters p) {
  extern __shared__ uint32_t bits[];
  auto* first = reinterpret_cast<int32_t*>(bits + p.experts * p.words);
  wait_for_previous_kernel();
  let_next_kernel_start();
  const Chunk chunk = chunk_of(p, static_cast<int>(blockIdx.x));
  const int32_t* counts = p.row_of_slot + static_cast<int64_t>(chunk.begin) * p.top_k;
  for (int e = threadIdx.x; e < p.experts; e += kThreads) first[e] = counts[e];
  mark_tokens(p, chunk, bits);
  place_tokens(p, chunk, bits, first);
}

}  // namespace

void plan_build(const Context& context, const PlanBuild& args) {
  Parameters p{.index = args.index.as<int32_t>(),
               .starts = args.sequence_starts.as<int32_t>(),
               .expert_offsets = args.plan.expert_offsets.as<int32_t>(),
               .sequence_offsets = args.plan.sequence_offsets.as<int32_t>(),
               .token_of_row = args.plan.token_of_row.as<int32_t>(),
               .row_of_slot = args.plan.row_of_slot.as<int32_t>(),
               .tokens = static_cast<int32_t>(args.index.dim(0)),
               .top_k = static_cast<int32_t>(args.index.dim(1)),
               .experts = static_cast<int32_t>(args.plan.expert_offsets.dim(0) - 1),
               .sequences = static_cast<int32_t>(args.sequence_starts.dim(0) - 1),
               .chunk_tokens = kChunkTokens,
               .chunks = 1,
               .words = 0};
  // A chunk's part of row_of_slot must hold its counts.
  while (static_cast<int64_t>(p.chunk_tokens) * p.top_k < p.experts) p.chunk_tokens *= 2;
  p.chunks = std::max(1, p.tokens / p.chunk_tokens);
  p.words = (p.tokens - (p.chunks - 1) * p.chunk_tokens + 31) / 32;
  const std::size_t bytes = static_cast<std::size_t>(p.experts) * (p.words * 4 + 8);
  DSMOE_CHECK(bytes <= 220 * 1024, "plan on CUDA: {} experts exceed shared memory", p.experts);
  if (bytes > 40 * 1024) {
    allow_shared(plan_one_chunk, bytes);
    allow_shared(plan_count, bytes);
    allow_shared(plan_place, bytes);
  }
  if (p.chunks == 1) {
    return launch(context, {.grid = dim3(1), .block = dim3(kThreads), .shared_bytes = bytes},
                  plan_one_chunk, p);
  }
  const LaunchShape wide{.grid = dim3(static_cast<unsigned>(p.chunks)),
                         .block = dim3(kThreads),
                         .shared_bytes = bytes};
  launch(context, wide, plan_count, p);
  launch(
      context,
      {.grid = dim3(1), .block = dim3(kScanThreads), .shared_bytes = ScanShape(p).shared_bytes(p)},
      plan_scan, p);
  launch(context, wide, plan_place, p);
}

}  // namespace dsmoe::kernels::cuda

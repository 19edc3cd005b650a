// Sampling. A row is the work of kBlocks blocks; each warp owns a run of neighbouring ids and
// computes their weights anew in every pass. All sums are of integers, so that neither their order
// nor the number of blocks changes them.
#include <algorithm>

#include "kernels/cuda/device/ptx.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/row_blocks.cuh"
#include "kernels/cuda/ops.h"

namespace dsmoe::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kRowsOfLaunch = 64;  // rules travel as parameters
constexpr int kDigitBits = 6;      // of a key, looked at in one pass
constexpr int kDigits = (kSampleKeyBits + kDigitBits - 1) / kDigitBits;
constexpr int kBins = 1 << kDigitBits;
static_assert(kBins == 64);  // two for each lane

struct Parameters {
  const float* logits;
  const int32_t* best;
  int32_t* index;
  int vocabulary;
  SampleRule rule[kRowsOfLaunch];
};

// The sum over this lane and those below it.
__device__ uint64_t scan_of_warp(uint64_t value) {
  for (int step = 1; step < 32; step *= 2) {
    const uint64_t other = __shfl_up_sync(~0u, value, step);
    if (static_cast<int>(threadIdx.x % 32) >= step) value += other;
  }
  return value;
}

// What a warp found among its ids; the other blocks of the row read it.
struct Found {
  uint64_t mass;  // of keys above the border
  uint64_t ties;  // keys at the border
};

struct Shared {
  unsigned long long column[kBins][32];  // a column for each lane: no two lanes of a warp meet
  uint64_t bin[2][kBins];                // passes alternate: others may still read the last one's
  Found found[kWarps];
  uint64_t border, before;  // of a selection: its bin, and what lies above it
};

template <int kBlocks>
class Row : RowBlocks<kBlocks> {
  using RowBlocks<kBlocks>::of_block;
  using RowBlocks<kBlocks>::synchronise;

 public:
  __device__ Row(const Parameters& p, int row, Shared& shared)
      : logits_(p.logits + static_cast<int64_t>(row) * p.vocabulary),
        vocabulary_(p.vocabulary),
        shared_(shared),
        lane_(threadIdx.x % 32),
        warp_(threadIdx.x / 32),
        rank_(RowBlocks<kBlocks>::rank()) {
    const int warps = kBlocks * kWarps;
    ids_of_warp_ = ((vocabulary_ + warps - 1) / warps + 31) / 32 * 32;
  }

  // Every thread of the row's blocks; the first lane of the first one's first warp has the result.
  __device__ int draw(int best, const SampleRule& rule) {
    best_ = logits_[best];
    scale_ = rule.scale;
    SampleKept kept;
    if (rule.top_k > 0) {
      kept = select(
          static_cast<uint64_t>(rule.top_k), [](float) { return uint64_t{1}; },
          [](uint32_t) { return uint64_t{1}; });
    }
    if (rule.top_p < 1) {
      find(kept);
      const uint64_t total = total_of(kept);
      synchronise();
      kept = select(
          sample_share(rule.top_p, total), [](float weight) { return sample_mass(weight); },
          [](uint32_t key) { return mass_of_sample_key(key); });
    }
    kept = keep_least(kept, rule.least);
    find(kept);
    int chosen = best;
    if (rank_ == 0 && warp_ == 0) chosen = walk(kept, rule.draw, best);
    synchronise();  // shared memory lives until the first block has read it
    return chosen;
  }

 private:
  __device__ float weight_of(int id) const {
    return exp_f32(sample_exponent(logits_[id], best_, scale_));
  }
  // Calls f(weight) for every id of this warp.
  template <class F>
  __device__ void for_each(F&& f) const {
    const int begin = (rank_ * kWarps + warp_) * ids_of_warp_;
    const int end = min(vocabulary_, begin + ids_of_warp_);
#pragma unroll 4
    for (int id = begin + lane_; id < end; id += 32) f(weight_of(id));
  }

  // The fewest of the heaviest weights whose amounts add up to `need`: all, if they never do. The
  // border's key is found digit by digit, from the highest on.
  template <class Amount, class AmountOfKey>
  __device__ SampleKept select(uint64_t need, Amount&& amount, AmountOfKey&& amount_of_key) {
    uint32_t prefix = 0;
    uint64_t above = 0;
    for (int digit = kDigits - 1; digit >= 0; --digit) {
      const int shift = digit * kDigitBits;
      for (int i = threadIdx.x; i < kBins * 32; i += kThreads) shared_.column[i / 32][i % 32] = 0;
      __syncthreads();
      for_each([&](float weight) {
        const uint32_t key = sample_key(weight);
        if (key == 0 || key >> (shift + kDigitBits) != prefix) return;
        atomicAdd(&shared_.column[key >> shift & (kBins - 1)][lane_], amount(weight));
      });
      __syncthreads();
      for (int bin = warp_; bin < kBins; bin += kWarps) {
        const uint64_t sum = warp_sum(shared_.column[bin][lane_]);
        if (lane_ == 0) shared_.bin[digit % 2][bin] = sum;
      }
      synchronise();
      if (warp_ == 0) find_border(need, above, digit % 2);
      __syncthreads();
      if (shared_.border == kBins) return {};
      prefix = prefix << kDigitBits | static_cast<uint32_t>(shared_.border);
      above = shared_.before;
    }
    const uint64_t each = amount_of_key(prefix);
    return {.above = prefix, .ties = static_cast<uint32_t>((need - above + each - 1) / each)};
  }

  // The bin at which what lies above and the bins from the highest on first add up to `need`; kBins
  // if they never do. Lane 0 has the two highest.
  __device__ void find_border(uint64_t need, uint64_t above, int buffer) {
    const int bin = kBins - 2 * (lane_ + 1);
    uint64_t high = 0, low = 0;
    for (int rank = 0; rank < kBlocks; ++rank) {
      const uint64_t* bins = &of_block(shared_.bin[buffer][0], rank);
      high += bins[bin + 1];
      low += bins[bin];
    }
    const uint64_t before = above + scan_of_warp(high + low) - high - low;
    const bool is_border = before < need && before + high + low >= need;
    if (is_border) {
      const bool is_high = before + high >= need;
      shared_.border = static_cast<uint64_t>(is_high ? bin + 1 : bin);
      shared_.before = is_high ? before : before + high;
    }
    if (!__any_sync(~0u, is_border) && lane_ == 0) shared_.border = kBins;
  }

  // Leaves what each warp has of `kept` where all blocks can read it.
  __device__ void find(SampleKept kept) {
    uint64_t mass = 0, ties = 0;
    for_each([&](float weight) {
      const uint32_t key = sample_key(weight);
      if (key > kept.above) mass += sample_mass(weight);
      ties += key == kept.above ? 1 : 0;
    });
    mass = warp_sum(mass);
    ties = warp_sum(ties);
    if (lane_ == 0) shared_.found[warp_] = {.mass = mass, .ties = ties};
    synchronise();
  }

  __device__ uint64_t total_of(SampleKept kept) const {
    uint64_t mass = 0;
    for (int i = lane_; i < kBlocks * kWarps; i += 32) {
      mass += of_block(shared_.found[i % kWarps], i / kWarps).mass;
    }
    return warp_sum(mass) + kept.ties * mass_of_sample_key(kept.above);
  }

  // One warp: finds the warp whose ids hold the draw, then the id.
  __device__ int walk(SampleKept kept, uint64_t random, int best) const {
    const uint64_t mass_of_tie = mass_of_sample_key(kept.above);
    const auto mass_with_ties = [&](uint64_t mass, uint64_t ties, uint64_t ties_before) {
      const uint64_t left = kept.ties > ties_before ? kept.ties - ties_before : 0;
      return mass + min(left, ties) * mass_of_tie;
    };
    const uint64_t draw = __umul64hi(random, total_of(kept));
    uint64_t sum = 0, ties = 0;  // of all ids before those looked at
    int first = vocabulary_;
    for (int base = 0; base < kBlocks * kWarps; base += 32) {
      const bool exists = base + lane_ < kBlocks * kWarps;
      const int i = exists ? base + lane_ : 0;
      Found found = of_block(shared_.found[i % kWarps], i / kWarps);
      if (!exists) found = {};
      const uint64_t ties_before = ties + scan_of_warp(found.ties) - found.ties;
      const uint64_t mass = mass_with_ties(found.mass, found.ties, ties_before);
      const uint64_t sum_behind = sum + scan_of_warp(mass);
      if (const unsigned holders = __ballot_sync(~0u, sum_behind > draw); holders != 0) {
        const int holder = __ffs(holders) - 1;
        sum = __shfl_sync(~0u, sum_behind - mass, holder);
        ties = __shfl_sync(~0u, ties_before, holder);
        first = (base + holder) * ids_of_warp_;
        break;
      }
      sum = __shfl_sync(~0u, sum_behind, 31);
      ties = __shfl_sync(~0u, ties_before + found.ties, 31);
    }
    for (; first < vocabulary_; first += 32) {
      const int id = first + lane_;
      const float weight = id < vocabulary_ ? weight_of(id) : 0;
      const uint32_t key = sample_key(weight);
      const uint64_t is_tie = id < vocabulary_ && key == kept.above ? 1 : 0;
      const uint64_t ties_before = ties + scan_of_warp(is_tie) - is_tie;
      const uint64_t mass =
          mass_with_ties(key > kept.above ? sample_mass(weight) : 0, is_tie, ties_before);
      const uint64_t sum_behind = sum + scan_of_warp(mass);
      if (const unsigned holders = __ballot_sync(~0u, sum_behind > draw); holders != 0) {
        return first + __ffs(holders) - 1;
      }
      sum = __shfl_sync(~0u, sum_behind, 31);
      ties = __shfl_sync(~0u, ties_before + is_tie, 31);
    }
    return best;
  }

  const float* logits_;
  int vocabulary_;
  Shared& shared_;
  int lane_, warp_, rank_;
  int ids_of_warp_ = 0;
  float best_ = 0, scale_ = 0;
};

template <int kBlocks>
__global__ void __launch_bounds__(kThreads) sample_kernel(const __grid_constant__ Parameters p) {
  __shared__ Shared shared;
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int row = RowBlocks<kBlocks>::row();
  const SampleRule& rule = p.rule[row];
  const int best = p.best[row];
  int chosen = best;
  if (best >= 0 && rule.top_k != 1) chosen = Row<kBlocks>(p, row, shared).draw(best, rule);
  if (RowBlocks<kBlocks>::rank() == 0 && threadIdx.x == 0) p.index[row] = chosen;
}

template <int kBlocks>
void launch_sample(const Context& context, const Parameters& p, std::size_t rows) {
  launch(context, RowBlocks<kBlocks>::shape(static_cast<int64_t>(rows), kThreads),
         sample_kernel<kBlocks>, p);
}

}  // namespace

void sample_forward(const Context& context, const SampleForward& args) {
  const int64_t vocabulary = args.logits.dim(1);
  for (std::size_t first = 0; first < args.rule.size(); first += kRowsOfLaunch) {
    const std::size_t rows = std::min<std::size_t>(kRowsOfLaunch, args.rule.size() - first);
    Parameters p{.logits = args.logits.as<float>() + static_cast<int64_t>(first) * vocabulary,
                 .best = args.best.as<int32_t>() + first,
                 .index = args.index.as<int32_t>() + first,
                 .vocabulary = static_cast<int>(vocabulary),
                 .rule = {}};
    std::copy_n(args.rule.begin() + static_cast<std::ptrdiff_t>(first), rows, p.rule);
    has_clusters() ? launch_sample<8>(context, p, rows) : launch_sample<1>(context, p, rows);
  }
}

}  // namespace dsmoe::kernels::cuda

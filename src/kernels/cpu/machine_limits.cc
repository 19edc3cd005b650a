// Read loops, FMA loops and tile loops, per instruction set.
#include "kernels/cpu/machine_limits.h"

#include <immintrin.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/cpu_features.h"
#include "base/error.h"
#include "base/system_memory.h"
#include "kernels/cpu/tile_config.h"

namespace dsmoe::kernels::cpu {
namespace {

// Whatever made the value cannot be left out.
void keep(uint64_t value) { asm volatile("" : : "r"(value)); }

// --- reading ---
constexpr int64_t kLine = 64;
constexpr int64_t kAhead = 4096;  // bytes a prefetch runs ahead

// `kStreams` places at once. The odd line between streams keeps them out of one another's cache
// sets.
template <int kStreams, bool kPrefetch>
uint64_t read_128(const char* data, int64_t bytes) {
  const int64_t part = (bytes / kStreams - kAhead - kLine) / kLine * kLine;
  __m128i sum[kStreams][4] = {};
  for (int64_t i = 0; i < part; i += kLine) {
    for (int s = 0; s < kStreams; ++s) {
      const auto* p = reinterpret_cast<const __m128i*>(data + s * (part + kLine) + i);
      if (kPrefetch) _mm_prefetch(reinterpret_cast<const char*>(p) + kAhead, _MM_HINT_T0);
      for (int word = 0; word < 4; ++word)
        sum[s][word] = _mm_xor_si128(sum[s][word], _mm_load_si128(p + word));
    }
  }
  uint64_t all = 0;
  for (const auto& stream : sum) {
    for (const __m128i& word : stream) all ^= static_cast<uint64_t>(_mm_cvtsi128_si64(word));
  }
  return all;
}

template <int kStreams, bool kPrefetch>
__attribute__((target("avx512f"))) uint64_t read_512(const char* data, int64_t bytes) {
  const int64_t part = (bytes / kStreams - kAhead - kLine) / kLine * kLine;
  __m512i sum[kStreams] = {};
  for (int64_t i = 0; i < part; i += kLine) {
    for (int s = 0; s < kStreams; ++s) {
      const char* p = data + s * (part + kLine) + i;
      if (kPrefetch) _mm_prefetch(p + kAhead, _MM_HINT_T0);
      sum[s] = _mm512_xor_si512(sum[s], _mm512_load_si512(p));
    }
  }
  uint64_t all = 0;
  for (const __m512i& word : sum) all ^= static_cast<uint64_t>(word[0] ^ word[5]);
  return all;
}

struct ReadLoop {
  const char* name;
  uint64_t (*narrow)(const char*, int64_t);
  uint64_t (*wide)(const char*, int64_t);
};
constexpr ReadLoop kReadLoops[] = {
    {"1 stream", read_128<1, false>, read_512<1, false>},
    {"4 streams", read_128<4, false>, read_512<4, false>},
    {"8 streams", read_128<8, false>, read_512<8, false>},
    {"1 stream, prefetch", read_128<1, true>, read_512<1, true>},
    {"4 streams, prefetch", read_128<4, true>, read_512<4, true>},
    {"8 streams, prefetch", read_128<8, true>, read_512<8, true>},
};

// --- multiplying ---
constexpr int64_t kSteps = 200'000;
constexpr int kChains = 12;  // enough to cover latency 4 at two a cycle, with registers to spare

// One place of the first-level cache per step and chain: [kCacheRows][16 floats].
constexpr int kCacheRows = 128;  // 8 KiB
struct alignas(64) CacheFeed {
  float values[kCacheRows * 16];
};
CacheFeed make_feed() {
  CacheFeed feed;
  for (float& value : feed.values) value = 0.001f;
  return feed;
}

template <bool kFed>
__attribute__((target("avx512f"))) float fma_512() {
  const CacheFeed feed = make_feed();
  __m512 chain[kChains];
  for (__m512& c : chain) c = _mm512_set1_ps(1.0f);
  const __m512 a = _mm512_set1_ps(0.999f);
  __m512 b = _mm512_set1_ps(0.001f);
  for (int64_t i = 0; i < kSteps; ++i) {
    if (kFed) b = _mm512_load_ps(feed.values + i % kCacheRows * 16);
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) chain[c] = _mm512_fmadd_ps(chain[c], a, b);
  }
  float total = 0;
  for (const __m512& c : chain) total += c[0];
  return total;
}

template <bool kFed>
__attribute__((target("avx2,fma"))) float fma_256() {
  const CacheFeed feed = make_feed();
  __m256 chain[kChains];
  for (__m256& c : chain) c = _mm256_set1_ps(1.0f);
  const __m256 a = _mm256_set1_ps(0.999f);
  __m256 b = _mm256_set1_ps(0.001f);
  for (int64_t i = 0; i < kSteps; ++i) {
    if (kFed) b = _mm256_load_ps(feed.values + i % kCacheRows * 16);
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) chain[c] = _mm256_fmadd_ps(chain[c], a, b);
  }
  float total = 0;
  for (const __m256& c : chain) total += c[0];
  return total;
}

// Four accumulators, two operand tiles by two weight tiles, as the products use them; fed: the four
// operands come from the cache at each step.
constexpr int64_t kTileSteps = 20'000;
constexpr int64_t kTileSets = 4;  // of four tiles: 16 KiB

template <bool kFed>
__attribute__((target("amx-tile,amx-bf16"))) float tile_steps() {
  alignas(64) char tiles[kTileSets * 4 * kTileBytes];
  // bf16 numbers of ordinary size with mixed signs: zeros would cost less power.
  for (std::size_t i = 0; i < sizeof(tiles); i += 2) {
    const auto bits = static_cast<uint16_t>(0x3c00u | (i * 0x9e37u & 0x80ffu));
    std::memcpy(tiles + i, &bits, 2);
  }
  __asm__ volatile("" : : "r"(tiles) : "memory");
  _tile_loadconfig(&kTileConfigs.of[16]);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, tiles, 64);
  _tile_loadd(5, tiles + kTileBytes, 64);
  _tile_loadd(6, tiles + 2 * kTileBytes, 64);
  _tile_loadd(7, tiles + 3 * kTileBytes, 64);
  for (int64_t i = 0; i < kTileSteps; ++i) {
    if (kFed) {
      const char* set = tiles + i % kTileSets * 4 * kTileBytes;
      _tile_loadd(4, set, 64);
      _tile_loadd(5, set + kTileBytes, 64);
      _tile_loadd(6, set + 2 * kTileBytes, 64);
      _tile_loadd(7, set + 3 * kTileBytes, 64);
    }
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  alignas(64) float out[256];
  _tile_stored(0, out, 64);
  _tile_release();
  __asm__ volatile("" : : "r"(out) : "memory");
  return out[0];
}

struct MatrixLoop {
  float (*run)() = nullptr;
  double flops = 0;  // of one call
};

MatrixLoop matrix_loop(bool tiles, bool fed) {
  if (tiles) {
    return {fed ? tile_steps<true> : tile_steps<false>,
            static_cast<double>(kTileSteps) * 4 * 2 * 16 * 16 * 32};
  }
  const double flops = static_cast<double>(kSteps) * kChains * 2;
  if (cpu_features().avx512f) return {fed ? fma_512<true> : fma_512<false>, flops * 16};
  if (cpu_features().fma) return {fed ? fma_256<true> : fma_256<false>, flops * 8};
  return {};
}

}  // namespace

double now(const ThreadPool& pool) {
  timespec time{};
  clock_gettime(pool.num_threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double median_of(std::vector<double> samples) {
  if (samples.empty()) return 0;
  const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  if (samples.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(samples.begin(), middle)) / 2;
}

ReadProbe::ReadProbe(ThreadPool& pool)
    : pool_(pool),
      arena_("bandwidth"),  // huge pages where weights get them
      bytes_(std::min(int64_t{4} << 30, system_memory().available / 2) / (int64_t{1} << 21) *
             (int64_t{1} << 21)) {
  if (bytes_ < int64_t{64} << 20) {
    fail(ErrorKind::resource, "too little free memory to measure its bandwidth; use --no-limits");
  }
  auto* data = static_cast<char*>(arena_.bytes("read", static_cast<std::size_t>(bytes_)));
  std::memset(data, 1, static_cast<std::size_t>(bytes_));
  data_ = data;
}

double ReadProbe::pass(int loop) {
  const ReadLoop& choice = kReadLoops[loop];
  const auto read = cpu_features().avx512f ? choice.wide : choice.narrow;
  const double start = now(pool_);
  pool_.run([&](int thread_idx, int num_threads) {
    const Range part = static_partition(bytes_, 4096, thread_idx, num_threads);
    keep(read(data_ + part.begin, part.end - part.begin));
  });
  return static_cast<double>(bytes_) / (now(pool_) - start);
}

void ReadProbe::measure(double seconds) {
  const double end = now(pool_) + seconds;
  if (best_ < 0) {
    for (int loop = 0; loop < static_cast<int>(std::size(kReadLoops)); ++loop) {
      const double rate = std::max(pass(loop), pass(loop));
      if (!rates_.empty() && rate <= rates_[0]) continue;
      rates_.assign(1, rate);
      best_ = loop;
    }
  }
  do {
    rates_.push_back(pass(best_));
  } while (now(pool_) < end);
}

double ReadProbe::median() const { return median_of(rates_); }
std::string ReadProbe::name() const { return best_ < 0 ? "" : kReadLoops[best_].name; }

MatrixProbe::MatrixProbe(ThreadPool& pool, MatrixType type)
    : pool_(pool),
      tiles_(type == MatrixType::bf16 && why_unavailable(CpuTier::x86_64_v4_amx).empty()) {}

void MatrixProbe::measure(double seconds) {
  for (const bool fed : {false, true}) {
    const MatrixLoop loop = matrix_loop(tiles_, fed);
    if (loop.run == nullptr) return;
    const double end = now(pool_) + seconds / 2;
    do {
      const double start = now(pool_);
      std::atomic<int> loops{0};
      pool_.run([&](int, int num_shares) {
        keep(static_cast<uint64_t>(loop.run() != 0));
        loops = num_shares;
      });
      rates_[fed].push_back(loop.flops * loops / (now(pool_) - start));
    } while (now(pool_) < end);
  }
}

double MatrixProbe::median() const { return std::max(median_of(rates_[0]), median_of(rates_[1])); }

std::string MatrixProbe::name() const {
  const char* unit = tiles_ ? "AMX bf16" : cpu_features().avx512f ? "AVX-512 FMA" : "AVX2 FMA";
  const bool fed = median_of(rates_[1]) > median_of(rates_[0]);
  return std::string(unit) + (fed ? ", from the first-level cache" : ", from registers");
}

}  // namespace dsmoe::kernels::cpu

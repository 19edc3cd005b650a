// Read loops and FMA loops in registers, per instruction set.
#include "machine_limits.h"

#include <immintrin.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/cpu_features.h"
#include "tensor/arena.h"

namespace dsmoe::bench {
namespace {

std::atomic<uint64_t> sink{0};

// `streams` places at once, 16 bytes at a time, asking for lines ahead. The odd offset keeps the
// streams out of one another's cache sets.
template <int streams>
uint64_t read_all(const char* data, int64_t bytes) {
  const int64_t part = (bytes / streams - 4096) / 64 * 64;
  __m128i sum[streams][4] = {};
  for (int64_t i = 0; i < part; i += 64) {
    for (int s = 0; s < streams; ++s) {
      const auto* p = reinterpret_cast<const __m128i*>(data + s * (part + 64) + i);
      _mm_prefetch(reinterpret_cast<const char*>(p) + 4096, _MM_HINT_T0);
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

constexpr int64_t kSteps = 2'000'000;

__attribute__((target("avx512f"))) float fma_loop_512() {
  __m512 chain[12];
  for (__m512& c : chain) c = _mm512_set1_ps(1.0f);
  const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.001f);
  for (int64_t i = 0; i < kSteps; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < 12; ++c) chain[c] = _mm512_fmadd_ps(chain[c], a, b);
  }
  float total = 0;
  for (const __m512& c : chain) total += c[0];
  return total;
}

__attribute__((target("avx2,fma"))) float fma_loop_256() {
  __m256 chain[12];
  for (__m256& c : chain) c = _mm256_set1_ps(1.0f);
  const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
  for (int64_t i = 0; i < kSteps; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < 12; ++c) chain[c] = _mm256_fmadd_ps(chain[c], a, b);
  }
  float total = 0;
  for (const __m256& c : chain) total += c[0];
  return total;
}

}  // namespace

double now(const ThreadPool& pool) {
  timespec time{};
  clock_gettime(pool.num_threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double read_bandwidth(ThreadPool& pool) {
  constexpr int64_t kBytes = int64_t{1} << 30;
  tensor::Arena arena("bandwidth");  // huge pages where weights get them
  auto* data = static_cast<char*>(arena.bytes("read", kBytes));
  std::memset(data, 1, kBytes);
  double best = 0;
  for (int repeat = 0; repeat < 8; ++repeat) {
    const double start = now(pool);
    pool.run([&](int thread_idx, int num_threads) {
      const Range part = static_partition(kBytes, 4096, thread_idx, num_threads);
      sink +=
          (repeat % 2 == 0 ? read_all<1> : read_all<4>)(data + part.begin, part.end - part.begin);
    });
    best = std::max(best, static_cast<double>(kBytes) / (now(pool) - start));
  }
  return best;
}

double fma_peak(ThreadPool& pool) {
  const bool wide = cpu_features().avx512f;
  if (!wide && !cpu_features().fma) return 0;
  double best = 0;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const double start = now(pool);
    pool.run(
        [&](int, int) { sink += static_cast<uint64_t>(wide ? fma_loop_512() : fma_loop_256()); });
    const double flops =
        static_cast<double>(kSteps) * 12 * 2 * (wide ? 16 : 8) * pool.num_threads();
    best = std::max(best, flops / (now(pool) - start));
  }
  return best;
}

}  // namespace dsmoe::bench

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

// Four streams, 16 bytes at a time: enough loads in flight for one core.
uint64_t read_all(const char* data, int64_t bytes) {
  const int64_t quarter = bytes / 4 / 64 * 64;
  __m128i sum[4] = {};
  for (int64_t i = 0; i < quarter; i += 64) {
    for (int stream = 0; stream < 4; ++stream) {
      const auto* p = reinterpret_cast<const __m128i*>(data + stream * quarter + i);
      _mm_prefetch(reinterpret_cast<const char*>(p) + 2048, _MM_HINT_T0);
      for (int line = 0; line < 4; ++line) sum[stream] = _mm_xor_si128(sum[stream], _mm_load_si128(p + line));
    }
  }
  const __m128i all = _mm_xor_si128(_mm_xor_si128(sum[0], sum[1]), _mm_xor_si128(sum[2], sum[3]));
  return static_cast<uint64_t>(_mm_cvtsi128_si64(all));
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
  for (int repeat = 0; repeat < 5; ++repeat) {
    const double start = now(pool);
    pool.run([&](int thread_idx, int num_threads) {
      const Range part = static_partition(kBytes, 4096, thread_idx, num_threads);
      sink += read_all(data + part.begin, part.end - part.begin);
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
    pool.run([&](int, int) { sink += static_cast<uint64_t>(wide ? fma_loop_512() : fma_loop_256()); });
    const double flops = static_cast<double>(kSteps) * 12 * 2 * (wide ? 16 : 8) * pool.num_threads();
    best = std::max(best, flops / (now(pool) - start));
  }
  return best;
}

}  // namespace dsmoe::bench

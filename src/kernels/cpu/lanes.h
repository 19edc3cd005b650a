// F32x16: sixteen floats side by side. Every operation is one IEEE operation per lane, so lanes
// equal scalars bit for bit.
#pragma once

#include <cstring>

#ifndef DSMOE_TIER
#error "compiled once per tier, with DSMOE_TIER=v3 or v4"
#endif

// All names live in an unnamed namespace: code of one instruction set must never be linked into
// another's.
#if defined(__AVX512F__)
#include "kernels/cpu/lanes_avx512.h"
#else
#include "kernels/cpu/lanes_avx2.h"
#endif

namespace dsmoe::kernels::DSMOE_TIER {
namespace {

// Up to 16 values of a row's end; the other lanes are zero.
DSMOE_HD F32x16 load_first(const float* p, int64_t count) {
  float all[16] = {};
  std::memcpy(all, p, static_cast<size_t>(count) * sizeof(float));
  return load(all);
}
DSMOE_HD F32x16 load_first_bf16(const uint16_t* p, int64_t count) {
  uint16_t all[16] = {};
  std::memcpy(all, p, static_cast<size_t>(count) * sizeof(uint16_t));
  return load_bf16(all);
}
DSMOE_HD void store_first(float* p, F32x16 a, int64_t count) {
  float all[16];
  store(all, a);
  std::memcpy(p, all, static_cast<size_t>(count) * sizeof(float));
}
DSMOE_HD void store_first_bf16(uint16_t* p, F32x16 a, int64_t count) {
  uint16_t all[16];
  store_bf16(all, a);
  std::memcpy(p, all, static_cast<size_t>(count) * sizeof(uint16_t));
}

// The join of docs/numerics.md: lane[j] = join(lane[j], lane[j + 8]), then 4, 2, 1.
DSMOE_HD float join_sum(F32x16 a) {
  const __m256 eight = _mm256_add_ps(low_eight(a), high_eight(a));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
DSMOE_HD float join_max(F32x16 a) {
  const __m256 eight = _mm256_max_ps(low_eight(a), high_eight(a));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

}  // namespace
}  // namespace dsmoe::kernels::DSMOE_TIER

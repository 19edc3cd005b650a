// The lanes of base/functions.h over AVX2 and AVX-512 registers; each exists only where the
// compiler may use it.
#pragma once

#include <immintrin.h>

#include "base/functions.h"

namespace dsmoe {

#if defined(__AVX2__) && defined(__FMA__)
struct Avx2Lanes {
  using Float = __m256;
  using Int = __m256i;
  using Mask = __m256;

  DSMOE_HD static Float set(float value) { return _mm256_set1_ps(value); }
  DSMOE_HD static Float negate(Float a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }
  DSMOE_HD static Float fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
  DSMOE_HD static Float add(Float a, Float b) { return _mm256_add_ps(a, b); }
  DSMOE_HD static Float sub(Float a, Float b) { return _mm256_sub_ps(a, b); }
  DSMOE_HD static Float div(Float a, Float b) { return _mm256_div_ps(a, b); }
  DSMOE_HD static Int as_int(Float a) { return _mm256_castps_si256(a); }
  DSMOE_HD static Float as_float(Int a) { return _mm256_castsi256_ps(a); }
  DSMOE_HD static Int add_int(Int a, Int b) { return _mm256_add_epi32(a, b); }
  DSMOE_HD static Int shift_left_23(Int a) { return _mm256_slli_epi32(a, 23); }
  DSMOE_HD static Mask less(Float a, Float b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
  DSMOE_HD static Mask is_nan(Float a) { return _mm256_cmp_ps(a, a, _CMP_UNORD_Q); }
  DSMOE_HD static Float select(Mask m, Float yes, Float no) { return _mm256_blendv_ps(no, yes, m); }
};
#endif

#if defined(__AVX512F__) && defined(__AVX512DQ__)
struct Avx512Lanes {
  using Float = __m512;
  using Int = __m512i;
  using Mask = __mmask16;

  DSMOE_HD static Float set(float value) { return _mm512_set1_ps(value); }
  DSMOE_HD static Float negate(Float a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }
  DSMOE_HD static Float fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
  DSMOE_HD static Float add(Float a, Float b) { return _mm512_add_ps(a, b); }
  DSMOE_HD static Float sub(Float a, Float b) { return _mm512_sub_ps(a, b); }
  DSMOE_HD static Float div(Float a, Float b) { return _mm512_div_ps(a, b); }
  DSMOE_HD static Int as_int(Float a) { return _mm512_castps_si512(a); }
  DSMOE_HD static Float as_float(Int a) { return _mm512_castsi512_ps(a); }
  DSMOE_HD static Int add_int(Int a, Int b) { return _mm512_add_epi32(a, b); }
  // Masked with all lanes: g++ 12 warns about its own plain form (an undefined pass-through
  // operand).
  DSMOE_HD static Int shift_left_23(Int a) { return _mm512_maskz_slli_epi32(0xffff, a, 23); }
  DSMOE_HD static Mask less(Float a, Float b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  DSMOE_HD static Mask is_nan(Float a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
  DSMOE_HD static Float select(Mask m, Float yes, Float no) {
    return _mm512_mask_blend_ps(m, no, yes);
  }
};
#endif

}  // namespace dsmoe

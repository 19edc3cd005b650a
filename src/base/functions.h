// Own exp, silu, sigmoid in float (fixed sequences of IEEE operations) and exp, log, sin, cos, pow
// in double.
#pragma once

#include <cstdint>
#include <span>

// Inlined into every caller, always: the same source is compiled for several instruction sets, and
// a shared out-of-line copy would be whichever the linker met first.
#if defined(__CUDACC__)
#define DSMOE_HD __host__ __device__ __forceinline__
#else
#define DSMOE_HD [[gnu::always_inline]] inline
#endif

namespace dsmoe {

// One value per "vector": its results are the specification. A vector author writes the same
// members over
// __m256 or __m512 (base/lanes_x86.h); every operation is exact IEEE, round to nearest even, so
// that each lane gives the bits below. Masks are whatever lt() returns and select() takes.
struct ScalarLanes {
  using Float = float;
  using Int = uint32_t;
  using Mask = bool;

  DSMOE_HD static Float set(float value) { return value; }
  DSMOE_HD static Float negate(Float a) { return as_float(as_int(a) ^ 0x80000000u); }
#if defined(__CUDA_ARCH__)  // named operations: nvcc would contract a * b + c
  DSMOE_HD static Float fma(Float a, Float b, Float c) { return __fmaf_rn(a, b, c); }
  DSMOE_HD static Float add(Float a, Float b) { return __fadd_rn(a, b); }
  DSMOE_HD static Float sub(Float a, Float b) { return __fsub_rn(a, b); }
  DSMOE_HD static Float div(Float a, Float b) { return __fdiv_rn(a, b); }
  DSMOE_HD static Int as_int(Float a) { return __float_as_uint(a); }
  DSMOE_HD static Float as_float(Int a) { return __uint_as_float(a); }
#else
  DSMOE_HD static Float fma(Float a, Float b, Float c) { return __builtin_fmaf(a, b, c); }
  DSMOE_HD static Float add(Float a, Float b) { return a + b; }
  DSMOE_HD static Float sub(Float a, Float b) { return a - b; }
  DSMOE_HD static Float div(Float a, Float b) { return a / b; }
  DSMOE_HD static Int as_int(Float a) { return __builtin_bit_cast(uint32_t, a); }
  DSMOE_HD static Float as_float(Int a) { return __builtin_bit_cast(float, a); }
#endif
  DSMOE_HD static Int add_int(Int a, Int b) { return a + b; }    // modulo 2^32
  DSMOE_HD static Int shift_left_23(Int a) { return a << 23; }   // bits fall off the top
  DSMOE_HD static Mask less(Float a, Float b) { return a < b; }  // false for NaN, quiet
  DSMOE_HD static Mask is_nan(Float a) { return a != a; }
  DSMOE_HD static Float select(Mask m, Float yes, Float no) { return m ? yes : no; }
};

// e^x in float. Error below 0.9 ulp (every float was tried). Below 2^-126: 0, never a
// denormal; above the largest float: inf; NaN: itself. The bits do not depend on FTZ and DAZ.
//   n = round(x / ln2), by adding 1.5 * 2^23 so that the low bits of t are n;
//   r = x - n ln2, ln2 in two pieces: the first step is exact;
//   p = 1 + r + r^2 q(r), q fitted by tools/fit_exp.py, |r| <= ln2 / 2;
//   2^n p by adding n to the exponent: t << 23 leaves n << 23, as the constant's own bits fall off.
template <class L>
DSMOE_HD typename L::Float exp_lanes(typename L::Float x) {
  const auto magic = L::set(0x1.8p23f);
  const auto t = L::fma(x, L::set(0x1.715476p0f), magic);
  const auto n = L::sub(t, magic);
  auto r = L::fma(n, L::set(-0x1.62e43p-1f), x);
  r = L::fma(n, L::set(0x1.05c61p-29f), r);
  auto p = L::set(0x1.6a2434p-10f);
  p = L::fma(p, r, L::set(0x1.1239e2p-7f));
  p = L::fma(p, r, L::set(0x1.5558f2p-5f));
  p = L::fma(p, r, L::set(0x1.555492p-3f));
  p = L::fma(p, r, L::set(0x1.fffffcp-2f));
  p = L::fma(p, r, L::set(1.0f));
  p = L::fma(p, r, L::set(1.0f));
  auto y = L::as_float(L::add_int(L::as_int(p), L::shift_left_23(L::as_int(t))));
  // The last x whose result is not below 2^-126, and the last whose result is finite: between them
  // the exponent of p plus n stays within 1..254.
  y = L::select(L::less(x, L::set(-0x1.5d589ep6f)), L::set(0.0f), y);
  y = L::select(L::less(L::set(0x1.62e42ep6f), x), L::set(__builtin_inff()), y);
  return L::select(L::is_nan(x), x, y);
}

// 1 / (1 + e^-x). Under FTZ, 0 below x = -87.34.
template <class L>
DSMOE_HD typename L::Float sigmoid_lanes(typename L::Float x) {
  const auto one = L::set(1.0f);
  return L::div(one, L::add(one, exp_lanes<L>(L::negate(x))));
}

// x / (1 + e^-x). -0 where e^-x overflows; NaN for x = -inf.
template <class L>
DSMOE_HD typename L::Float silu_lanes(typename L::Float x) {
  return L::div(x, L::add(L::set(1.0f), exp_lanes<L>(L::negate(x))));
}

DSMOE_HD float exp_f32(float x) { return exp_lanes<ScalarLanes>(x); }
// Of each, in its place. Host only; the same bits, much faster.
void exp_f32(std::span<float> values);
DSMOE_HD float sigmoid_f32(float x) { return sigmoid_lanes<ScalarLanes>(x); }
DSMOE_HD float silu_f32(float x) { return silu_lanes<ScalarLanes>(x); }

// Host only, for tables, schedules, samplers, losses. Errors below 1 ulp; they use fma, + - * / and
// integer operations only, never the C library's functions, so their bits are the same everywhere.
// NaN gives NaN.
double exp_f64(double x);                // below 2^-1022: 0; overflow: inf
void exp_f64(std::span<double> values);  // of each, in its place; the same bits, much faster
// The sum of exp_f64(value - max), ascending.
double sum_of_exp(std::span<const float> values, double max);
double log_f64(double x);  // 0: -inf; below 0: NaN; denormals are 0 under DAZ
double sin_f64(double x);  // |x| <= 2^30, else Error(internal); NaN and inf too
double cos_f64(double x);  // likewise
// base >= 0 and finite, exponent finite, else Error(internal). x^0 = 1; 0 to a negative power: inf.
double pow_f64(double base, double exponent);

// log_f64 rounded once.
float log_f32(float x);

}  // namespace dsmoe

// The double functions: short Taylor series on small intervals, carried in pairs of doubles where
// bits would be lost.
#include "base/functions.h"

#include <algorithm>
#include <array>
#include <limits>

#include "base/cpu_features.h"
#include "base/error.h"

namespace dsmoe {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kLn2Hi = 0x1.62e42fefa39efp-1, kLn2Lo = 0x1.abc9e3b39803fp-56;
// Adding it leaves a number rounded to an integer in the low bits.
constexpr double kRound = 0x1.8p52;

[[gnu::always_inline]] inline double fma(double a, double b, double c) {
  return __builtin_fma(a, b, c);
}
[[gnu::always_inline]] inline uint64_t bits_of(double x) { return __builtin_bit_cast(uint64_t, x); }
[[gnu::always_inline]] inline double from_bits(uint64_t bits) {
  return __builtin_bit_cast(double, bits);
}

// The sum of the two, |lo| at most half an ulp of hi.
struct Pair {
  double hi = 0, lo = 0;
};

Pair exact_sum(double a, double b) {
  const double sum = a + b;
  const double b_part = sum - a;
  return {sum, (a - (sum - b_part)) + (b - b_part)};
}

Pair exact_product(double a, double b) {
  const double product = a * b;
  return {product, fma(a, b, -product)};
}

Pair add(Pair a, Pair b) {
  const Pair sum = exact_sum(a.hi, b.hi);
  return exact_sum(sum.hi, sum.lo + (a.lo + b.lo));
}

Pair multiply(Pair a, Pair b) {
  const Pair product = exact_product(a.hi, b.hi);
  return exact_sum(product.hi, product.lo + fma(a.hi, b.lo, a.lo * b.hi));
}

// Horner over `terms`, highest power first.
template <size_t N>
[[gnu::always_inline]] inline double polynomial(const double (&terms)[N], double x) {
  double sum = terms[0];
  for (size_t i = 1; i < N; ++i) sum = fma(sum, x, terms[i]);
  return sum;
}

// 1/13! .. 1/2!: the next term is 4e-18 of the result on |r| <= ln2 / 2.
constexpr double kExpTerms[] = {1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800,
                                1.0 / 362880,     1.0 / 40320,     1.0 / 5040,     1.0 / 720,
                                1.0 / 120,        1.0 / 24,        1.0 / 6,        1.0 / 2};

// By bits: a branch would keep a loop from becoming vectors.
[[gnu::always_inline]] inline double choose(bool condition, double yes, double no) {
  const uint64_t mask = -static_cast<uint64_t>(condition);
  return from_bits((bits_of(yes) & mask) | (bits_of(no) & ~mask));
}

// e^(x.hi + x.lo), as exp_f32 does it.
[[gnu::always_inline]] inline double exp_pair(Pair x) {
  const double t = fma(x.hi, 0x1.71547652b82fep+0, kRound);
  const double n = t - kRound;
  const double r_hi = fma(n, -kLn2Hi, x.hi);  // exact
  const double r = r_hi + fma(n, -kLn2Lo, x.lo);
  const double p = 1.0 + fma(r * r, polynomial(kExpTerms, r), r);
  double y = from_bits(bits_of(p) + (bits_of(t) << 52));
  // x.lo may carry p across 1 at either end, one exponent too far.
  y = choose((n >= 1024) & (p >= 1), kInf, y);
  y = choose((n <= -1022) & (p < 1), 0.0, y);
  y = choose(x.hi < -0x1.6232bdd7abcd2p+9, 0.0, y);  // below 2^-1022
  y = choose(x.hi > 0x1.62e42fefa39efp+9, kInf, y);  // above the largest double
  return choose(x.hi != x.hi, x.hi, y);
}

void exp_each_plain(std::span<double> values) {
  for (double& value : values) value = exp_pair({value, 0.0});
}
void exp_each_plain(std::span<float> values) {
  for (float& value : values) value = exp_f32(value);
}
// The same bits: fma is one rounding, by an instruction or by the library.
[[gnu::target("avx2,fma")]] void exp_each_avx2(std::span<double> values) {
  for (double& value : values) value = exp_pair({value, 0.0});
}
[[gnu::target("avx2,fma")]] void exp_each_avx2(std::span<float> values) {
  for (float& value : values) value = exp_f32(value);
}

template <class T>
void exp_each(std::span<T> values) {
  static const bool has_fma = cpu_features().avx2 && cpu_features().fma && cpu_features().os_avx;
  has_fma ? exp_each_avx2(values) : exp_each_plain(values);
}

// 1/25 .. 1/5: atanh(s)/s - 1 - s^2/3 = s^4 (1/5 + s^2/7 + ...); the next term is below 2^-71 for
// s^2 <= 0.0295.
constexpr double kLogTerms[] = {1.0 / 25, 1.0 / 23, 1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15,
                                1.0 / 13, 1.0 / 11, 1.0 / 9,  1.0 / 7,  1.0 / 5};

// log(x) to some 2^-64 of itself, x positive and finite, so that pow may multiply it by 700.
Pair log_pair(double x) {
  int64_t k = 0;
  if (x < 0x1p-1022) {
    x *= 0x1p54;
    k = -54;
  }
  // x = 2^k m, m in [sqrt(1/2), sqrt(2)).
  constexpr uint64_t kSqrtHalf = 0x3fe6a09e667f3bcd;
  const uint64_t bits = bits_of(x);
  const int64_t shift = static_cast<int64_t>(bits - kSqrtHalf) >> 52;
  const double m = from_bits(bits - (static_cast<uint64_t>(shift) << 52));
  k += shift;
  // s = (m - 1) / (m + 1), log m = 2 atanh s.
  const double f = m - 1.0;  // exact
  const Pair d = exact_sum(m, 1.0);
  const double s_hi = f / d.hi;
  const double s_lo = fma(-s_hi, d.lo, fma(-s_hi, d.hi, f)) / d.hi;
  const Pair s{s_hi, s_lo};
  const Pair z = multiply(s, s);
  const Pair third{0x1.5555555555555p-2, 0x1.5555555555555p-56};
  const Pair w = add(multiply(z, third), {z.hi * z.hi * polynomial(kLogTerms, z.hi), 0.0});
  const Pair twice_s{2 * s.hi, 2 * s.lo};
  const Pair log_m = add(twice_s, multiply(twice_s, w));
  Pair k_ln2 = exact_product(static_cast<double>(k), kLn2Hi);
  k_ln2.lo = fma(static_cast<double>(k), kLn2Lo, k_ln2.lo);
  return add(k_ln2, log_m);
}

// x - n pi/2 with n the nearest integer; the rest is good to 2^-65 of itself for every double up to
// 2^30.
struct Quadrant {
  int index;  // n mod 4
  Pair rest;
};

Quadrant reduce_angle(double x, const char* function) {
  DSMOE_CHECK(x >= -0x1p30 && x <= 0x1p30, "{} of {}: the argument must be within 2^30", function,
              x);
  const double t = fma(x, 0x1.45f306dc9c883p-1, kRound);
  const double n = t - kRound;
  const Pair first = exact_product(n, 0x1.921fb54442d18p+0);
  const Pair second = exact_product(n, 0x1.1a62633145c07p-54);
  const double third = n * -0x1.f1976b7ed8fbcp-110;
  const Pair a = exact_sum(x - first.hi, -first.lo);  // x - first.hi is exact
  const Pair b = exact_sum(a.hi, -second.hi);
  return {static_cast<int>(bits_of(t) & 3), exact_sum(b.hi, b.lo + (a.lo - (second.lo + third)))};
}

// (sin r - r) / r^3 and (cos r - 1 + r^2/2) / r^4 in powers of r^2, |r| <= pi/4.
constexpr double kSinTerms[] = {
    1.0 / 355687428096000, -1.0 / 1307674368000, 1.0 / 6227020800, -1.0 / 39916800,
    1.0 / 362880,          -1.0 / 5040,          1.0 / 120,        -1.0 / 6};
constexpr double kCosTerms[] = {
    1.0 / 20922789888000, -1.0 / 87178291200, 1.0 / 479001600, -1.0 / 3628800,
    1.0 / 40320,          -1.0 / 720,         1.0 / 24};

double sin_small(Pair r) {
  const double z = r.hi * r.hi;
  // sin(hi + lo) = sin hi + lo cos hi, and cos hi = 1 - z/2 is enough for so small a lo.
  const double tail = fma(-0.5 * z, r.lo, r.lo);
  return r.hi + fma(z * r.hi, polynomial(kSinTerms, z), tail);
}

double cos_small(Pair r) {
  const Pair z = exact_product(r.hi, r.hi);
  const Pair head = exact_sum(1.0, -0.5 * z.hi);
  const double tail = fma(z.hi * z.hi, polynomial(kCosTerms, z.hi), -r.hi * r.lo);
  return head.hi + (head.lo + (tail - 0.5 * z.lo));
}

// sin of the angle `quarter_turns` quarters further on.
double sine_at(Quadrant q, int quarter_turns) {
  const int index = (q.index + quarter_turns) & 3;
  const double value = (index & 1) != 0 ? cos_small(q.rest) : sin_small(q.rest);
  return (index & 2) != 0 ? -value : value;
}

}  // namespace

double exp_f64(double x) { return exp_pair({x, 0.0}); }

void exp_f64(std::span<double> values) { exp_each(values); }
void exp_f32(std::span<float> values) { exp_each(values); }

double sum_of_exp(std::span<const float> values, double max) {
  std::array<double, 512> piece;  // stays in the first-level cache
  double sum = 0;
  for (std::size_t begin = 0; begin < values.size(); begin += piece.size()) {
    const std::size_t count = std::min(piece.size(), values.size() - begin);
    for (std::size_t i = 0; i < count; ++i) piece[i] = values[begin + i] - max;
    exp_f64(std::span(piece).first(count));
    for (std::size_t i = 0; i < count; ++i) sum += piece[i];
  }
  return sum;
}

double log_f64(double x) {
  if (x != x || x < 0) return kNan;
  if (x == 0) return -kInf;
  if (x == kInf) return kInf;
  return log_pair(x).hi;
}

float log_f32(float x) { return static_cast<float>(log_f64(static_cast<double>(x))); }

double sin_f64(double x) { return sine_at(reduce_angle(x, "sin"), 0); }
double cos_f64(double x) { return sine_at(reduce_angle(x, "cos"), 1); }

double pow_f64(double base, double exponent) {
  if (base != base || exponent != exponent) return kNan;
  DSMOE_CHECK(base >= 0 && base < kInf && exponent - exponent == 0,
              "pow of {} to {}: base must be finite and not negative, exponent finite", base,
              exponent);
  if (exponent == 0) return 1.0;
  if (base == 0) return exponent > 0 ? 0.0 : kInf;
  const Pair log = log_pair(base);
  const double hi = exponent * log.hi;
  // Far outside the range of exp either way; also keeps hi - hi out of the error term.
  if (hi > 800) return kInf;
  if (hi < -800) return 0.0;
  const Pair scaled = exact_product(exponent, log.hi);
  return exp_pair({scaled.hi, fma(exponent, log.lo, scaled.lo)});
}

}  // namespace dsmoe

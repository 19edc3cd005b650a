// Accuracy against long double, edges, fixed bits, and equality of every lane width with the scalar
// sequence.
#include "base/functions.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/cpu_features.h"
#include "base/error.h"
#include "base/flush_denormals.h"
#include "base/functions_test_lanes.h"
#include "base/rng.h"

namespace dsmoe {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kInf64 = std::numeric_limits<double>::infinity();

float float_of(uint32_t bits) { return std::bit_cast<float>(bits); }

// |got - want| in units of want's last place, as T. Both finite and want not below T's smallest
// normal.
template <class T>
double ulps(T got, long double want) {
  const int digits = std::numeric_limits<T>::digits;
  return static_cast<double>(std::fabs(got - want) /
                             std::ldexp(1.0L, std::ilogb(want) + 1 - digits));
}

// The largest error of exp_f32 over every stride-th float between the two ends.
double worst_exp_f32(uint32_t stride) {
  double worst = 0;
  const auto side = [&](uint32_t first, float last) {
    for (uint32_t bits = first; bits <= std::bit_cast<uint32_t>(last); bits += stride) {
      const float x = float_of(bits);
      worst = std::max(worst, ulps(exp_f32(x), std::exp(static_cast<long double>(x))));
    }
  };
  side(0x00000000u, 0x1.62e42ep6f);
  side(0x80000000u, -0x1.5d589ep6f);
  return worst;
}

// DSMOE_EXHAUSTIVE=1 tries every float (four minutes): do so after any change of the sequence.
TEST(ExpF32, WithinOneUlp) {
  const double worst = worst_exp_f32(std::getenv("DSMOE_EXHAUSTIVE") != nullptr ? 1 : 1999);
  EXPECT_LT(worst, 0.9);
  RecordProperty("worst_ulps", std::to_string(worst));
}

TEST(ExpF32, Edges) {
  EXPECT_EQ(exp_f32(0.0f), 1.0f);
  EXPECT_EQ(exp_f32(-0.0f), 1.0f);
  EXPECT_EQ(exp_f32(kInf), kInf);
  EXPECT_EQ(exp_f32(-kInf), 0.0f);
  EXPECT_FALSE(std::signbit(exp_f32(-kInf)));
  EXPECT_EQ(std::bit_cast<uint32_t>(exp_f32(kNan)), std::bit_cast<uint32_t>(kNan));
  EXPECT_TRUE(std::isnan(exp_f32(-kNan)));
  EXPECT_EQ(exp_f32(std::numeric_limits<float>::denorm_min()), 1.0f);
  EXPECT_EQ(exp_f32(std::numeric_limits<float>::max()), kInf);
  EXPECT_EQ(exp_f32(std::numeric_limits<float>::lowest()), 0.0f);
}

TEST(ExpF32, EndsOfTheRange) {
  const float last_finite = 0x1.62e42ep6f, last_normal = -0x1.5d589ep6f;
  EXPECT_LT(exp_f32(last_finite), kInf);
  EXPECT_GT(exp_f32(last_finite), 3.402e38f);
  EXPECT_EQ(exp_f32(std::nextafter(last_finite, kInf)), kInf);
  EXPECT_GE(exp_f32(last_normal), std::numeric_limits<float>::min());
  EXPECT_LT(exp_f32(last_normal), 1.0001f * std::numeric_limits<float>::min());
  EXPECT_EQ(exp_f32(std::nextafter(last_normal, -kInf)), 0.0f);
}

// Floats of every size and sign, the special ones first; a multiple of 16.
std::vector<float> sample_floats() {
  std::vector<float> x = {0.0f, -0.0f, kInf, -kInf, kNan, -kNan, 1e-40f, -1e-40f};
  for (const float edge : {0x1.62e42ep6f, -0x1.5d589ep6f}) {
    x.push_back(edge);
    x.push_back(std::nextafter(edge, kInf));
    x.push_back(std::nextafter(edge, -kInf));
  }
  for (uint64_t bits = 0; bits <= 0xffffffffu; bits += 4999) {
    x.push_back(float_of(static_cast<uint32_t>(bits)));
  }
  for (int i = -200000; i < 200000; ++i) x.push_back(static_cast<float>(i) * 0.000451f);
  while (x.size() % 16 != 0) x.push_back(0.5f);
  return x;
}

float apply_scalar(functions_test::Function function, float x) {
  switch (function) {
    case functions_test::Function::exp:
      return exp_f32(x);
    case functions_test::Function::sigmoid:
      return sigmoid_f32(x);
    case functions_test::Function::silu:
      return silu_f32(x);
  }
  return kNan;
}

// How many results differ in any bit. NaN results compare as NaN: a NaN made by 0/0 or inf/inf has
// the sign that the hardware likes, and the operand order, which the compiler chooses.
using Apply = void (*)(functions_test::Function, const float*, float*, size_t);
size_t count_differences(Apply apply, functions_test::Function function) {
  const FlushDenormals flush;
  const std::vector<float> x = sample_floats();
  std::vector<float> y(x.size());
  apply(function, x.data(), y.data(), x.size());
  size_t differences = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const float want = apply_scalar(function, x[i]);
    const bool same = std::isnan(want)
                          ? std::isnan(y[i])
                          : std::bit_cast<uint32_t>(want) == std::bit_cast<uint32_t>(y[i]);
    differences += same ? 0 : 1;
  }
  return differences;
}

class Lanes : public ::testing::TestWithParam<functions_test::Function> {};

TEST_P(Lanes, Avx2EqualsScalar) {
  const std::string missing = why_unavailable(CpuTier::x86_64_v3);
  if (!missing.empty()) GTEST_SKIP() << missing;
  EXPECT_EQ(count_differences(functions_test::apply_avx2, GetParam()), 0u);
}

TEST_P(Lanes, Avx512EqualsScalar) {
  const std::string missing = why_unavailable(CpuTier::x86_64_v4);
  if (!missing.empty()) GTEST_SKIP() << missing;
  EXPECT_EQ(count_differences(functions_test::apply_avx512, GetParam()), 0u);
  EXPECT_EQ(count_differences(functions_test::apply_scalar_avx512, GetParam()), 0u);
}

// The same test body must notice a function that is one rounding off.
TEST_P(Lanes, NegativeControl) {
  const Apply one_rounding_off = [](functions_test::Function function, const float* x, float* y,
                                    size_t n) {
    for (size_t i = 0; i < n; ++i) y[i] = apply_scalar(function, x[i] * 1.0000001f);
  };
  EXPECT_GT(count_differences(one_rounding_off, GetParam()), 0u);
}

std::string name_of(const ::testing::TestParamInfo<functions_test::Function>& info) {
  switch (info.param) {
    case functions_test::Function::exp:
      return "exp";
    case functions_test::Function::sigmoid:
      return "sigmoid";
    case functions_test::Function::silu:
      return "silu";
  }
  return "unknown";
}

INSTANTIATE_TEST_SUITE_P(Functions, Lanes,
                         ::testing::Values(functions_test::Function::exp,
                                           functions_test::Function::sigmoid,
                                           functions_test::Function::silu),
                         name_of);

// The bits themselves: a change here is a change of every model's output, and of the engine
// version.
TEST(ExpF32, FixedBits) {
  uint64_t hash = 14695981039346656037u;
  for (const float x : sample_floats()) {
    if (std::isnan(x)) continue;
    hash = (hash ^ std::bit_cast<uint32_t>(exp_f32(x))) * 1099511628211u;
  }
  EXPECT_EQ(hash, 14918253663890762551u);
}

TEST(ExpF32, BitsDoNotDependOnFlushing) {
  const std::vector<float> x = sample_floats();
  std::vector<float> plain, flushed;
  for (const float value : x) plain.push_back(exp_f32(value));
  const FlushDenormals flush;
  for (const float value : x) flushed.push_back(exp_f32(value));
  EXPECT_EQ(std::memcmp(plain.data(), flushed.data(), plain.size() * sizeof(float)), 0);
}

TEST(SiluAndSigmoid, ValuesAndEdges) {
  double worst_silu = 0, worst_sigmoid = 0;
  for (int i = -80000; i <= 80000; ++i) {
    const float x = static_cast<float>(i) * 0.001f;
    if (x == 0) continue;
    const long double denominator = 1 + std::exp(-static_cast<long double>(x));
    worst_silu = std::max(worst_silu, ulps(silu_f32(x), x / denominator));
    worst_sigmoid = std::max(worst_sigmoid, ulps(sigmoid_f32(x), 1 / denominator));
  }
  EXPECT_LT(worst_silu, 2.5);
  EXPECT_LT(worst_sigmoid, 2.5);
  EXPECT_EQ(sigmoid_f32(0.0f), 0.5f);
  EXPECT_EQ(sigmoid_f32(kInf), 1.0f);
  EXPECT_EQ(sigmoid_f32(-kInf), 0.0f);
  EXPECT_EQ(silu_f32(kInf), kInf);
  EXPECT_EQ(silu_f32(-100.0f), 0.0f);
  EXPECT_TRUE(std::signbit(silu_f32(-100.0f)));
  EXPECT_TRUE(std::isnan(silu_f32(kNan)));
  EXPECT_TRUE(std::isnan(sigmoid_f32(kNan)));
}

// Doubles in [low, high): evenly spaced, jittered so that their low bits are not all zero.
template <class F>
double worst_over(double low, double high, int count, F error_at) {
  double worst = 0;
  uint64_t state = 88172645463325252u;
  for (int i = 0; i < count; ++i) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    const double jitter = static_cast<double>(state >> 11) * 0x1p-53;
    worst = std::max(worst, error_at(low + (high - low) * ((i + jitter) / count)));
  }
  return worst;
}

TEST(ExpF64, WithinOneUlp) {
  const auto error_at = [](double x) {
    return ulps(exp_f64(x), std::exp(static_cast<long double>(x)));
  };
  EXPECT_LT(worst_over(-708.3, 709.7, 400000, error_at), 1.0);
  EXPECT_LT(worst_over(-1, 1, 400000, error_at), 1.0);
}

TEST(ExpF64, Edges) {
  EXPECT_EQ(exp_f64(0.0), 1.0);
  EXPECT_EQ(exp_f64(kInf64), kInf64);
  EXPECT_EQ(exp_f64(-kInf64), 0.0);
  EXPECT_EQ(exp_f64(-708.4), 0.0);
  EXPECT_EQ(exp_f64(709.79), kInf64);
  EXPECT_TRUE(std::isnan(exp_f64(std::nan(""))));
  EXPECT_LT(exp_f64(0x1.62e42fefa39efp+9), kInf64);
  EXPECT_GE(exp_f64(-0x1.6232bdd7abcd2p+9), std::numeric_limits<double>::min());
}

TEST(ExpF64, OfManyGivesTheBitsOfEach) {
  std::vector<double> x{0.0,
                        -0.0,
                        kInf64,
                        -kInf64,
                        std::nan(""),
                        -708.4,
                        709.79,
                        1e300,
                        -1e300,
                        0x1.62e42fefa39efp+9,
                        -0x1.6232bdd7abcd2p+9,
                        -0x1.6232bdd7abcd3p+9};
  const Rng rng{.seed = 3, .purpose = RngPurpose::test};
  for (uint64_t i = 0; i < 100000; ++i) x.push_back(1440 * rng.uniform_f64(i) - 720);
  std::vector<double> one_by_one(x.size()), by_another(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    one_by_one[i] = exp_f64(x[i]);
    by_another[i] = std::exp(x[i]);
  }
  std::vector<double> many = x;
  exp_f64(many);
  EXPECT_EQ(std::memcmp(many.data(), one_by_one.data(), many.size() * sizeof(double)), 0);
  // Another function, right to the last bit or the one before, is told apart.
  EXPECT_NE(std::memcmp(many.data(), by_another.data(), many.size() * sizeof(double)), 0);
}

TEST(ExpF32, OfManyGivesTheBitsOfEach) {
  std::vector<float> x{0.0f, -0.0f, INFINITY, -INFINITY, NAN, -87.4f, 88.8f, 1e30f, -1e30f};
  const Rng rng{.seed = 3, .purpose = RngPurpose::test};
  for (uint64_t i = 0; i < 100000; ++i) x.push_back(180 * rng.uniform_f32(i) - 90);
  std::vector<float> one_by_one(x.size()), by_another(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    one_by_one[i] = exp_f32(x[i]);
    by_another[i] = std::exp(x[i]);
  }
  std::vector<float> many = x;
  exp_f32(many);
  EXPECT_EQ(std::memcmp(many.data(), one_by_one.data(), many.size() * sizeof(float)), 0);
  EXPECT_NE(std::memcmp(many.data(), by_another.data(), many.size() * sizeof(float)), 0);
}

TEST(SumOfExp, AddsAscending) {
  std::vector<float> values(1300);
  Rng{.seed = 4, .purpose = RngPurpose::test}.fill_normal(0, values);
  double ascending = 0, descending = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    ascending += exp_f64(values[i] - 4.0);
    descending += exp_f64(values[values.size() - 1 - i] - 4.0);
  }
  EXPECT_EQ(sum_of_exp(values, 4.0), ascending);
  EXPECT_NE(sum_of_exp(values, 4.0), descending);
  EXPECT_EQ(sum_of_exp({}, 0), 0);
}

TEST(LogF64, WithinOneUlp) {
  const auto error_at = [](double x) {
    return ulps(log_f64(x), std::log(static_cast<long double>(x)));
  };
  EXPECT_LT(worst_over(1e-5, 10, 400000, error_at), 1.0);
  EXPECT_LT(worst_over(0.999, 1.001, 400000, error_at), 1.0);
  EXPECT_LT(worst_over(0.7, 1.42, 400000, error_at), 1.0);
  double worst = 0;
  for (int power = -1021; power < 1023; ++power) {
    worst = std::max(worst, error_at(std::ldexp(1.3, power)));
  }
  EXPECT_LT(worst, 1.0);
}

TEST(LogF64, Edges) {
  EXPECT_EQ(log_f64(1.0), 0.0);
  EXPECT_EQ(log_f64(0.0), -kInf64);
  EXPECT_EQ(log_f64(kInf64), kInf64);
  EXPECT_TRUE(std::isnan(log_f64(-1.0)));
  EXPECT_TRUE(std::isnan(log_f64(std::nan(""))));
  EXPECT_LT(ulps(log_f64(5e-324), std::log(static_cast<long double>(5e-324))), 1.0);
  EXPECT_LT(ulps(log_f64(1e300), std::log(static_cast<long double>(1e300))), 1.0);
  EXPECT_EQ(log_f32(1.0f), 0.0f);
  EXPECT_LE(ulps(log_f32(10.0f), std::log(10.0L)), 0.5001);
}

TEST(SinCosF64, WithinOneUlp) {
  const auto sin_error = [](double x) {
    return ulps(sin_f64(x), std::sin(static_cast<long double>(x)));
  };
  const auto cos_error = [](double x) {
    return ulps(cos_f64(x), std::cos(static_cast<long double>(x)));
  };
  for (const double limit : {0.8, 7.0, 1000.0, 0x1p20, 0x1p30}) {
    EXPECT_LT(worst_over(-limit, limit, 200000, sin_error), 1.0) << limit;
    EXPECT_LT(worst_over(-limit, limit, 200000, cos_error), 1.0) << limit;
  }
  // Whole positions, as rotary embeddings ask for.
  double worst = 0;
  for (int position = 0; position < (1 << 20); position += 7) {
    worst = std::max(worst, position == 0 ? 0 : std::max(sin_error(position), cos_error(position)));
  }
  EXPECT_LT(worst, 1.0);
}

TEST(SinCosF64, NearMultiplesOfAQuarterTurn) {
  double worst = 0;
  for (int64_t n = 1; n < (int64_t{1} << 29); n = n * 3 / 2 + 1) {
    const double x =
        static_cast<double>(static_cast<long double>(n) * 1.57079632679489661923132169163975144L);
    for (const double near : {std::nextafter(x, 0.0), x, std::nextafter(x, 1e300)}) {
      // sinl and cosl have their own 64-bit reduction, good to the last place here.
      worst = std::max(worst, ulps(sin_f64(near), std::sin(static_cast<long double>(near))));
      worst = std::max(worst, ulps(cos_f64(near), std::cos(static_cast<long double>(near))));
    }
  }
  EXPECT_LT(worst, 1.0);
}

TEST(SinCosF64, Edges) {
  EXPECT_EQ(sin_f64(0.0), 0.0);
  EXPECT_EQ(cos_f64(0.0), 1.0);
  EXPECT_EQ(sin_f64(1e-200), 1e-200);
  EXPECT_EQ(sin_f64(-1.25), -sin_f64(1.25));
  EXPECT_EQ(cos_f64(-1.25), cos_f64(1.25));
  EXPECT_THROW(sin_f64(0x1.0000001p30), Error);
  EXPECT_THROW(cos_f64(-1e20), Error);
  EXPECT_THROW(cos_f64(kInf64), Error);
  EXPECT_THROW(sin_f64(std::nan("")), Error);
}

TEST(PowF64, WithinOneUlp) {
  double worst = 0;
  for (const double base :
       {10000.0, 1.4e6, 2.0, 0.5, 0.95, 0.999, 1.0000001, 3.7e-12, 1e300, 1e-300}) {
    const double reach = 700 / std::fabs(std::log(base));
    worst = std::max(worst, worst_over(-reach, reach, 20000, [&](double e) {
                       return ulps(pow_f64(base, e), std::pow(static_cast<long double>(base),
                                                              static_cast<long double>(e)));
                     }));
  }
  EXPECT_LT(worst, 1.0);
}

TEST(PowF64, Edges) {
  EXPECT_EQ(pow_f64(7.0, 0.0), 1.0);
  EXPECT_EQ(pow_f64(0.0, 0.0), 1.0);
  EXPECT_EQ(pow_f64(0.0, 2.0), 0.0);
  EXPECT_EQ(pow_f64(0.0, -2.0), kInf64);
  EXPECT_EQ(pow_f64(1.0, 1e308), 1.0);
  EXPECT_EQ(pow_f64(2.0, 10.0), 1024.0);
  EXPECT_EQ(pow_f64(2.0, -1022.0), 0x1p-1022);
  EXPECT_EQ(pow_f64(2.0, 1023.0), 0x1p1023);
  EXPECT_EQ(pow_f64(2.0, 1024.0), kInf64);
  EXPECT_EQ(pow_f64(2.0, -1023.0), 0.0);
  EXPECT_EQ(pow_f64(10.0, 1e300), kInf64);
  EXPECT_EQ(pow_f64(10.0, -1e300), 0.0);
  EXPECT_TRUE(std::isnan(pow_f64(std::nan(""), 1.0)));
  EXPECT_THROW(pow_f64(-1.0, 2.0), Error);
  EXPECT_THROW(pow_f64(kInf64, 2.0), Error);
  EXPECT_THROW(pow_f64(2.0, kInf64), Error);
}

}  // namespace
}  // namespace dsmoe

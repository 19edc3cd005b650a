// Philox against the published known answers; fixed bits; moments, independence and ranges of what
// is made of it.
#include "base/rng.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"

namespace dsmoe {
namespace {

constexpr Rng kRng{.seed = 42, .purpose = RngPurpose::test};

// The three philox4x32-10 answers published with the generator (Random123).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox4x32({{0, 0, 0, 0}}, 0, 0),
            (Uint32x4{{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}}));
  EXPECT_EQ(philox4x32({{~0u, ~0u, ~0u, ~0u}}, ~0u, ~0u),
            (Uint32x4{{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}}));
  EXPECT_EQ(
      philox4x32({{0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}}, 0xa4093822u, 0x299f31d0u),
      (Uint32x4{{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}}));
}

TEST(Rng, EveryPartOfTheIdentityCounts) {
  const Uint32x4 base = kRng.at(7);
  EXPECT_EQ(base, kRng.at(7));
  EXPECT_NE(base, kRng.at(8));
  EXPECT_NE(base, kRng.at(7 + (uint64_t{1} << 32)));
  EXPECT_NE(base, (Rng{.seed = 43, .purpose = RngPurpose::test}.at(7)));
  EXPECT_NE(base, (Rng{.seed = 42 + (uint64_t{1} << 32), .purpose = RngPurpose::test}.at(7)));
  EXPECT_NE(base, (Rng{.seed = 42, .purpose = RngPurpose::sampling}.at(7)));
  EXPECT_NE(base, (Rng{.seed = 42, .purpose = RngPurpose::test, .stream = 1}.at(7)));
}

TEST(Rng, UniformMomentsAndRange) {
  constexpr int kCount = 1 << 20;
  double sum = 0, sum_squares = 0, lag = 0, previous = 0.5, sum64 = 0;
  for (int i = 0; i < kCount; ++i) {
    const double u = kRng.uniform_f32(i);
    const double v = kRng.uniform_f64(i);
    ASSERT_TRUE(u >= 0 && u < 1 && v >= 0 && v < 1);
    sum += u;
    sum64 += v;
    sum_squares += u * u;
    lag += (u - 0.5) * (previous - 0.5);
    previous = u;
  }
  // Five standard errors: sigma of u is sqrt(1/12), of u^2 sqrt(4/45), of the lag product 1/12.
  const double root = std::sqrt(static_cast<double>(kCount));
  EXPECT_NEAR(sum / kCount, 0.5, 5 * 0.2887 / root);
  EXPECT_NEAR(sum64 / kCount, 0.5, 5 * 0.2887 / root);
  EXPECT_NEAR(sum_squares / kCount, 1.0 / 3, 5 * 0.2982 / root);
  EXPECT_NEAR(lag / kCount, 0, 5 / 12.0 / root);
}

TEST(Rng, BelowIsEvenAndBounded) {
  constexpr int kBins = 10, kCount = 100000;
  std::vector<int> counts(kBins, 0);
  for (int i = 0; i < kCount; ++i) ++counts.at(kRng.below(i, kBins));
  double chi_square = 0;
  for (const int count : counts) {
    chi_square += std::pow(count - kCount / kBins, 2) / (kCount / kBins);
  }
  EXPECT_LT(chi_square, 33.7);  // 9 degrees of freedom, p = 1e-4
  EXPECT_EQ(kRng.below(3, 1), 0u);
  EXPECT_THROW(kRng.below(0, 0), Error);
}

TEST(Rng, NormalMoments) {
  constexpr int kCount = 1 << 20;
  std::vector<float> x(kCount);
  kRng.fill_normal(0, x);
  double sum = 0, sum_squares = 0, sum_fourth = 0, pair_product = 0;
  int within_one = 0;
  for (int i = 0; i < kCount; ++i) {
    const double v = x[i];
    ASSERT_LT(std::fabs(v), 6.7);
    sum += v;
    sum_squares += v * v;
    sum_fourth += v * v * v * v;
    within_one += std::fabs(v) < 1 ? 1 : 0;
    if (i % 2 == 1) pair_product += v * x[i - 1];
  }
  // Five standard errors: sigma of v 1, of v^2 sqrt(2), of v^4 sqrt(96), of the products 1 (half as
  // many).
  const double root = std::sqrt(static_cast<double>(kCount));
  EXPECT_NEAR(sum / kCount, 0, 5 / root);
  EXPECT_NEAR(sum_squares / kCount, 1, 5 * std::sqrt(2.0) / root);
  EXPECT_NEAR(sum_fourth / kCount, 3, 5 * std::sqrt(96.0) / root);
  EXPECT_NEAR(pair_product / (kCount / 2), 0, 5 * std::sqrt(2.0) / root);
  EXPECT_NEAR(static_cast<double>(within_one) / kCount, 0.682689, 5 * 0.4654 / root);
}

TEST(Rng, FillEqualsElementwiseAtAnyOffset) {
  for (const uint64_t first :
       {uint64_t{0}, uint64_t{1}, uint64_t{2}, uint64_t{3}, uint64_t{1} << 40}) {
    for (const size_t n : {0u, 1u, 3u, 4u, 9u, 64u}) {
      std::vector<float> filled(n), single(n);
      kRng.fill_normal(first, filled);
      for (size_t i = 0; i < n; ++i) single[i] = kRng.normal_f32(first + i);
      EXPECT_EQ(filled, single);
    }
  }
}

// A change here changes every initial weight and every sampled token.
TEST(Rng, FixedBits) {
  uint64_t hash = 14695981039346656037u;
  const auto mix = [&](uint64_t bits) { hash = (hash ^ bits) * 1099511628211u; };
  for (int i = 0; i < 4096; ++i) {
    mix(std::bit_cast<uint32_t>(kRng.uniform_f32(i)));
    mix(std::bit_cast<uint64_t>(kRng.uniform_f64(i)));
    mix(std::bit_cast<uint32_t>(kRng.normal_f32(i)));
    mix(kRng.below(i, 1000003));
  }
  EXPECT_EQ(hash, 9382275234876907735u);
}

}  // namespace
}  // namespace dsmoe

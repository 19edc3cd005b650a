// The order is a bijection for every size, differs by seed and epoch, and is close to uniform.
#include "data/permutation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace dsmoe::data {
namespace {

TEST(Permutation, IsABijection) {
  std::vector<uint64_t> sizes = {1000, 1023, 1024, 1025, 65537, 100000};
  for (uint64_t n = 1; n <= 70; ++n) sizes.push_back(n);
  for (const uint64_t size : sizes) {
    for (uint64_t epoch = 0; epoch < 3; ++epoch) {
      const Permutation order(size, 7, epoch);
      std::vector<bool> seen(size, false);
      for (uint64_t i = 0; i < size; ++i) {
        const uint64_t value = order(i);
        ASSERT_LT(value, size);
        ASSERT_FALSE(seen[value]) << size << " " << i;
        seen[value] = true;
      }
    }
  }
}

TEST(Permutation, ReachesLargeSizes) {
  const uint64_t size = (uint64_t{1} << 40) + 12345;
  const Permutation order(size, 1, 0);
  uint64_t large = 0;
  for (uint64_t i = 0; i < 1000; ++i) {
    ASSERT_LT(order(i), size);
    large += order(i) > size / 2 ? 1 : 0;
  }
  EXPECT_GT(large, 420u);  // 5 standard deviations
  EXPECT_LT(large, 580u);
}

TEST(Permutation, DependsOnSeedAndEpochOnly) {
  const Permutation a(1000, 1, 0), same(1000, 1, 0), other_seed(1000, 2, 0),
      other_epoch(1000, 1, 1);
  int equal_seed = 0, equal_epoch = 0;
  for (uint64_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(a(i), same(i));
    equal_seed += a(i) == other_seed(i) ? 1 : 0;
    equal_epoch += a(i) == other_epoch(i) ? 1 : 0;
  }
  EXPECT_LT(equal_seed, 12);  // about 1 expected
  EXPECT_LT(equal_epoch, 12);
}

// Pearson's statistic of where each index goes, over many epochs: 90 % of the freedoms' quantiles
// lie far below the bound.
TEST(Permutation, SendsEveryIndexEverywhereEquallyOften) {
  for (const uint64_t size : {3u, 5u, 12u, 50u}) {
    constexpr int kEpochs = 4000;
    std::vector<int> counts(size * size);
    for (uint64_t epoch = 0; epoch < kEpochs; ++epoch) {
      const Permutation order(size, 11, epoch);
      for (uint64_t i = 0; i < size; ++i) ++counts[i * size + order(i)];
    }
    const double expected = static_cast<double>(kEpochs) / static_cast<double>(size);
    double statistic = 0;
    for (const int count : counts) statistic += (count - expected) * (count - expected) / expected;
    const double freedoms = static_cast<double>((size - 1) * (size - 1));
    EXPECT_LT(statistic, freedoms + 5 * std::sqrt(2 * freedoms)) << size;
    EXPECT_GT(statistic, freedoms - 5 * std::sqrt(2 * freedoms)) << size;
  }
}

// Neighbours must not stay neighbours.
TEST(Permutation, SeparatesNeighbours) {
  const uint64_t size = 4096;
  const Permutation order(size, 3, 0);
  int close = 0;
  for (uint64_t i = 0; i + 1 < size; ++i) {
    const auto distance =
        std::abs(static_cast<int64_t>(order(i)) - static_cast<int64_t>(order(i + 1)));
    close += distance <= 8 ? 1 : 0;
  }
  EXPECT_LT(close, 45);  // 16 expected
}

}  // namespace
}  // namespace dsmoe::data

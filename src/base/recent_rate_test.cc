// The rate of the last half minute, whatever was before.
#include "base/recent_rate.h"

#include <gtest/gtest.h>

namespace dsmoe {
namespace {

TEST(RecentRate, ForgetsWhatIsOlderThanHalfAMinute) {
  RecentRate rate(100, 5);
  EXPECT_EQ(rate.rate(), 0);
  double amount = 5, now = 100;
  for (; now < 160; now += 1) rate.add(now, amount += 1);
  EXPECT_NEAR(rate.rate(), 1, 1e-9);
  for (; now < 200; now += 1) rate.add(now, amount += 10);
  EXPECT_NEAR(rate.rate(), 10, 1e-9);
  rate.add(now + 100, amount);  // a long pause is time as well
  EXPECT_LT(rate.rate(), 3);
}

TEST(RecentRate, AShortTimeCountsWhole) {
  RecentRate rate(0, 0);
  for (int i = 1; i <= 1000; ++i) rate.add(i * 0.001, i * 2);
  EXPECT_NEAR(rate.rate(), 2000, 1e-6);
}

}  // namespace
}  // namespace dsmoe

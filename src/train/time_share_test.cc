// Shares of time, and the best validation.
#include "train/time_share.h"

#include <gtest/gtest.h>

#include "train/best_validation.h"

namespace dsmoe::train {
namespace {

// Work of `cost` seconds that is due after every step of `step` seconds.
int done_of(double share, int due, double step, double cost) {
  TimeShare time(share);
  int done = 0;
  double now = 0;
  for (int i = 0; i < due; ++i) {
    now += step;
    if (!time.allows(now)) continue;
    now += cost;
    time.add(cost);
    ++done;
  }
  return done;
}

TEST(TimeShare, LongWorkOfShortStepsIsPassedOver) {
  EXPECT_EQ(done_of(0.05, 20, 0.01, 0.5), 1);
  const int done = done_of(0.05, 10000, 0.01, 0.1);
  EXPECT_GE(done, 45);
  EXPECT_LE(done, 60);
}

TEST(TimeShare, ShortWorkOfLongStepsIsAlwaysDone) { EXPECT_EQ(done_of(0.05, 20, 10, 0.4), 20); }

TEST(TimeShare, WithoutALimitAllIsDone) { EXPECT_EQ(done_of(0, 20, 0.01, 100), 20); }

TEST(BestValidation, IsTheLowestAndTheFirstOfEquals) {
  BestValidation best;
  EXPECT_TRUE(best.update(0, 3.0));
  EXPECT_TRUE(best.update(5, 2.0));
  EXPECT_FALSE(best.update(10, 2.0));
  EXPECT_FALSE(best.update(15, 2.5));
  EXPECT_EQ(best.step, 5);
  EXPECT_EQ(best.since, 2);
  EXPECT_TRUE(best.update(20, 1.0));
  EXPECT_EQ(best.since, 0);
}

}  // namespace
}  // namespace dsmoe::train

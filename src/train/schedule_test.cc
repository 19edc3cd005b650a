#include "train/schedule.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace dsmoe::train {
namespace {

TEST(Schedule, PaperWarmsUpAndDropsTwice) {
  const Schedule schedule{.max_lr = 2, .warmup_steps = 4, .total_steps = 100};
  EXPECT_DOUBLE_EQ(schedule.lr(1), 0.5);
  EXPECT_DOUBLE_EQ(schedule.lr(4), 2);
  EXPECT_DOUBLE_EQ(schedule.lr(80), 2);
  EXPECT_DOUBLE_EQ(schedule.lr(81), 2 * 0.316);
  EXPECT_DOUBLE_EQ(schedule.lr(90), 2 * 0.316);
  EXPECT_DOUBLE_EQ(schedule.lr(91), 2 * 0.316 * 0.316);
  EXPECT_DOUBLE_EQ(schedule.lr(1000), 2 * 0.316 * 0.316);
}

TEST(Schedule, CosineEndsAtItsMinimum) {
  const Schedule schedule{
      .kind = ScheduleKind::cosine, .max_lr = 1, .warmup_steps = 10, .total_steps = 110};
  EXPECT_DOUBLE_EQ(schedule.lr(5), 0.5);
  EXPECT_DOUBLE_EQ(schedule.lr(10), 1);
  EXPECT_NEAR(schedule.lr(60), 0.55, 1e-15);
  EXPECT_NEAR(schedule.lr(110), 0.1, 1e-15);
  EXPECT_NEAR(schedule.lr(500), 0.1, 1e-15);
}

TEST(Schedule, ConstantStays) {
  const Schedule schedule{.kind = ScheduleKind::constant, .max_lr = 3, .total_steps = 10};
  EXPECT_EQ(schedule.lr(1), 3);
  EXPECT_EQ(schedule.lr(10), 3);
}

TEST(Schedule, UnknownWordsAreRefused) {
  EXPECT_EQ(parse_schedule("cosine"), ScheduleKind::cosine);
  EXPECT_THROW(parse_schedule("linear"), Error);
}

}  // namespace
}  // namespace dsmoe::train

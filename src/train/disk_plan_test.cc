#include "train/disk_plan.h"

#include <gtest/gtest.h>

namespace dsmoe::train {
namespace {

RunOptions options_of(int64_t steps, int64_t save_every, store::Retention retention) {
  RunOptions options;
  options.schedule.total_steps = steps;
  options.save_every = save_every;
  options.retention = retention;
  return options;
}

TEST(DiskPlan, CountsWhatLiesThereAtATime) {
  EXPECT_EQ(num_checkpoints_added(options_of(3, 1, {.last = 3}), 0, 0), 3);
  EXPECT_EQ(num_checkpoints_added(options_of(100, 10, {.last = 3}), 0, 0), 4)
      << "three kept and the one being written";
  EXPECT_EQ(num_checkpoints_added(options_of(100, 10, {.last = 3}), 50, 3), 1);
  EXPECT_EQ(num_checkpoints_added(options_of(100, 0, {.last = 3}), 0, 0), 1);
  EXPECT_EQ(num_checkpoints_added(options_of(25, 10, {.last = 9}), 0, 0), 3) << "10, 20, 25";
  EXPECT_EQ(num_checkpoints_added(options_of(100, 10, {.last = 1, .every = 20}), 0, 0), 7)
      << "20, 40, ..., 100 for good";
  EXPECT_EQ(num_checkpoints_added(options_of(100, 10, {.last = 3}), 100, 3), 0);
}

// Every validation may find a better one.
TEST(DiskPlan, CountsTheBestOnes) {
  RunOptions options = options_of(100, 0, {.last = 3});
  options.keep_best = true;
  EXPECT_EQ(num_checkpoints_added(options, 0, 0), 1) << "validated at the end only";
  options.valid_every = 50;
  EXPECT_EQ(num_checkpoints_added(options, 0, 0), 2) << "50, 100";
  options.valid_every = 5;
  EXPECT_EQ(num_checkpoints_added(options, 0, 0), 5)
      << "the best, three kept and the one being written";
  options.save_every = 50;
  options.retention.every = 50;
  EXPECT_EQ(num_checkpoints_added(options, 0, 0), 7) << "50 and 100 for good besides";
}

constexpr uint64_t kGiB = uint64_t{1} << 30;

TEST(DiskPlan, WhatCannotFitIsToldBeforeWorkBegins) {
  const DiskNeed need{.bytes = 36 * kGiB, .num_added = 3};
  const DiskPlan none = plan_disk(need, {.available = 35 * kGiB});
  EXPECT_EQ(none.kind, DiskPlan::Kind::impossible);
  EXPECT_EQ(none.message,
            "a checkpoint takes 36.0 GiB, 35.0 GiB are free: free 1.0 GiB before training, or "
            "choose an --out on another disk");
  EXPECT_EQ(plan_disk(need, {.available = 35 * kGiB, .removable = kGiB}).kind,
            DiskPlan::Kind::tight);

  const DiskPlan tight = plan_disk(need, {.available = 75 * kGiB});
  EXPECT_EQ(tight.kind, DiskPlan::Kind::tight);
  EXPECT_NE(tight.message.find("36.0 GiB each, up to 3 more at a time; 75.0 GiB are free"),
            std::string::npos)
      << tight.message;

  const DiskPlan fits = plan_disk(need, {.available = 2000 * kGiB});
  EXPECT_EQ(fits.kind, DiskPlan::Kind::fits);
  EXPECT_NE(fits.message, "") << "a large model's user is told in any case";
  EXPECT_EQ(plan_disk({.bytes = kGiB / 64, .num_added = 3}, {.available = 2000 * kGiB}).message,
            "");
  EXPECT_EQ(plan_disk({.bytes = kGiB, .num_added = 0}, {.available = 0}).message, "")
      << "nothing left to do";
}

}  // namespace
}  // namespace dsmoe::train

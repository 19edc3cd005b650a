// Threads make room where they wait for CPUs, and come back with patience.
#include "base/fair_share.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace dsmoe {
namespace {

constexpr double kLook = 0.010;

// Seconds of runs, in looks without delays, until there are `count` threads; a minute at most.
double seconds_until(FairShare& share, int count) {
  double seconds = 0;
  for (; share.threads() < count && seconds < 60; seconds += kLook) share.note(kLook, 0);
  return seconds;
}

TEST(FairShare, KeepsAllThreadsOnAQuietMachine) {
  FairShare share(16);
  for (int i = 0; i < 1000; ++i) {
    share.note(kLook, 0.2 * kLook);  // somebody else ran for a moment
    ASSERT_EQ(share.threads(), 16);
  }
}

// One bad look after a quiet time is chance, the second is not.
TEST(FairShare, GivesUpAsManyThreadsAsWereLost) {
  FairShare share(16);
  share.note(kLook, 2.1 * kLook);
  EXPECT_EQ(share.threads(), 16);
  share.note(kLook, 0);
  share.note(kLook, 2.1 * kLook);
  EXPECT_EQ(share.threads(), 16);
  share.note(kLook, 2.1 * kLook);
  EXPECT_EQ(share.threads(), 14);
  share.note(kLook, 0.3 * kLook);
  EXPECT_EQ(share.threads(), 13);
}

TEST(FairShare, OneThreadAlwaysStays) {
  FairShare share(2), one(1);
  for (int i = 0; i < 9; ++i) share.note(kLook, 1.9 * kLook);
  EXPECT_EQ(share.threads(), 1);
  for (int i = 0; i < 2; ++i) one.note(kLook, kLook);
  EXPECT_EQ(one.threads(), 1);
}

TEST(FairShare, ComesBackQuicklyOnceItWorks) {
  FairShare share(64);
  for (int i = 0; i < 2; ++i) share.note(kLook, 63 * kLook);
  ASSERT_EQ(share.threads(), 1);
  const double first = seconds_until(share, 2);
  EXPECT_GE(first, 0.1);
  EXPECT_LT(first, 0.3);
  EXPECT_LT(seconds_until(share, 64), 0.2);
}

TEST(FairShare, TriesMoreAndMoreSeldomWhileItDoesNotWork) {
  FairShare share(2);
  share.note(kLook, kLook);
  double before = 0;
  for (int attempt = 0; attempt < 8; ++attempt) {
    share.note(kLook, kLook);
    ASSERT_EQ(share.threads(), 1);
    const double patience = seconds_until(share, 2);
    EXPECT_GE(patience, std::min(before * 1.5, 4.0));
    EXPECT_LT(patience, 4.1);
    before = patience;
  }
  EXPECT_GE(before, 4.0);
}

TEST(FairShare, ForgetsAfterAQuietSecond) {
  FairShare share(2);
  share.note(kLook, kLook);
  for (int attempt = 0; attempt < 8; ++attempt) {
    share.note(kLook, kLook);
    seconds_until(share, 2);
  }
  for (double seconds = 0; seconds < 1.1; seconds += kLook) share.note(kLook, 0);
  for (int i = 0; i < 2; ++i) share.note(kLook, kLook);
  EXPECT_LT(seconds_until(share, 2), 0.3);
}

// An attempt that fails should cost little.
TEST(FairShare, LooksSoonerAfterAChange) {
  FairShare share(2);
  const double settled = share.next_look();
  for (int i = 0; i < 2; ++i) share.note(kLook, kLook);
  ASSERT_EQ(share.threads(), 1);
  EXPECT_LT(share.next_look(), settled);
  seconds_until(share, 2);
  EXPECT_LT(share.next_look(), settled);
  share.note(kLook, 0);
  EXPECT_EQ(share.next_look(), settled);
}

}  // namespace
}  // namespace dsmoe

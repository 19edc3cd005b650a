// What the bar and the lines say, how often, and that quiet means nothing at all.
#include "base/progress.h"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "base/log.h"

namespace dsmoe {
namespace {

// A clock and a screen in memory.
struct Screen {
  double time = 100;
  std::string shown;

  ProgressOptions options(ProgressStyle style, int64_t total) {
    return {.label = "train",
            .total = total,
            .unit = "steps",
            .style = style,
            .write = [this](std::string_view text) { shown += text; },
            .now = [this] { return time; },
            .columns = 80};
  }
  std::string take() { return std::exchange(shown, ""); }
};

TEST(Progress, LinesEveryTenSecondsAndAtTheEnd) {
  Screen screen;
  Progress progress(screen.options(ProgressStyle::lines, 1000));
  screen.time += 9;
  progress.update(90);
  EXPECT_EQ(screen.take(), "");
  screen.time += 1;
  progress.update(100, "loss 3.21");
  EXPECT_EQ(screen.take(), "train: 100/1000 steps, 10.0/s, 1:30 left, loss 3.21\n");
  screen.time += 5;
  progress.update(200);
  EXPECT_EQ(screen.take(), "");
  screen.time += 85;
  progress.update(1000);
  screen.take();
  progress.finish();
  EXPECT_EQ(screen.take(), "train: 1000/1000 steps, 10.0/s, in 1:40\n");
  progress.finish();
  progress.update(5);
  EXPECT_EQ(screen.take(), "");
}

TEST(Progress, BarIsRedrawnTenTimesASecond) {
  Screen screen;
  Progress progress(screen.options(ProgressStyle::bar, 100));
  progress.update(0);
  EXPECT_EQ(screen.take(), "\rtrain [>                       ]   0% 0/100 steps\033[K");
  screen.time += 0.05;
  progress.update(10);
  EXPECT_EQ(screen.take(), "");
  screen.time += 0.95;
  progress.update(50);
  EXPECT_EQ(screen.take(),
            "\rtrain [============>           ]  50% 50/100 steps, 50.0/s, 0:01 left\033[K");
  progress.update(100);
  progress.finish();
  EXPECT_EQ(screen.take(),
            "\rtrain [========================] 100% 100/100 steps, 100/s, in 0:01\033[K\n");
}

TEST(Progress, UnknownTotalHasNoBarAndNoTimeLeft) {
  Screen screen;
  Progress progress(screen.options(ProgressStyle::bar, 0));
  screen.time += 10;
  progress.update(5);
  EXPECT_EQ(screen.take(), "\rtrain 5 steps, 0.500/s\033[K");
}

TEST(Progress, ResumedWorkCountsFromWhereItStarted) {
  Screen screen;
  ProgressOptions options = screen.options(ProgressStyle::lines, 1000);
  options.already_done = 900;
  Progress progress(options);
  screen.time += 10;
  progress.update(950);
  EXPECT_EQ(screen.take(), "train: 950/1000 steps, 5.00/s, 0:10 left\n");
}

TEST(Progress, LargeRatesAreShort) {
  Screen screen;
  Progress progress(screen.options(ProgressStyle::lines, 100'000'000));
  screen.time += 2;
  progress.update(100'000'000);
  progress.finish();
  EXPECT_EQ(screen.take(), "train: 100000000/100000000 steps, 50.00 M/s, in 0:02\n");
}

TEST(Progress, NeverWiderThanTheTerminalAndNeverHalfACharacter) {
  Screen screen;
  ProgressOptions options = screen.options(ProgressStyle::bar, 0);
  options.columns = 12;
  Progress progress(options);
  progress.update(5, "äöü");
  const std::string shown = screen.take();
  EXPECT_EQ(shown, "\rtrain 5 ste\033[K");
  options.label = "äöüäöüäöü";
  Progress accents(options);
  accents.update(5);
  EXPECT_EQ(screen.take(), "\räöüäö\033[K");
}

// Half a figure would be another figure.
TEST(Progress, TheBarMakesRoomForFiguresWhichAreShownWholeOrNotAtAll) {
  Screen screen;
  ProgressOptions options = screen.options(ProgressStyle::bar, 100);
  const auto shown = [&](int columns) {
    options.columns = columns;
    screen.take();  // how the one before ended
    screen.time = 0;
    Progress progress(options);
    screen.time = 1;
    progress.update(50, "loss 3.21, valid 3.33");
    return screen.take();
  };
  const std::string text = "50/100 steps, 50.0/s, 0:01 left, loss 3.21, valid 3.33";
  EXPECT_EQ(shown(100), "\rtrain [============>           ]  50% " + text + "\033[K");
  EXPECT_EQ(shown(81), "\rtrain [======>     ]  50% " + text + "\033[K");
  EXPECT_EQ(shown(70), "\rtrain " + text + "\033[K");
  EXPECT_EQ(shown(60), "\rtrain 50/100 steps, 50.0/s, 0:01 left, loss 3.21\033[K");
}

TEST(Progress, DestructorFinishes) {
  Screen screen;
  { Progress progress(screen.options(ProgressStyle::lines, 10)); }
  EXPECT_EQ(screen.take(), "train: 0/10 steps, in 0:00\n");
}

TEST(Progress, QuietShowsNothing) {
  const LogLevel before = log_level();
  set_log_level(LogLevel::quiet);
  Screen screen;
  {
    Progress progress(screen.options(ProgressStyle::automatic, 10));
    screen.time += 100;
    progress.update(5);
  }
  set_log_level(before);
  EXPECT_EQ(screen.take(), "");
}

TEST(FormatDuration, MinutesAndHours) {
  EXPECT_EQ(format_duration(0), "0:00");
  EXPECT_EQ(format_duration(7.4), "0:07");
  EXPECT_EQ(format_duration(723), "12:03");
  EXPECT_EQ(format_duration(3 * 3600 + 245), "3:04:05");
  EXPECT_EQ(format_duration(-1), "?");
  EXPECT_EQ(format_duration(HUGE_VAL), "?");
}

}  // namespace
}  // namespace dsmoe

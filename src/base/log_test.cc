// Levels, their names, the text of a line, and silence when quiet.
#include "base/log.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace dsmoe {
namespace {

class Log : public ::testing::Test {
 protected:
  void TearDown() override { set_log_level(before_); }
  LogLevel before_ = log_level();
};

TEST_F(Log, ShowsItsLevelAndThoseBefore) {
  const auto lines = [](LogLevel level) {
    set_log_level(level);
    ::testing::internal::CaptureStderr();
    log_warning("w {}", 1);
    log_info("i {}", 2);
    log_debug("d {}", 3);
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(lines(LogLevel::quiet), "");
  EXPECT_EQ(lines(LogLevel::warning), "dsmoe: warning: w 1\n");
  EXPECT_EQ(lines(LogLevel::info), "dsmoe: warning: w 1\ndsmoe: i 2\n");
  EXPECT_EQ(lines(LogLevel::debug), "dsmoe: warning: w 1\ndsmoe: i 2\ndsmoe: debug: d 3\n");
}

TEST_F(Log, ParsesNamesAndRefusesOthers) {
  EXPECT_EQ(parse_log_level("quiet", "x"), LogLevel::quiet);
  EXPECT_EQ(parse_log_level("warning", "x"), LogLevel::warning);
  EXPECT_EQ(parse_log_level("info", "x"), LogLevel::info);
  EXPECT_EQ(parse_log_level("debug", "x"), LogLevel::debug);
  try {
    parse_log_level("loud", "DSMOE_LOG");
    FAIL() << "not refused";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::usage);
    EXPECT_STREQ(e.what(), "DSMOE_LOG must be quiet, warning, info or debug, not \"loud\"");
  }
}

TEST_F(Log, ClearsABarOnATerminalOnly) {
  EXPECT_EQ(format_log_line(LogLevel::info, "x", true), "\r\033[Kdsmoe: x\n");
  EXPECT_EQ(format_log_line(LogLevel::info, "x", false), "dsmoe: x\n");
}

}  // namespace
}  // namespace dsmoe

#include "base/utf8.h"

#include <gtest/gtest.h>

namespace dsmoe {
namespace {

TEST(Utf8, AcceptsWhatIsWellFormed) {
  for (const std::string text : {"", "plain", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80",
                                 "\xEF\xBF\xBF", "\xF4\x8F\xBF\xBF", "\xED\x9F\xBF"}) {
    EXPECT_EQ(valid_utf8_end(text), text.size());
  }
}

TEST(Utf8, FindsTheFirstBrokenByte) {
  for (const std::string bad :
       {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xE2\x82", "\xC3", "\xE2(\xA1"}) {
    EXPECT_EQ(valid_utf8_end("ok \xC3\xA9" + bad + "x"), 5u);
  }
}

TEST(Utf8, IllFormedPartsAreTheMaximalSubparts) {
  EXPECT_EQ(replace_ill_formed("a\xF0\x9F\x98z"), "a\xEF\xBF\xBDz");  // truncated
  EXPECT_EQ(replace_ill_formed("\xED\xA0\x80"),
            "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");                      // surrogate
  EXPECT_EQ(replace_ill_formed("\xC0\xAF"), "\xEF\xBF\xBD\xEF\xBF\xBD");  // overlong
  EXPECT_EQ(replace_ill_formed("\xF4\x90\x80\x80").size(), 12U);          // above U+10FFFF
  EXPECT_TRUE(is_valid_utf8("\xF4\x8F\xBF\xBF \xEE\x80\x80"));
}

TEST(Utf8, IncompleteTailCountsOnlyWhatCanStillBecomeACharacter) {
  EXPECT_EQ(incomplete_tail("a\xE4\xBD"), 2U);
  EXPECT_EQ(incomplete_tail("a\xF0\x9F\x98"), 3U);
  EXPECT_EQ(incomplete_tail("\xC3"), 1U);
  EXPECT_EQ(incomplete_tail("\xE4\xBD\xA0"), 0U);
  EXPECT_EQ(incomplete_tail("\xFF"), 0U);
  EXPECT_EQ(incomplete_tail("\xE0\x80"), 0U);  // 80 may not follow E0
  EXPECT_EQ(incomplete_tail("\x80\x80\x80\x80"), 0U);
  EXPECT_EQ(incomplete_tail(""), 0U);
}

TEST(Utf8, QuotesForMessages) {
  EXPECT_EQ(in_quotes("abc"), "\"abc\"");
  EXPECT_EQ(in_quotes("a\nb\xff"), "\"a\\x0ab\\xff\"");
  EXPECT_EQ(in_quotes(std::string(100, 'a')), "\"" + std::string(80, 'a') + "...\" (100 bytes)");
}

}  // namespace
}  // namespace dsmoe

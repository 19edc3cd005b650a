#include "base/utf8.h"

#include <gtest/gtest.h>

namespace dsmoe {
namespace {

TEST(Utf8, AcceptsWhatIsWellFormed) {
  for (const std::string text : {"", "plain", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80",
                                 "\xEF\xBF\xBF", "\xF4\x8F\xBF\xBF", "\xED\x9F\xBF"}) {
    EXPECT_EQ(valid_utf8_prefix(text), text.size());
  }
}

TEST(Utf8, FindsTheFirstBrokenByte) {
  for (const std::string bad :
       {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xE2\x82", "\xC3", "\xE2(\xA1"}) {
    EXPECT_EQ(valid_utf8_prefix("ok \xC3\xA9" + bad + "x"), 5u);
  }
}

TEST(Utf8, QuotesForMessages) {
  EXPECT_EQ(in_quotes("abc"), "\"abc\"");
  EXPECT_EQ(in_quotes("a\nb\xff"), "\"a\\x0ab\\xff\"");
  EXPECT_EQ(in_quotes(std::string(100, 'a')), "\"" + std::string(80, 'a') + "...\" (100 bytes)");
}

}  // namespace
}  // namespace dsmoe

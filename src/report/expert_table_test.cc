// The layout of expert tables and of tokens in them.
#include "expert_table.h"

#include <gtest/gtest.h>

#include "output.h"

namespace dsmoe::app {
namespace {

ExpertTable table() {
  ExpertTable table{.layers = {1, 2, 3}};
  table.rows.push_back(
      {"\"the\"", {{{12, 3}, {0.314f, 0.25f}}, {{0, 7}, {0.999f, 0.001f}}, {{5, -1}, {1.5f, 0}}}});
  table.rows.push_back(
      {"\"\xC3\xA9\"", {{{1, 2}, {0.5f, 0.5f}}, {{3, 4}, {0.5f, 0.5f}}, {{5, 6}, {0.5f, 0.5f}}}});
  return table;
}

TEST(ExpertTable, ShowsExpertsAndGatesInColumns) {
  EXPECT_EQ(format_expert_table(table(), {.experts_per_cell = 2, .columns = 100}),
            "token  layer 1          layer 2          layer 3\n"
            "\"the\"  12 .31   3 .25    0 1.0   7 .00    5 1.5\n"
            "\"\xC3\xA9\"     1 .50   2 .50    3 .50   4 .50    5 .50   6 .50\n");
}

TEST(ExpertTable, ContinuesBelowWhereTheTerminalEnds) {
  const std::string text = format_expert_table(table(), {.experts_per_cell = 2, .columns = 50});
  EXPECT_NE(text.find("\n\ntoken  layer "), std::string::npos) << text;
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    EXPECT_LE(end - begin, 51u);
  }
}

TEST(ExpertTable, ColoursOnlyWhenAsked) {
  EXPECT_EQ(format_expert_table(table(), {}).find('\x1b'), std::string::npos);
  EXPECT_NE(format_expert_table(table(), {.colour = Colour::yes}).find("\x1b[1;38;5;"),
            std::string::npos);
}

TEST(QuotedToken, EscapesControlsAndBrokenText) {
  EXPECT_EQ(quoted_token(" a\n\t\"\\\x1b"), "\" a\\n\\t\\\"\\\\\\x1b\"");
  EXPECT_EQ(quoted_token("\xC3\xA9"), "\"\xC3\xA9\"");
  EXPECT_EQ(quoted_token("\xC3"), "\"\\xc3\"");
}

TEST(WithoutControls, KeepsTextAndReplacesEscapes) {
  EXPECT_EQ(without_controls("a\tb\nc\xC3\xA9"), "a\tb\nc\xC3\xA9");
  EXPECT_EQ(without_controls("\x1b[31m"), "\xEF\xBF\xBD[31m");
  EXPECT_EQ(without_controls("\xC2\x9B"
                             "31m\x7f"),
            "\xEF\xBF\xBD"
            "31m\xEF\xBF\xBD");
}

}  // namespace
}  // namespace dsmoe::app

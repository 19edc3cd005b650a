// The layout of expert tables and of tokens in them.
#include "report/expert_table.h"

#include <gtest/gtest.h>

namespace dsmoe::report {
namespace {

ExpertTable table() {
  return {.layers = {1, 2, 3},
          .labels = {"\"the\"", "\"\xC3\xA9\""},
          .routes = {.num_layers = 3,
                     .top_k = 2,
                     .index = {12, 3, 0, 7, 5, -1, 1, 2, 3, 4, 5, 6},
                     .gate = {0.314f, 0.25f, 0.999f, 0.001f, 1.5f, 0, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f,
                              0.5f}}};
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

}  // namespace
}  // namespace dsmoe::report

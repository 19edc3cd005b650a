// Control characters of a text do not reach a terminal.
#include "base/readable.h"

#include <gtest/gtest.h>

namespace dsmoe {
namespace {

TEST(WithoutControls, KeepsTextAndReplacesEscapes) {
  EXPECT_EQ(without_controls("a\tb\nc\xC3\xA9"), "a\tb\nc\xC3\xA9");
  EXPECT_EQ(without_controls("\x1b[31m"), "\xEF\xBF\xBD[31m");
  EXPECT_EQ(without_controls("\xC2\x9B"
                             "31m\x7f"),
            "\xEF\xBF\xBD"
            "31m\xEF\xBF\xBD");
}

}  // namespace
}  // namespace dsmoe

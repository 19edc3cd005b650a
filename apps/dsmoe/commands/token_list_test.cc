// Lists of token ids, in the forms people write them.
#include "commands/token_list.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace dsmoe::app {
namespace {

TEST(TokenList, ReadsCommasSpacesAndBrackets) {
  const std::vector<int32_t> expected{1, 22, 333};
  for (const char* text :
       {"1,22,333", "1 22 333", " 1 ,\n22\t333\n", "[1, 22, 333]", "[1 22 333,]\n"}) {
    EXPECT_EQ(parse_token_list(text, "x"), expected) << text;
  }
}

TEST(TokenList, RefusesEverythingElse) {
  for (const char* text :
       {"", " ", "[]", "[1", "1]", "1;2", "1,,2", "-1", "2147483648", "1.5", "a", "[1] 2", "0x1"}) {
    EXPECT_THROW(parse_token_list(text, "x"), Error) << text;
  }
}

}  // namespace
}  // namespace dsmoe::app

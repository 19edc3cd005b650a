#include "store/json_cursor.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace dsmoe::store {
namespace {

TEST(JsonCursor, ReadsNestedValuesInOrder) {
  JsonCursor cursor(R"( {"a" : [ 1 , 18446744073709551615, 0 ] , "b":{}, "c":[], "d": "x"} )", "t");
  cursor.open_object();
  EXPECT_EQ(cursor.next_key(), "a");
  cursor.open_array();
  std::vector<uint64_t> numbers;
  while (cursor.next_element()) numbers.push_back(cursor.read_unsigned());
  EXPECT_EQ(numbers, (std::vector<uint64_t>{1, 18446744073709551615u, 0}));
  EXPECT_EQ(cursor.next_key(), "b");
  cursor.open_object();
  EXPECT_EQ(cursor.next_key(), std::nullopt);
  EXPECT_EQ(cursor.next_key(), "c");
  cursor.open_array();
  EXPECT_FALSE(cursor.next_element());
  EXPECT_EQ(cursor.next_key(), "d");
  EXPECT_EQ(cursor.read_string(), "x");
  EXPECT_EQ(cursor.next_key(), std::nullopt);
  cursor.finish();
}

TEST(JsonCursor, Strings) {
  const auto read = [](std::string_view text) { return JsonCursor(text, "t").read_string(); };
  EXPECT_EQ(read(R"("")"), "");
  EXPECT_EQ(read(R"("\"\\\/\b\f\n\r\t")"), "\"\\/\b\f\n\r\t");
  EXPECT_EQ(read(R"("\u0041\u00e9\u20AC\ud83d\ude00")"), "Aé€😀");
  EXPECT_EQ(read("\"é€😀\x7f\""), "é€😀\x7f");
  EXPECT_EQ(read(R"("\u0000")"), std::string(1, '\0'));
  EXPECT_THROW(read("\"a"), Error);
  EXPECT_THROW(read("\"\\\""), Error);
  EXPECT_THROW(read("\"\\"), Error);
  EXPECT_THROW(read("\"\\u12"), Error);
}

TEST(JsonCursor, SkipsEveryValidValueAndNoOther) {
  const auto skips = [](std::string_view text) {
    try {
      JsonCursor cursor(text, "t");
      cursor.skip_value();
      cursor.finish();
      return true;
    } catch (const Error&) {
      return false;
    }
  };
  for (const char* good :
       {"0", "-0", "-1.5e+10", "1E3", "true", "false", "null", R"("\u00e9")", "[]", "{}",
        R"([1,[2,{"a":[]}],"x"])", R"({"a":{"b":null},"c":[true]})", " [ ] "}) {
    EXPECT_TRUE(skips(good)) << good;
  }
  for (const char* bad :
       {"",      "-",    "01",   "1.",    ".5",      "1e",       "+1",         "tru",
        "nulll", "[1,]", "[,1]", "[1 2]", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{1:2}",
        "[",     "{",    "]",    "NaN",   "'a'",     "1 2"}) {
    EXPECT_FALSE(skips(bad)) << bad;
  }
  EXPECT_TRUE(skips(std::string(64, '[') + std::string(64, ']')));
  EXPECT_FALSE(skips(std::string(65, '[') + std::string(65, ']')));
}

}  // namespace
}  // namespace dsmoe::store

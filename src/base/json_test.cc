#include "base/json.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace dsmoe {
namespace {

std::string refusal(std::string_view text) {
  try {
    parse_json(text, "f.json");
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::input);
    return e.what();
  }
  return "accepted";
}

TEST(Json, ReadsNestedValues) {
  const Json value = parse_json(R"({"a": [1, -2, 2.5, {"b": null}], "c": "\u00e9", "d": {}})", "t");
  EXPECT_EQ(value.dump(), R"({"a":[1,-2,2.5,{"b":null}],"c":"é","d":{}})");
}

TEST(Json, KeepsTheOrderOfKeys) {
  const OrderedJson value = parse_ordered_json(R"({"z": 1, "a": {"y": 2, "b": [3]}, "m": 4})", "t");
  EXPECT_EQ(value.dump(), R"({"z":1,"a":{"y":2,"b":[3]},"m":4})");
  EXPECT_THROW(parse_ordered_json(R"({"z": 1, "a": {"y": 2, "y": 3}})", "t"), Error);
}

TEST(Json, RefusesDuplicateKeys) {
  EXPECT_EQ(refusal(R"({"a":1,"b":{"a":1},"a":2})"),
            "f.json: the key \"a\" appears twice in one JSON object");
}

TEST(Json, RefusesDepth) {
  EXPECT_NO_THROW(parse_json(std::string(64, '[') + std::string(64, ']'), "t"));
  EXPECT_EQ(refusal(std::string(100000, '[')), "f.json: JSON nested deeper than 64 levels");
}

TEST(Json, RefusesBrokenText) {
  for (const char* text : {"", "{", "[1,]", "{\"a\"}", "1 2", "nul", "\"\xff\"", "01", "[1e999]"}) {
    EXPECT_NE(refusal(text).find("f.json: not valid JSON"), std::string::npos) << text;
  }
}

TEST(Json, RefusesWhatFollowsANulByte) {
  using namespace std::string_view_literals;
  EXPECT_EQ(refusal("{\"a\": 1}\0{\"a\": 2}"sv), "f.json: not valid JSON at byte 8: a NUL byte");
  for (const std::string_view text : {"1\0"sv, "\0"sv, "\0 1"sv, "[1,\0 2]"sv, "\"a\0b\""sv}) {
    EXPECT_NE(refusal(text).find("a NUL byte"), std::string::npos);
  }
  EXPECT_EQ(parse_json(R"("a\u0000b")", "t").get<std::string>(), "a\0b"sv);  // a character
}

TEST(Json, LimitsHoldBeforeAnythingIsBuilt) {
  const auto refused = [](std::string_view text, const JsonLimits& limits) -> std::string {
    try {
      parse_json(text, "f.json", limits);
    } catch (const Error& e) {
      return e.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refused("[1, [2], {}]", {.max_values = 5}), "accepted");
  EXPECT_EQ(refused("[1, [2], {}, \"\"]", {.max_values = 5}),
            "f.json: more than 5 values in this JSON");
  EXPECT_EQ(refused(R"({"a": {"b": 1}, "c": 2})", {.max_keys = 3}), "accepted");
  EXPECT_EQ(refused(R"({"a": {"b": 1}, "c": 2})", {.max_keys = 2}),
            "f.json: more than 2 keys in this JSON");
  EXPECT_EQ(refused("[[[1]]]", {.max_depth = 2}), "f.json: JSON nested deeper than 2 levels");
}

// A message shows what is wrong, not a megabyte of it.
TEST(Json, MessagesStayShort) {
  const std::string megabyte(1 << 20, 'k');
  EXPECT_EQ(refusal("{\"" + megabyte + "\":1,\"" + megabyte + "\":2}"),
            "f.json: the key \"" + std::string(80, 'k') +
                "...\" (1048576 bytes) appears twice in one JSON object");
  for (const std::string& text :
       {"\"" + megabyte + "\n\"", "\"" + megabyte + "\xff\"", std::string(1 << 20, '1') + "x",
        "\"" + megabyte, "[\"\xc3\xa9" + megabyte + "\\q\"]"}) {
    const std::string message = refusal(text);
    EXPECT_NE(message.find("f.json: not valid JSON"), std::string::npos) << message;
    EXPECT_LT(message.size(), 400u) << message;
    EXPECT_NE(message.find(" '..."), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace dsmoe

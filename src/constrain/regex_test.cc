#include <gtest/gtest.h>

#include "constrain/test_support.h"

namespace dsmoe::constrain {
namespace {

struct Case {
  const char* pattern;
  std::vector<std::string> right;
  std::vector<std::string> wrong;
};

TEST(Regex, MatchesTheWholeText) {
  const Case cases[] = {
      {"abc", {"abc"}, {"", "ab", "abcd", "xabc"}},
      {"a|bc|", {"a", "bc", ""}, {"b", "ac"}},
      {"(?:a|b)*c", {"c", "abac"}, {"", "ab"}},
      {"a{2,3}", {"aa", "aaa"}, {"a", "aaaa"}},
      {"a{2,}", {"aa", std::string(100, 'a')}, {"a"}},
      {"[a-c]{20,40}",
       {std::string(20, 'a'), std::string(40, 'c')},
       {std::string(19, 'a'), std::string(41, 'b')}},
      {"[ab]{30}[ab]{2}", {std::string(32, 'a')}, {std::string(31, 'a'), std::string(33, 'b')}},
      {"x{100000}y", {std::string(100000, 'x') + "y"}, {"xy"}},
      {"\\d+\\.\\d{2}", {"0.50", "123.45"}, {".50", "1.5", "1.555"}},
      {"[^a-z]", {"A", "é", "日", "\n"}, {"a", "z", ""}},
      {"[é-ü]+", {"é", "êü"}, {"e", "ý"}},
      {".", {"a", "日", "\xf0\x9f\x98\x80"}, {"\n", "ab", "\xff", "\xed\xa0\x80"}},
      {"\\w\\W\\s\\S", {"a-\tb"}, {"--\tb", "a- \n", "aé b"}},
      {"[\\w.-]+", {"a.b-c_9"}, {"a b"}},
      {"[^\\s]", {"x", "日"}, {" ", "\xc2\xa0"}},
      {"^a$|^b", {"a", "b"}, {"^a", "ab"}},
      {"\\u00e9\\x41\\n\\/\\{", {"éA\n/{"}, {"e"}},
      {"\\ud83d\\ude00", {"\xf0\x9f\x98\x80"}, {""}},
      {"a{,3}", {"a{,3}"}, {"aa"}},
      {"(?P<y>a)(?<x>b)", {"ab"}, {"a"}},
      {"a*?b+?c??", {"b", "aabbc"}, {"c"}},
      {"(a?b?){3}", {"", "ababab", "aab"}, {"aaaa"}},
      {"((a|b){2}c){2}", {"abcbac"}, {"abcba"}},
  };
  for (const Case& c : cases) {
    const auto constraint = constraint_of(Shape::regex(c.pattern, "regex"));
    for (const auto& text : c.right)
      EXPECT_TRUE(accepts(constraint, text)) << c.pattern << " " << text;
    for (const auto& text : c.wrong)
      EXPECT_FALSE(accepts(constraint, text)) << c.pattern << " " << text;
  }
}

TEST(Regex, SearchesInsideOfStrings) {
  const auto find = [](const char* pattern) {
    return constraint_of(schema_of(std::string(R"({"type":"string","pattern":)") +
                                   OrderedJson(pattern).dump() + "}"));
  };
  EXPECT_TRUE(accepts(find("b+"), R"("abc")"));
  EXPECT_FALSE(accepts(find("b+"), R"("aac")"));
  EXPECT_TRUE(accepts(find("^b"), R"("bc")"));
  EXPECT_FALSE(accepts(find("^b"), R"("abc")"));
  EXPECT_FALSE(accepts(find("^b$"), R"("bb")"));
  // What JSON has to escape is escaped, and nothing else.
  EXPECT_TRUE(accepts(find("^[\"\\\\\\n]{3}$"), R"("\"\\\n")"));
  EXPECT_FALSE(accepts(find("^a$"), R"("\u0061")"));
  EXPECT_TRUE(accepts(find("^\\x01$"), R"("\u0001")"));
}

TEST(Regex, RefusesByByte) {
  const std::pair<const char*, const char*> cases[] = {
      {"a(?=b)", "(?"},
      {"(a)\\1", "escape"},
      {"\\bword", "escape"},
      {"\\p{L}", "escape"},
      {"a**", "repetition of a repetition"},
      {"a++", "possessive"},
      {"*a", "repetition of nothing"},
      {"(a", "( without"},
      {"a)", ") without"},
      {"[a", "ends too early"},
      {"[]a]", "empty class"},
      {"[z-a]", "ends before"},
      {"a{3,2}", "3 to 2"},
      {"a{1,9999999}", "at most 1000000"},
      {"a^b", "^ and $"},
      {"\\", "too early"},
      {"\\ud800", "surrogates"},
      {"[a-\\d]", "ends in a class"},
      {"(?i)a", "(?"},
      {"[[:alpha:]]", "class"},
      {"^*", "repeated ^"},
  };
  for (const auto& [pattern, reason] : cases) {
    const std::string refusal = refusal_of(Shape::regex(pattern, "guided_regex"));
    EXPECT_NE(refusal.find("guided_regex: "), std::string::npos) << pattern << ": " << refusal;
    EXPECT_NE(refusal.find(reason), std::string::npos) << pattern << ": " << refusal;
  }
}

// 16,384 states, each of which looks at every alternative again: few states, much work.
TEST(Regex, BoundsTheWorkOfJoiningAlternatives) {
  std::string equal = "(?:a|b", different = equal, nothing = "(?:";
  for (int i = 0; i < 8000; ++i) equal += "|c";
  for (int i = 0; i < 8000; ++i) different += fmt::format("|c{}", i);
  for (int i = 0; i < 26; ++i) nothing += fmt::format("{}|", static_cast<char>('a' + i));
  for (const std::string& pattern : {equal + ")*a(?:a|b){13}", different + ")*a(?:a|b){13}",
                                     nothing + "x){0,500}(?:(?:){0,3500})"}) {
    const std::string refusal = refusal_of(Shape::regex(pattern, "guided_regex"));
    EXPECT_NE(refusal.find("guided_regex: too complex"), std::string::npos)
        << pattern.substr(0, 40) << ": " << refusal;
  }
}

TEST(Regex, BoundsWhatExplodes) {
  for (const char* pattern :
       {"((a{1,1000}){1,1000}){1,1000}", "(a|b)*a(a|b){25}", "(.*a){60}.{30}b", "(([a-z]{5000}))*",
        "[a-z]{1,100000}[a-z]{1,100000}"}) {
    const std::string refusal = refusal_of(Shape::regex(pattern, "guided_regex"));
    EXPECT_NE(refusal.find("guided_regex: "), std::string::npos) << pattern << ": " << refusal;
  }
  EXPECT_NE(refusal_of(Shape::regex(std::string(1000, '('), "r")).find("deeper"),
            std::string::npos);
  EXPECT_NE(refusal_of(Shape::regex(std::string(100000, 'a'), "r")).find("bytes"),
            std::string::npos);
}

}  // namespace
}  // namespace dsmoe::constrain

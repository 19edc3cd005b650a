// Stop strings across pieces: never partly shown, nothing lost when they do not complete.
#include "infer/sequence/stop.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"

namespace dsmoe::infer {
namespace {

struct Shown {
  std::string text, found;
};

// The text in pieces of `size` bytes. What is shown must always be a beginning of `expected`.
Shown show(const std::vector<std::string>& stops, const std::string& text, std::size_t size,
           const std::string& expected) {
  StopStrings filter(stops);
  std::string shown;
  for (std::size_t at = 0; at < text.size(); at += size) {
    shown += filter.push(std::string_view(text).substr(at, size));
    EXPECT_TRUE(expected.starts_with(shown)) << shown;
  }
  shown += filter.finish();
  return {shown, filter.found()};
}

struct Case {
  std::vector<std::string> stops;
  std::string text, shown, found;
};

TEST(StopStrings, CutsBeforeTheStopWhateverThePieces) {
  const std::vector<Case> cases{
      {{"END"}, "hello END more", "hello ", "END"},
      {{"END"}, "hello EN more", "hello EN more", ""},
      {{"END"}, "EEND", "E", "END"},
      {{"END"}, "hello EN", "hello EN", ""},
      {{"aab"}, "aaab", "a", "aab"},
      {{"abcd", "bc"}, "xabcd", "xa", "bc"},  // the one that completes first
      {{"cd", "bcd"}, "abcd", "a", "bcd"},    // of two that complete together the longer
      {{"\n\n"}, "a\nb\n\nc", "a\nb", "\n\n"},
      {{"\xE2\x82\xAC"}, "5\xE2\x82\xAC", "5", "\xE2\x82\xAC"},
      {{"abab"}, "abaabab", "aba", "abab"},
      {{}, "anything", "anything", ""},
      {{"x"}, "x", "", "x"}};
  for (const Case& c : cases) {
    for (std::size_t size = 1; size <= c.text.size(); ++size) {
      const Shown shown = show(c.stops, c.text, size, c.shown);
      EXPECT_EQ(shown.text, c.shown) << c.text << " in pieces of " << size;
      EXPECT_EQ(shown.found, c.found);
    }
  }
}

TEST(StopStrings, HoldsBackOnlyWhatCouldBecomeOne) {
  StopStrings filter({"END"});
  EXPECT_EQ(filter.push("one E"), "one ");
  EXPECT_EQ(filter.push("N"), "");
  EXPECT_EQ(filter.push("O"), "ENO");
  EXPECT_FALSE(filter.stopped());
  EXPECT_EQ(filter.push("END of it"), "");
  EXPECT_TRUE(filter.stopped());
  EXPECT_EQ(filter.push("more"), "");
  EXPECT_EQ(filter.finish(), "");
}

// The plain definition, to compare with: all ends of the text, all beginnings of stop strings.
Shown expected_of(const std::vector<std::string>& stops, const std::string& text) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::string found;
    for (const std::string& stop : stops) {
      if (text.substr(0, end).ends_with(stop) && stop.size() > found.size()) found = stop;
    }
    if (!found.empty()) return {text.substr(0, end - found.size()), found};
  }
  return {text, ""};
}

TEST(StopStrings, FindsWhatTheDefinitionFindsInRandomText) {
  std::mt19937 random(3);
  const auto draw = [&](std::size_t length) {
    std::string text;
    for (std::size_t i = 0; i < length; ++i) text += static_cast<char>('a' + random() % 2);
    return text;
  };
  int num_found = 0;
  for (int i = 0; i < 3000; ++i) {
    std::vector<std::string> stops;
    for (auto n = 1 + random() % 3; n > 0; --n) stops.push_back(draw(1 + random() % 7));
    const std::string text = draw(random() % 24);
    const Shown expected = expected_of(stops, text);
    const Shown shown = show(stops, text, 1 + random() % 4, expected.text);
    ASSERT_EQ(shown.text, expected.text) << text << " without " << stops[0];
    ASSERT_EQ(shown.found, expected.found) << text;
    num_found += expected.found.empty() ? 0 : 1;
  }
  EXPECT_GT(num_found, 500);
  EXPECT_LT(num_found, 2900);
}

TEST(StopStrings, RefusesEmptyAndTooMany) {
  EXPECT_THROW(StopStrings({""}), Error);
  EXPECT_THROW(StopStrings({std::string(2000, 'x')}), Error);
  EXPECT_THROW(StopStrings(std::vector<std::string>(65, "a")), Error);
}

}  // namespace
}  // namespace dsmoe::infer

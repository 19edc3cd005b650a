// What the goldens do not say: options, limits, time, threads, and the parts by themselves.
#include "text/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "text/pattern/regex.h"
#include "text/tokenizer/byte_alphabet.h"
#include "text/unicode.h"

namespace dsmoe::text {
namespace {

using Ids = std::vector<std::int32_t>;

std::string testdata(const std::string& name) {
  return std::string(DSMOE_SOURCE_DIR) + "/src/text/testdata/" + name;
}

TEST(ByteAlphabet, IsAOneToOneMapOfAllBytes) {
  std::string all;
  for (int b = 0; b < 256; ++b) all.push_back(static_cast<char>(b));
  EXPECT_EQ(from_byte_symbols(to_byte_symbols(all)), all);
  EXPECT_EQ(to_byte_symbols(" the\n"), "\u0120the\u010A");
  EXPECT_EQ(from_byte_symbols("\u4E2D"), std::nullopt);
}

TEST(Regex, LimitsEndAnExplosion) {
  const Regex regex("(?:a|aa|a?a)+$", "pattern");
  RegexScratch scratch;
  Span match;
  EXPECT_THROW(regex.find(std::string(5000, 'a') + "b", 0, scratch, match), Error);
  EXPECT_TRUE(regex.find("aaaa", 0, scratch, match));
}

// \s+$ fails at every character of a run that something follows: 10^12 steps if each were tried,
// which the suite's limit of time does not allow.
TEST(Regex, AFailingSearchOverALongRunIsLinear) {
  const Regex regex("\\s+$", "pattern");
  RegexScratch scratch;
  Span match;
  const std::string text = std::string(2'000'000, ' ') + "1";
  EXPECT_FALSE(regex.find(text, 0, scratch, match));
  EXPECT_FALSE(regex.find(text, 1'000'000, scratch, match));
  EXPECT_TRUE(regex.find(text + "  ", 1'000'000, scratch, match));
  EXPECT_EQ(match.begin, 2'000'001U);
}

// \s*x starts a match at an x that no space precedes.
TEST(Regex, ARepeatInFrontMayBeEmpty) {
  RegexScratch scratch;
  Span match;
  for (const char* pattern : {"\\s*x", "\\s{0,}x", "\\s*+x", "\\s*?x", "x*x"}) {
    const Regex regex(pattern, "pattern");
    ASSERT_TRUE(regex.find("ax", 0, scratch, match)) << pattern;
    EXPECT_EQ(match.begin, 1U) << pattern;
    EXPECT_EQ(match.end, 2U) << pattern;
  }
  const Regex regex("\\s*x", "pattern");
  ASSERT_TRUE(regex.find("a  xx", 0, scratch, match));
  EXPECT_EQ(match.begin, 1U);
  const std::string run = std::string(2'000'000, ' ') + "1";
  EXPECT_FALSE(regex.find(run, 0, scratch, match));
}

TEST(Regex, AnAtomicGroupKeepsItsFirstAlternative) {
  RegexScratch scratch;
  Span match;
  EXPECT_FALSE(Regex("(?>\\S*\\S|a)a", "pattern").find("baa", 0, scratch, match));
}

TEST(Regex, ARepeatGivesBackToWhatFollowsAnOptionalGroup) {
  RegexScratch scratch;
  Span match;
  EXPECT_TRUE(Regex("b\\s*(?:a)?+[^c]", "pattern").find("b\nc", 0, scratch, match));
}

// Only a class takes the case of its letters from (?i), and only there.
TEST(Regex, LettersOfOneCaseOutsideOfIgnoredCase) {
  RegexScratch scratch;
  Span match;
  EXPECT_TRUE(
      Regex("(?i:'s)|(?i:a(?-i:[\\p{Lu}]))[\\p{Ll}]", "pattern").find("ABc", 0, scratch, match));
}

TEST(Unicode, RecentCodePointsAreLetters) {
  EXPECT_TRUE(is_recent(0x31350));
  EXPECT_FALSE(is_recent(0x4E00));
  EXPECT_FALSE(is_recent('a'));
  const Regex letter("\\p{L}", "pattern");
  RegexScratch scratch;
  Span match;
  scratch.has_recent = true;
  EXPECT_TRUE(letter.find("\U00031350", 0, scratch, match));
  EXPECT_FALSE(letter.find("\U0001CC00", 0, scratch, match));  // a symbol
}

TEST(Tokenizer, SpecialTokensInTextCanBePlainText) {
  const Tokenizer tokenizer = Tokenizer::from_file(testdata("deepseek.json"));
  const std::int32_t end = tokenizer.token_to_id("<|end|>").value();
  const auto parsed = tokenizer.encode("a<|end|>", {.add_special = AddSpecial::no});
  const auto literal = tokenizer.encode(
      "a<|end|>", {.add_special = AddSpecial::no, .parse_special = ParseSpecial::no});
  EXPECT_EQ(parsed.back(), end);
  EXPECT_EQ(std::count(literal.begin(), literal.end(), end), 0);
  EXPECT_EQ(tokenizer.decode(literal), "a<|end|>");
  EXPECT_EQ(tokenizer.decode(parsed, {.skip_special = SkipSpecial::yes}), "a");
  EXPECT_TRUE(tokenizer.is_special(end));
}

TEST(Tokenizer, LooksUpTokensBothWays) {
  const Tokenizer tokenizer = Tokenizer::from_file(testdata("gpt2.json"));
  const std::int32_t id = tokenizer.token_to_id("\u0120the").value();
  EXPECT_EQ(tokenizer.id_to_token(id), "\u0120the");
  EXPECT_EQ(tokenizer.id_to_bytes(id), " the");
  EXPECT_EQ(tokenizer.token_to_id("no such token"), std::nullopt);
  EXPECT_EQ(tokenizer.id_to_bytes(-1), std::nullopt);
  EXPECT_EQ(tokenizer.id_to_bytes(tokenizer.vocab_size()), std::nullopt);
  EXPECT_TRUE(tokenizer.id_to_bytes(tokenizer.vocab_size() - 1).has_value());
  EXPECT_EQ(tokenizer.decode(Ids{-5, id, 1 << 30}), " the");  // unused ids decode to nothing
}

TEST(Tokenizer, StreamingHoldsAnUnfinishedCharacterBack) {
  const Tokenizer tokenizer = Tokenizer::from_file(testdata("llama.json"));
  const auto byte = [&](const char* token) { return tokenizer.token_to_id(token).value(); };
  StreamDecoder stream(tokenizer, {.ill_formed = IllFormed::replace});
  EXPECT_EQ(stream.push(byte("<0xE4>")), "");
  EXPECT_EQ(stream.push(byte("<0xBD>")), "");
  EXPECT_EQ(stream.push(byte("<0xA0>")), "\u4F60");
  EXPECT_EQ(stream.push(byte("<0xF0>")), "");
  EXPECT_EQ(stream.push(byte("<0x41>")),
            "\uFFFD"
            "A");
  EXPECT_EQ(stream.push(byte("<0xC3>")), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
  EXPECT_EQ(stream.push(byte("<0x41>")), "A");  // ready for another text
}

// A run that quadratic merging could not finish: 10^11 steps.
TEST(Tokenizer, LongRunsTakeLinearTime) {
  for (const char* kind : {"deepseek", "gpt2", "llama", "metaspace"}) {
    const Tokenizer tokenizer = Tokenizer::from_file(testdata(std::string(kind) + ".json"));
    for (const std::string unit : {"a", " ", "\n", "1", "the ", "\u4E2D", "\xFF"}) {
      std::string text;
      while (text.size() < 300'000) text += unit;
      const Ids ids = tokenizer.encode(text + "1", {.add_special = AddSpecial::no});
      EXPECT_GT(ids.size(), 1U);
    }
  }
}

// Runs of white space that every match would walk again: 10^12 steps.
TEST(Tokenizer, StrippingTakesLinearTime) {
  for (const char* strips : {R"("lstrip": true)", R"("rstrip": true)"}) {
    const Tokenizer tokenizer = Tokenizer::from_json(
        std::string(R"({"added_tokens": [{"id": 1, "content": " ", "normalized": false, )") +
            strips + R"(}], "model": {"type": "BPE", "vocab": {"a": 0, " ": 1}, "merges": []}})",
        "file.json");
    EXPECT_EQ(tokenizer.encode(std::string(2'000'000, ' ') + "a").size(), 2'000'001U) << strips;
  }
}

TEST(Tokenizer, ThreadsShareOne) {
  const Tokenizer tokenizer = Tokenizer::from_file(testdata("deepseek.json"));
  std::vector<std::string> texts;
  for (int i = 0; i < 200; ++i)
    texts.push_back("text " + std::to_string(i * 7919) + " \u4E2D\u6587 it's");
  std::vector<Ids> expected;
  for (const std::string& text : texts) expected.push_back(tokenizer.encode(text));
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < texts.size(); ++i) {
        wrong[t] += tokenizer.encode(texts[i]) == expected[i] ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

// Broken bytes with no token in the vocabulary become U+FFFD, as errors="replace" would make them.
TEST(Tokenizer, BytesWithoutATokenAreReplaced) {
  const Tokenizer deepseek = Tokenizer::from_file(testdata("deepseek.json"));  // lacks F5..FF
  const EncodeOptions plain{.add_special = AddSpecial::no};
  EXPECT_EQ(deepseek.encode("a\xFF"
                            "b",
                            plain),
            deepseek.encode("a\uFFFDb", plain));
  EXPECT_EQ(deepseek.decode(deepseek.encode("a\xE4\xBD"
                                            "b",
                                            plain)),
            "a\xE4\xBD"
            "b");
}

constexpr std::string_view kIgnoreMerges = R"({"model": {"type": "BPE", "ignore_merges": true,
  "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4}, "merges": [["a", "b"]]}, "decoder": {"type": "Fuse"}})";

TEST(Tokenizer, IgnoreMergesTakesWholeWords) {
  const Tokenizer tokenizer = Tokenizer::from_json(kIgnoreMerges, "file.json");
  EXPECT_EQ(tokenizer.encode("abc"), Ids{4});
  EXPECT_EQ(tokenizer.encode("abcc"), (Ids{3, 2, 2}));
  EXPECT_EQ(tokenizer.encode("axb"),
            Ids{3});  // unknown and no unk_token: dropped, and neighbours meet
}

TEST(Tokenizer, NoDecoderJoinsWithSpaces) {
  const Tokenizer tokenizer = Tokenizer::from_json(
      R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}})", "file.json");
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("ab")), "a b");
}

// Gemma's file lists runs of spaces as added tokens too; the oracle decodes those as any other
// token.
TEST(Tokenizer, AddedTokensGoThroughTheDecoder) {
  const auto file = [](const std::string& decoder) {
    return R"({"added_tokens": [{"id": 2, "content": "\u2581\u2581", "normalized": false}],
      "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
      "model": {"type": "BPE", "vocab": {"a": 0, "\u2581": 1, "\u2581\u2581": 2},
                "merges": [["\u2581", "\u2581"]]}, "decoder": )" +
           decoder + "}";
  };
  const Tokenizer replacing = Tokenizer::from_json(
      file(R"({"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "})"), "file.json");
  EXPECT_EQ(replacing.encode("a  a"), (Ids{0, 2, 0}));
  EXPECT_EQ(replacing.decode(Ids{0, 2, 0}), "a  a");
  EXPECT_EQ(replacing.decode(Ids{2, 0}), "  a");
  const Tokenizer metaspace = Tokenizer::from_json(
      file(R"({"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"})"),
      "file.json");
  EXPECT_EQ(metaspace.decode(Ids{0, 2, 0}), "a  a");
  EXPECT_EQ(metaspace.decode(Ids{2, 0}), "a");  // at the start it is the prefix
}

// A token of white space that strips both sides takes a whole run; the rest of the run is no match.
TEST(Tokenizer, StrippedWhiteSpaceIsNotMatchedAgain) {
  const Tokenizer tokenizer = Tokenizer::from_json(
      R"({"added_tokens": [{"id": 1, "content": " ", "lstrip": true, "rstrip": true,
      "normalized": false}], "model": {"type": "BPE", "vocab": {"a": 0, " ": 1}, "merges": []}})",
      "file.json");
  EXPECT_EQ(tokenizer.encode("a   a"), (Ids{0, 1, 0}));
}

// Each replacement doubles the text: 64 of them would not fit any memory.
TEST(Tokenizer, ANormalizerThatExplodesIsStopped) {
  std::string steps;
  for (int i = 0; i < 60; ++i) {
    steps += R"({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"},)";
  }
  steps.pop_back();
  const Tokenizer tokenizer =
      Tokenizer::from_json(R"({"normalizer": {"type": "Sequence", "normalizers": [)" + steps +
                               R"(]}, "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})",
                           "file.json");
  EXPECT_THROW(tokenizer.encode("a"), Error);
}

}  // namespace
}  // namespace dsmoe::text

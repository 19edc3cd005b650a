#include "constrain/restriction.h"

#include <gtest/gtest.h>

#include <random>

#include "constrain/test_support.h"

namespace dsmoe::constrain {
namespace {

std::shared_ptr<const Restriction> restriction(RestrictionRules rules) {
  return std::make_shared<const Restriction>(std::move(rules), test_vocabulary());
}

// Tokens drawn from those that may come next.
std::string random_text(const std::shared_ptr<const Restriction>& rules, uint32_t seed,
                        int length) {
  std::mt19937 random(seed);
  Restrained answer(rules);
  TokenBits bits;
  std::string text;
  for (int i = 0; i < length; ++i) {
    answer.allowed(bits);
    std::vector<int32_t> tokens;
    for (int32_t t = 0; t < test_vocabulary()->size(); ++t) {
      if (has_token(bits, t)) tokens.push_back(t);
    }
    if (tokens.empty()) return text;
    const int32_t token = tokens[random() % tokens.size()];
    text += test_vocabulary()->bytes(token);
    answer.take(token);
  }
  return text;
}

TEST(Restriction, NoTextHoldsAWordHoweverItIsCut) {
  const std::vector<std::string> words{"ab", "c", "the", "\"name\"", "日本", "123", "}}", "\n "};
  const auto rules = restriction({.no_texts = words});
  const auto free = restriction({});
  int seen = 0;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const std::string text = random_text(rules, seed, 2000);
    EXPECT_GT(text.size(), 1000u);
    const std::string other = random_text(free, seed, 2000);
    for (const std::string& word : words) {
      EXPECT_EQ(text.find(word), std::string::npos) << word;
      seen += other.find(word) != std::string::npos ? 1 : 0;
    }
  }
  EXPECT_GT(seen, 100);  // without the rules they come
}

// Nothing is left out that completes none of the words: beside a plain search.
TEST(Restriction, LeavesOutNothingElse) {
  const std::vector<std::string> words{"abcab", "ab", "0.55", "[[", "}, "};
  const auto rules = restriction({.no_texts = words});
  TokenBits bits;
  for (const std::string end : {"", "a", "abca", "xa", "0.", "0.5", "[", "}", "},", "[1"}) {
    rules->allowed(end, bits);
    for (int32_t t = 0; t < test_vocabulary()->size(); ++t) {
      const std::string text = end + std::string(test_vocabulary()->bytes(t));
      bool completes = false;
      for (const std::string& word : words) {
        // A word that ends in the token.
        for (std::size_t at = text.find(word); at != std::string::npos;
             at = text.find(word, at + 1)) {
          completes = completes || at + word.size() > end.size();
        }
      }
      EXPECT_EQ(has_token(bits, t), !completes) << '"' << end << "\" " << t;
    }
  }
}

TEST(Restriction, OnlyTheListedTokens) {
  TokenBits bits;
  restriction({.only_tokens = {'a', 'b', 'c'}, .no_texts = {"b", "ca"}})->allowed("c", bits);
  for (int32_t t = 0; t < test_vocabulary()->size(); ++t) {
    EXPECT_EQ(has_token(bits, t), t == 'c') << t;
  }
}

}  // namespace
}  // namespace dsmoe::constrain

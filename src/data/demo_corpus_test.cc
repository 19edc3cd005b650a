// The embedded corpus: determinism, unambiguity, exact floor, right sums, held-out sums.
#include "data/demo_corpus.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "data/demo_domains.h"
#include "data/demo_grammar.h"
#include "data/test_support.h"

namespace dsmoe::data {
namespace {

using testing::error_of;

TEST(DemoCorpus, IsAFunctionOfSeedAndIndex) {
  const DemoCorpus a(1), b(1), c(2);
  int differences = 0;
  for (uint64_t i = 0; i < 200; ++i) {
    EXPECT_EQ(a.document(i).text, b.document(i).text);
    differences += a.document(i).text != c.document(i).text ? 1 : 0;
  }
  EXPECT_GT(differences, 190);
  EXPECT_NE(a.document(0).text, a.document(kDemoValidation).text);
  // Part of every demo's result: a change here changes them all.
  EXPECT_EQ(DemoCorpus(7).document(7).text,
            "Add 57 + 87: ones 7 + 7 = 14, tens 5 + 8 + 1 = 14, answer 144.");
}

// Reading uses the same grammar and refuses a text that two options fit.
TEST(DemoCorpus, EveryTextCanBeReadBackInOneWay) {
  const DemoCorpus corpus(3);
  for (uint64_t i = 0; i < 5000; ++i) {
    const DemoDocument written = corpus.document(i);
    const DemoDocument read = corpus.measure(written.text);
    EXPECT_EQ(read.domain, written.domain);
    EXPECT_EQ(read.nats, written.nats) << written.text;
  }
}

TEST(DemoCorpus, TextsOutsideTheGrammarAreRefused) {
  const DemoCorpus corpus(3);
  EXPECT_NE(error_of([&] { corpus.measure("Hello"); }), "");
  EXPECT_NE(error_of([&] { corpus.measure(""); }), "");
  for (uint64_t i = 0; i < 50; ++i) {
    const std::string text = corpus.document(i).text;
    EXPECT_NE(error_of([&] { corpus.measure(text + "x"); }), "");
    EXPECT_NE(error_of([&] { corpus.measure(text.substr(0, text.size() - 1)); }), "");
  }
  const Addition held_out = corpus.held_out_additions()[0];
  EXPECT_NE(error_of([&] { corpus.measure(addition_text(held_out)); }), "");
}

// The probabilities that the floor is made of are those with which texts really come.
TEST(DemoCorpus, NatsMatchTheFrequencies) {
  const DemoCorpus corpus(5);
  constexpr int kDocuments = 60000;
  std::map<std::string, int> counts;
  std::map<DemoDomain, int> domains;
  for (uint64_t i = 0; i < kDocuments; ++i) {
    const DemoDocument document = corpus.document(i);
    ++domains[document.domain];
    if (document.text.starts_with("def count(")) ++counts[document.text];
  }
  ASSERT_EQ(counts.size(), 32u);  // 4 variables x 8 ends
  double statistic = 0;
  for (const auto& [text, count] : counts) {
    const double expected = kDocuments * std::exp(-corpus.measure(text).nats);
    statistic += (count - expected) * (count - expected) / expected;
  }
  EXPECT_LT(statistic, 32 + 5 * 8);
  const double expected_stories = kDocuments * 0.09;
  EXPECT_NEAR(domains[DemoDomain::story], expected_stories, 5 * std::sqrt(expected_stories));
}

// By hand: domain 42 %, one of 90 numbers, one of its partners.
TEST(DemoCorpus, FloorOfAnAdditionIsExact) {
  const DemoCorpus corpus(3);
  int partners = 0;
  for (int b = 10; b <= 99; ++b) partners += corpus.is_held_out({47, b}) ? 0 : 1;
  int b = 38;
  while (corpus.is_held_out({47, b})) ++b;
  const double expected = std::log(100.0 / 42) + std::log(90.0) + std::log(partners);
  EXPECT_NEAR(corpus.measure(addition_text({47, b})).nats, expected, 1e-12);
}

TEST(DemoCorpus, AdditionsAreRight) {
  EXPECT_EQ(addition_text({47, 38}),
            "Add 47 + 38: ones 7 + 8 = 15, tens 4 + 3 + 1 = 8, answer 85.");
  EXPECT_EQ(addition_text({21, 90}), "Add 21 + 90: ones 1 + 0 = 1, tens 2 + 9 = 11, answer 111.");
  for (int a = 10; a <= 99; ++a) {
    for (int b = 10; b <= 99; ++b) {
      const std::string text = addition_text({a, b});
      EXPECT_TRUE(text.starts_with(addition_prompt({a, b})));
      EXPECT_EQ(read_answer(text), a + b);
      int ones[3], tens[3], end = 0;
      const bool carry = a % 10 + b % 10 >= 10;
      std::sscanf(text.c_str() + addition_prompt({a, b}).size(),
                  carry ? " ones %d + %d = %d, tens %d + %d + 1 = %d, answer %*d.%n"
                        : " ones %d + %d = %d, tens %d + %d = %d, answer %*d.%n",
                  &ones[0], &ones[1], &ones[2], &tens[0], &tens[1], &tens[2], &end);
      ASSERT_EQ(addition_prompt({a, b}).size() + static_cast<size_t>(end), text.size()) << text;
      EXPECT_EQ(ones[0] + ones[1], ones[2]);
      EXPECT_EQ(tens[0] + tens[1] + (carry ? 1 : 0), tens[2]);
      EXPECT_EQ(10 * tens[0] + ones[0], a);
      EXPECT_EQ(10 * tens[1] + ones[1], b);
    }
  }
}

TEST(DemoCorpus, HeldOutAdditionsNeverAppear) {
  const DemoCorpus corpus(3);
  const auto& held_out = corpus.held_out_additions();
  ASSERT_EQ(held_out.size(), 500u);
  std::set<std::pair<int, int>> unordered;
  std::set<std::string> forbidden;
  int swapped = 0;
  for (const auto& [a, b] : held_out) {
    EXPECT_TRUE(a >= 10 && a <= 99 && b >= 10 && b <= 99);
    unordered.insert({std::min(a, b), std::max(a, b)});
    forbidden.insert(fmt::format("{} + {}", a, b));
    forbidden.insert(fmt::format("{} + {}", b, a));
    swapped += a > b ? 1 : 0;
  }
  EXPECT_EQ(unordered.size(), 500u);
  EXPECT_NEAR(swapped, 245, 60);
  int additions = 0;
  for (uint64_t i = 0; i < 20000; ++i) {
    for (const uint64_t index : {i, kDemoValidation + i}) {
      const std::string text = corpus.document(index).text;
      const size_t plus = text.find(" + ");
      if (plus == std::string::npos || plus < 2 || !text.starts_with("Add ")) continue;
      ++additions;
      EXPECT_FALSE(forbidden.contains(text.substr(plus - 2, 7))) << text;
    }
  }
  EXPECT_GT(additions, 10000);
  EXPECT_NE(DemoCorpus(4).held_out_additions(), held_out);
}

TEST(DemoCorpus, AnswersAreReadFromWhateverAModelWrites) {
  EXPECT_EQ(read_answer("Add 1: answer 7, no, answer 12."), 12);
  EXPECT_EQ(read_answer("answer 99999999999999999999"), 9999);
  EXPECT_EQ(read_answer("answer x"), std::nullopt);
  EXPECT_EQ(read_answer("answer "), std::nullopt);
  EXPECT_EQ(read_answer(""), std::nullopt);
}

// What stands before `mark`; both are taken off `rest`.
std::string take(std::string_view& rest, std::string_view mark) {
  const size_t at = rest.find(mark);
  EXPECT_NE(at, std::string_view::npos) << "no \"" << mark << "\" in " << rest;
  if (at == std::string_view::npos) return "";
  const std::string before(rest.substr(0, at));
  rest.remove_prefix(at + mark.size());
  return before;
}

TEST(DemoCorpus, DialoguesAnswerFromTheirStory) {
  const DemoCorpus corpus(3);
  int asked = 0;
  for (uint64_t i = 0; i < 3000; ++i) {
    const DemoDocument document = corpus.document(i);
    if (document.domain != DemoDomain::dialogue) continue;
    ++asked;
    std::string_view rest = document.text;
    take(rest, "User: ");
    const std::string hero = take(rest, " the "), animal = take(rest, " lived "),
                      home = take(rest, ". One ");
    const std::string time = take(rest, " " + hero + " found a "), color = take(rest, " "),
                      thing = take(rest, " ");
    const std::string place = take(rest, " and gave it to "), other = take(rest, " the "),
                      other_animal = take(rest, ". ");
    const std::string question = take(rest, "\n\nAssistant: "), answer(rest);
    const std::map<std::string, std::string> expected = {
        {"Who found the " + thing + "?", hero + " the " + animal + " found the " + thing + "."},
        {"Who has the " + thing + " now?",
         other + " the " + other_animal + " has the " + thing + " now."},
        {"What did " + hero + " find?", hero + " found a " + color + " " + thing + "."},
        {"What color was the " + thing + "?", "The " + thing + " was " + color + "."},
        {"Where did " + hero + " live?", hero + " lived " + home + "."},
        {"Where was the " + thing + "?", "The " + thing + " was " + place + "."},
        {"When did " + hero + " find the " + thing + "?", "One " + time + "."},
    };
    ASSERT_TRUE(expected.contains(question)) << document.text;
    EXPECT_EQ(answer, expected.at(question));
    EXPECT_NE(hero, other);
    EXPECT_NE(animal, other_animal);
  }
  EXPECT_GT(asked, 400);
}

TEST(DemoCorpus, ProgramsPrintWhatTheySay) {
  const DemoCorpus corpus(3);
  int compared = 0;
  for (uint64_t i = 0; i < 5000; ++i) {
    const std::string text = corpus.document(i).text;
    for (const std::string name : {"larger", "smaller"}) {
      const size_t at = text.find("print(" + name + "(");
      if (at == std::string::npos) continue;
      ++compared;
      int a = 0, b = 0, printed = -1;
      std::sscanf(text.c_str() + at + name.size() + 7, "%d, %d))\n# %d", &a, &b, &printed);
      EXPECT_EQ(printed, name == "larger" ? std::max(a, b) : std::min(a, b)) << text;
    }
  }
  EXPECT_GT(compared, 200);
}

TEST(DemoCorpus, DomainsTakeComparableSharesOfTheText) {
  const DemoCorpus corpus(3);
  std::map<DemoDomain, double> bytes;
  double total = 0;
  for (uint64_t i = 0; i < 5000; ++i) {
    const DemoDocument document = corpus.document(i);
    bytes[document.domain] += static_cast<double>(document.text.size());
    total += static_cast<double>(document.text.size());
  }
  for (const DemoDomain domain : kDemoDomains) {
    EXPECT_GT(bytes[domain] / total, 0.08) << to_string(domain);
    EXPECT_LT(bytes[domain] / total, 0.35) << to_string(domain);
    EXPECT_TRUE(demo_prompt(domain).starts_with(domain_openings()[static_cast<size_t>(domain)]));
  }
}

TEST(DemoGrammar, AnAmbiguousChoiceIsCaught) {
  ReadingAuthor reader("caterpillar");
  const std::vector<std::string> options = {"cat", "caterpillar"};
  EXPECT_NE(error_of([&] { reader.pick(options); }).find("ambiguous"), std::string::npos);
}

}  // namespace
}  // namespace dsmoe::data

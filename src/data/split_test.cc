// Validation by document, and by the last tokens when documents are few.
#include "data/split.h"

#include <gtest/gtest.h>

#include <vector>

#include "data/test_support.h"

namespace dsmoe::data {
namespace {

// Documents of `length` tokens, all different.
MemoryCorpus corpus_of(int num_documents, int length) {
  MemoryCorpus corpus(100000, {"s"});
  for (int d = 0; d < num_documents; ++d) {
    TokenDocument document;
    document.tokens.assign(static_cast<size_t>(length), d);
    corpus.add(document);
  }
  return corpus;
}

int64_t count_validation(const DocumentSplit& split) {
  int64_t count = 0;
  for (int64_t d = 0; d < split.corpus().num_documents(); ++d)
    count += split.validation(d).length() > 0 ? 1 : 0;
  return count;
}

TEST(DocumentSplit, TakesAboutTheFractionAndWholeDocuments) {
  const MemoryCorpus corpus = corpus_of(10000, 3);
  const DocumentSplit split(corpus, {.fraction = 0.05, .seed = 1});
  EXPECT_TRUE(split.by_document());
  EXPECT_NEAR(static_cast<double>(count_validation(split)), 500, 5 * 21.8);
  for (int64_t d = 0; d < corpus.num_documents(); ++d) {
    const TokenRange train = split.training(d), valid = split.validation(d);
    EXPECT_EQ(train.length() + valid.length(), 3);
    EXPECT_TRUE(train.length() == 0 || valid.length() == 0);
  }
}

TEST(DocumentSplit, DependsOnSeedAndContentOnly) {
  const MemoryCorpus corpus = corpus_of(1000, 3);
  MemoryCorpus reversed(100000, {"s"});
  for (int d = 999; d >= 0; --d) reversed.add({.tokens = testing::tokens_of(corpus, d)});
  const DocumentSplit a(corpus, {.seed = 1}), b(reversed, {.seed = 1}), c(corpus, {.seed = 2});
  int differences = 0;
  for (int64_t d = 0; d < 1000; ++d) {
    EXPECT_EQ(a.training(d).length(), b.training(999 - d).length());
    differences += a.training(d).length() != c.training(d).length() ? 1 : 0;
  }
  EXPECT_GT(differences, 20);
}

TEST(DocumentSplit, CopiesOfADocumentStayTogether) {
  MemoryCorpus corpus(100000, {"s"});
  for (int d = 0; d < 2000; ++d) corpus.add({.tokens = {d % 200, 5, 6}});
  const DocumentSplit split(corpus, {.fraction = 0.2, .seed = 3});
  for (int64_t d = 200; d < 2000; ++d) {
    EXPECT_EQ(split.training(d).length(), split.training(d % 200).length());
  }
  EXPECT_GT(count_validation(split), 0);
}

TEST(DocumentSplit, FewDocumentsAreCutAtTheLastTokens) {
  const MemoryCorpus corpus = corpus_of(19, 100);
  const DocumentSplit split(corpus, {.fraction = 0.05, .seed = 1});
  EXPECT_FALSE(split.by_document());
  int64_t train = 0;
  for (int64_t d = 0; d < 19; ++d) train += split.training(d).length();
  EXPECT_EQ(train, 1805);  // 95 % of 1900
  EXPECT_EQ(split.training(17).length(), 100);
  EXPECT_EQ(split.training(18).end, 5);
  EXPECT_EQ(split.validation(18).begin, 5);
  EXPECT_EQ(split.validation(18).end, 100);
  EXPECT_EQ(split.validation(0).length(), 0);
}

TEST(DocumentSplit, TwentyDocumentsAlwaysHaveBothSides) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const MemoryCorpus corpus = corpus_of(20, 10);
    const DocumentSplit split(corpus, {.fraction = 0.05, .seed = seed});
    int64_t train = 0, valid = 0;
    for (int64_t d = 0; d < 20; ++d) {
      train += split.training(d).length();
      valid += split.validation(d).length();
    }
    EXPECT_GT(train, 0);
    EXPECT_GT(valid, 0);
    EXPECT_EQ(train + valid, 200);
  }
}

TEST(DocumentSplit, FractionZeroKeepsEverythingForTraining) {
  for (const int count : {3, 100}) {
    const MemoryCorpus corpus = corpus_of(count, 10);
    const DocumentSplit split(corpus, {.fraction = 0, .seed = 1});
    EXPECT_EQ(count_validation(split), 0);
    EXPECT_EQ(split.training(count - 1).length(), 10);
  }
}

TEST(DocumentSplit, RefusesImpossibleFractions) {
  const MemoryCorpus corpus = corpus_of(30, 10);
  for (const double fraction : {-0.1, 1.0, 2.0, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_NE(testing::error_of([&] { DocumentSplit(corpus, {.fraction = fraction}); }), "")
        << fraction;
  }
}

}  // namespace
}  // namespace dsmoe::data

// Packed batches: targets, borders, order, random access, resumption.
#include "data/batches.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

#include "base/rng.h"
#include "data/test_support.h"

namespace dsmoe::data {
namespace {

using testing::error_of;

// Document d has length 1 + d * 7 % 45; token i of document d is 1000 * d + i (so tokens tell where
// they come from).
MemoryCorpus numbered_corpus(int num_documents, int longest = 45) {
  MemoryCorpus corpus(10'000'000, {"even", "odd"});
  for (int d = 0; d < num_documents; ++d) {
    TokenDocument document{.source = d % 2};
    for (int i = 0; i < 1 + d * 7 % longest; ++i) document.tokens.push_back(1000 * d + i);
    corpus.add(document);
  }
  return corpus;
}

void expect_well_formed(const PackedRow& row, const TokenCorpus& corpus, int64_t seq) {
  ASSERT_EQ(row.tokens.size(), static_cast<size_t>(seq));
  ASSERT_EQ(row.targets.size(), static_cast<size_t>(seq));
  int32_t at = 0;
  int64_t counted = 0;
  for (const Piece& piece : row.pieces) {
    ASSERT_EQ(piece.begin, at);
    ASSERT_GT(piece.length, 0);
    EXPECT_EQ(piece.source, corpus.source(piece.document));
    const std::vector<int32_t> document = testing::tokens_of(corpus, piece.document);
    for (int32_t i = 0; i < piece.length; ++i, ++at) {
      const size_t from = static_cast<size_t>(piece.document_begin + i),
                   slot = static_cast<size_t>(at);
      EXPECT_EQ(row.tokens[slot], document[from]);
      if (row.targets[slot] != kNoToken) {
        EXPECT_EQ(row.targets[slot], document.at(from + 1));
        ++counted;
      }
    }
  }
  EXPECT_EQ(row.num_tokens(), at);
  EXPECT_EQ(row.counted_targets, counted);
  EXPECT_GT(counted, 0);
  for (size_t i = static_cast<size_t>(at); i < row.tokens.size(); ++i) {
    EXPECT_EQ(row.tokens[i], kNoToken);
    EXPECT_EQ(row.targets[i], kNoToken);
  }
}

TEST(PackedBatches, EveryTargetOfAnEpochComesOnceAndNothingElse) {
  const MemoryCorpus corpus = numbered_corpus(300);
  const DocumentSplit split(corpus, {.fraction = 0.1, .seed = 1});
  for (const int64_t seq : {1, 8, 16, 64}) {
    std::multiset<int32_t> targets, expected;
    for (const SplitPart part : {SplitPart::training, SplitPart::validation}) {
      PackedBatches batches(split,
                            {.batch = 4, .seq = seq, .seed = 9, .part = part, .block_pieces = 50});
      const uint64_t rows = batches.rows_in_first_epoch();
      int64_t counted = 0;
      for (uint64_t r = 0; r < rows; ++r) {
        PackedRow row;
        batches.fill_row(r, row);
        expect_well_formed(row, corpus, seq);
        counted += row.counted_targets;
        for (const int32_t target : row.targets) {
          if (target != kNoToken) targets.insert(target);
        }
      }
      EXPECT_EQ(counted, batches.counted_targets());
    }
    for (int64_t d = 0; d < corpus.num_documents(); ++d) {
      for (int64_t i = 1; i < corpus.length(d); ++i)
        expected.insert(static_cast<int32_t>(1000 * d + i));
    }
    EXPECT_EQ(targets, expected) << seq;
  }
}

TEST(PackedBatches, LongDocumentsAreCutAndTheCutKeepsItsTarget) {
  MemoryCorpus corpus(100, {"s"});
  corpus.add({.tokens = {10, 11, 12, 13, 14, 15, 16, 17, 18, 19}});
  const DocumentSplit split(corpus, {.fraction = 0});
  PackedBatches batches(split, {.batch = 3, .seq = 4, .seed = 1});
  EXPECT_EQ(batches.num_pieces(), 3u);  // 9 inputs: 4, 4, 1
  Batch batch = batches.batch(0);
  std::map<int32_t, int32_t> target_of;
  for (const PackedRow& row : batch.rows) {
    for (size_t i = 0; i < row.tokens.size(); ++i) {
      if (row.tokens[i] != kNoToken) target_of[row.tokens[i]] = row.targets[i];
    }
  }
  ASSERT_EQ(target_of.size(), 9u);  // 19 is only a target
  for (const auto& [token, target] : target_of) EXPECT_EQ(target, token + 1);
}

TEST(PackedBatches, CutDocumentDoesNotLeakIntoValidation) {
  MemoryCorpus corpus(1000, {"s"});
  TokenDocument document;
  for (int i = 0; i < 100; ++i) document.tokens.push_back(i);
  corpus.add(document);
  const DocumentSplit split(corpus, {.fraction = 0.05});
  PackedBatches train(split, {.batch = 1, .seq = 16, .seed = 1});
  PackedBatches valid(split, {.batch = 1, .seq = 16, .seed = 1, .part = SplitPart::validation});
  EXPECT_EQ(train.counted_targets(), 94);
  EXPECT_EQ(valid.counted_targets(), 4);
  for (uint64_t r = 0; r < train.rows_in_first_epoch(); ++r) {
    const Batch batch = train.batch(r);
    for (const int32_t id : batch.rows[0].targets) EXPECT_LT(id, 95);
  }
  const Batch batch = valid.batch(0);
  for (const int32_t id : batch.rows[0].tokens) EXPECT_TRUE(id == kNoToken || id >= 95);
}

TEST(PackedBatches, AnyBatchIsTheSameInAnyOrderAndAfterAnyRestart) {
  const MemoryCorpus corpus = numbered_corpus(200);
  const DocumentSplit split(corpus, {.fraction = 0.05, .seed = 1});
  const BatchOptions options{.batch = 5, .seq = 32, .seed = 4, .block_pieces = 37};
  constexpr uint64_t kSteps = 200;  // several epochs
  PackedBatches straight(split, options);
  std::vector<Batch> all;
  for (uint64_t step = 0; step < kSteps; ++step) all.push_back(straight.batch(step));
  EXPECT_GT(all.back().epoch, 3u);
  const Rng rng{.seed = 1, .purpose = RngPurpose::test, .stream = 0};
  PackedBatches jumping(split, options);
  for (uint64_t i = 0; i < 100; ++i) {
    const uint64_t step = rng.below(i, kSteps);
    EXPECT_EQ(jumping.batch(step), all[step]) << step;
  }
  for (const uint64_t step : {uint64_t{0}, uint64_t{1}, uint64_t{57}, kSteps - 1}) {
    PackedBatches resumed(split, options);
    EXPECT_EQ(resumed.batch(step), all[step]) << step;
  }
}

TEST(PackedBatches, RowsDoNotDependOnTheBatchSize) {
  const MemoryCorpus corpus = numbered_corpus(100);
  const DocumentSplit split(corpus, {.fraction = 0});
  PackedBatches eights(split, {.batch = 8, .seq = 32, .seed = 4});
  PackedBatches twos(split, {.batch = 2, .seq = 32, .seed = 4});
  const Batch whole = eights.batch(3);
  for (size_t i = 0; i < 4; ++i) {
    const Batch part = twos.batch(12 + i);
    EXPECT_EQ(part.rows[0], whole.rows[2 * i]);
    EXPECT_EQ(part.rows[1], whole.rows[2 * i + 1]);
  }
}

TEST(PackedBatches, SeedAndEpochChangeTheOrder) {
  const MemoryCorpus corpus = numbered_corpus(500);
  const DocumentSplit split(corpus, {.fraction = 0});
  PackedBatches a(split, {.batch = 1, .seq = 64, .seed = 1}),
      b(split, {.batch = 1, .seq = 64, .seed = 2});
  EXPECT_NE(a.batch(0).rows[0].tokens, b.batch(0).rows[0].tokens);
  const uint64_t rows = a.rows_in_first_epoch();
  EXPECT_EQ(a.batch(rows - 1).epoch, 0u);
  EXPECT_EQ(a.batch(rows).epoch, 1u);
  EXPECT_NE(a.batch(rows).rows[0].tokens, a.batch(0).rows[0].tokens);
}

TEST(PackedBatches, RowsAreNearlyFull) {
  const MemoryCorpus corpus = numbered_corpus(2000);
  const DocumentSplit split(corpus, {.fraction = 0});
  PackedBatches batches(split, {.batch = 1, .seq = 128, .seed = 1});
  int64_t used = 0;
  const uint64_t rows = batches.rows_in_first_epoch();
  for (uint64_t r = 0; r < rows; ++r) used += batches.batch(r).num_tokens;
  EXPECT_GT(static_cast<double>(used), 0.97 * 128 * static_cast<double>(rows));
}

TEST(PackedBatches, MasksRemoveTargetsAndPiecesWithoutAny) {
  MemoryCorpus corpus(1000, {"s"});
  corpus.add({.tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9}, .counted = {1, 0, 0, 0, 0, 0, 0, 1, 1}});
  corpus.add({.tokens = {101, 102, 103}});
  corpus.add({.tokens = {201, 202}, .counted = {1, 0}});
  const DocumentSplit split(corpus, {.fraction = 0});
  PackedBatches batches(split, {.batch = 2, .seq = 4, .seed = 1});
  EXPECT_EQ(batches.counted_targets(), 4);
  ASSERT_EQ(batches.rows_in_first_epoch(), 2u);
  const Batch batch = batches.batch(0);
  EXPECT_EQ(batch.counted_targets, 4);
  std::multiset<int32_t> targets;
  for (const PackedRow& row : batch.rows) {
    expect_well_formed(row, corpus, 4);
    for (const int32_t id : row.tokens) EXPECT_TRUE(id != 1 && id != 201);
    for (const int32_t id : row.targets) {
      if (id != kNoToken) targets.insert(id);
    }
  }
  EXPECT_EQ(targets, (std::multiset<int32_t>{8, 9, 102, 103}));
}

TEST(PackedBatches, RefuseAPartWithoutTargets) {
  MemoryCorpus corpus(10, {"s"});
  corpus.add({.tokens = {1}});
  corpus.add({.tokens = {1, 2}, .counted = {1, 0}});
  const DocumentSplit split(corpus, {.fraction = 0});
  EXPECT_NE(
      error_of([&] { PackedBatches(split, {.batch = 1, .seq = 4}); }).find("no token to predict"),
      std::string::npos);
  EXPECT_NE(error_of([&] {
              PackedBatches(split, {.batch = 1, .seq = 4, .part = SplitPart::validation});
            }).find("validation"),
            std::string::npos);
  EXPECT_NE(error_of([&] { PackedBatches(split, {.batch = 0, .seq = 4}); }), "");
  EXPECT_NE(error_of([&] { PackedBatches(split, {.batch = 1, .seq = 0}); }), "");
}

TEST(PackedBatches, FillingKeepsItsMemory) {
  const MemoryCorpus corpus = numbered_corpus(200);
  const DocumentSplit split(corpus, {.fraction = 0});
  PackedBatches batches(split, {.batch = 3, .seq = 64, .seed = 1});
  Batch batch = batches.batch(0);
  const int32_t* tokens = batch.rows[2].tokens.data();
  const PackedRow* rows = batch.rows.data();
  for (uint64_t step = 1; step < 100; ++step) batches.fill(step, batch);
  EXPECT_EQ(batch.rows[2].tokens.data(), tokens);
  EXPECT_EQ(batch.rows.data(), rows);
}

}  // namespace
}  // namespace dsmoe::data

// Shares of rows, their order, resuming, validation rows.
#include "data/mixture.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/error.h"

namespace dsmoe::data {
namespace {

// Documents of `length` tokens: source s holds `documents[s]` of them.
MemoryCorpus corpus_of(const std::vector<int>& documents, int length) {
  std::vector<std::string> names;
  for (std::size_t s = 0; s < documents.size(); ++s) names.push_back("s" + std::to_string(s));
  MemoryCorpus corpus(1000, names);
  int32_t next = 0;
  for (std::size_t s = 0; s < documents.size(); ++s) {
    for (int d = 0; d < documents[s]; ++d) {
      TokenDocument document{.source = static_cast<int32_t>(s)};
      for (int t = 0; t < length; ++t) document.tokens.push_back(next++ % 1000);
      corpus.add(document);
    }
  }
  return corpus;
}

// What a run of weighted sources reads.
struct Mixed {
  Mixed(const TokenCorpus& corpus, const std::vector<double>& weights, double fraction = 0)
      : ranges(ranges_of_sources(corpus)) {
    splits.reserve(ranges.size());
    for (const CorpusRange& range : ranges) {
      splits.emplace_back(range, SplitOptions{.fraction = fraction, .seed = 1});
    }
    for (std::size_t i = 0; i < splits.size(); ++i) {
      parts.push_back({.split = &splits[i], .weight = weights[i]});
    }
  }
  std::vector<CorpusRange> ranges;
  std::vector<DocumentSplit> splits;
  std::vector<MixturePart> parts;
};

TEST(Turns, EveryPartHasItsShareAtEveryTime) {
  const std::vector<double> lists[] = {
      {1}, {0.7, 0.25, 0.05}, {3, 100, 100, 3, 10, 3}, {1, 100, 10, 1, 10, 1, 1, 3, 100, 3}};
  for (const std::vector<double>& weights : lists) {
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    Turns turns(weights);
    std::vector<double> had(weights.size(), 0);
    for (uint64_t turn = 0; turn < 5000; ++turn) {
      const Turns::Turn now = turns.at(turn);
      EXPECT_EQ(static_cast<double>(now.count), had[now.part]);
      ++had[now.part];
      for (std::size_t i = 0; i < weights.size(); ++i) {
        const double share = weights[i] / sum * static_cast<double>(turn + 1);
        ASSERT_LT(std::abs(had[i] - share), 1.00001) << "part " << i << " after turn " << turn;
      }
    }
  }
}

TEST(Turns, AnyOrderOfQuestionsHasTheSameAnswers) {
  const std::vector<double> weights{3, 1, 2};
  Turns all(weights), some(weights);
  std::vector<Turns::Turn> list;
  for (uint64_t turn = 0; turn < 100; ++turn) list.push_back(all.at(turn));
  for (const uint64_t turn : {90, 3, 3, 99, 0, 1, 57}) {
    EXPECT_EQ(some.at(turn).part, list[turn].part) << turn;
    EXPECT_EQ(some.at(turn).count, list[turn].count) << turn;
  }
}

TEST(Turns, AShareTooSmallToBeSeenIsAShare) {
  const std::vector<double> weights{1e12, 1e-3};
  EXPECT_EQ(Turns(weights).at(0).part, 0u);
}

TEST(MixedBatches, OnePartIsItsPackedBatches) {
  const MemoryCorpus corpus = corpus_of({40, 30}, 9);
  const DocumentSplit split(corpus, {.fraction = 0.2, .seed = 1});
  const BatchOptions options{.batch = 4, .seq = 16, .seed = 5};
  for (const SplitPart part : {SplitPart::training, SplitPart::validation}) {
    BatchOptions own = options;
    own.part = part;
    PackedBatches packed(split, own);
    const std::vector<MixturePart> parts{{.split = &split, .part = part}};
    MixedBatches mixed(parts, options);
    EXPECT_EQ(mixed.counted_targets(), packed.counted_targets());
    for (const uint64_t step : {0, 1, 2, 30, 7}) {
      Batch batch;
      mixed.fill(step, batch);
      EXPECT_EQ(batch, packed.batch(step)) << step;
    }
    EXPECT_EQ(mixed.first_rows(1000).size(), packed.rows_in_first_epoch());
    EXPECT_EQ(mixed.first_rows(3).size(), 3u);
  }
}

TEST(MixedBatches, RowsOfOneSourceInItsShare) {
  const MemoryCorpus corpus = corpus_of({200, 5}, 9);
  const Mixed mixed(corpus, {1, 3});
  MixedBatches batches(mixed.parts, {.batch = 8, .seq = 16, .seed = 5});
  EXPECT_EQ(batches.sources(), corpus.sources());
  std::vector<int> rows(2, 0);
  uint64_t epoch = 0;
  for (uint64_t step = 0; step < 20; ++step) {
    Batch batch;
    batches.fill(step, batch);
    for (const PackedRow& row : batch.rows) {
      for (const Piece& piece : row.pieces) EXPECT_EQ(piece.source, row.pieces[0].source);
      ++rows[static_cast<std::size_t>(row.pieces[0].source)];
    }
    epoch = batch.epoch;
  }
  EXPECT_EQ(rows, (std::vector<int>{40, 120}));  // the small source again and again
  EXPECT_EQ(epoch, 0u);                          // the large one is still read for the first time
  // Any step by itself is what it was in turn: nothing but its number need be saved.
  Batch before, again;
  batches.fill(13, before);
  MixedBatches(mixed.parts, {.batch = 8, .seq = 16, .seed = 5}).fill(13, again);
  EXPECT_EQ(before, again);
}

TEST(MixedBatches, ValidationReadsNoRowTwice) {
  const MemoryCorpus corpus = corpus_of({100, 30}, 9);
  Mixed mixed(corpus, {1, 1}, 0.2);
  for (MixturePart& part : mixed.parts) part.part = SplitPart::validation;
  MixedBatches batches(mixed.parts, {.batch = 8, .seq = 16, .seed = 5});
  const auto places = batches.first_rows(1000);
  std::vector<std::vector<uint64_t>> rows(2);
  for (const MixedBatches::Place& place : places) rows[place.part].push_back(place.row);
  for (std::size_t i = 0; i < 2; ++i) {
    PackedBatches packed(mixed.splits[i],
                         {.batch = 8, .seq = 16, .seed = 5, .part = SplitPart::validation});
    ASSERT_EQ(rows[i].size(), packed.rows_in_first_epoch());
    for (std::size_t r = 0; r < rows[i].size(); ++r) EXPECT_EQ(rows[i][r], r);
  }
  EXPECT_GT(rows[0].size(), rows[1].size());
}

TEST(MixedBatches, APartOfAlmostNothingIsNotWaitedFor) {
  const MemoryCorpus corpus = corpus_of({30, 100, 40}, 9);
  Mixed mixed(corpus, {1e12, 1, 2}, 0.2);
  for (MixturePart& part : mixed.parts) part.part = SplitPart::validation;
  MixedBatches batches(mixed.parts, {.batch = 8, .seq = 16, .seed = 5});
  std::vector<uint64_t> rows(3, 0);
  for (const MixedBatches::Place& place : batches.first_rows(1000)) ++rows[place.part];
  for (const uint64_t count : rows) EXPECT_GT(count, 0u);  // all of every part, within seconds
  EXPECT_GT(rows[1], rows[0]);
}

TEST(CorpusRange, IsItsDocuments) {
  const MemoryCorpus corpus = corpus_of({3, 0, 2}, 4);
  const std::vector<CorpusRange> ranges = ranges_of_sources(corpus);
  ASSERT_EQ(ranges.size(), 3u);
  EXPECT_EQ(ranges[0].num_documents(), 3);
  EXPECT_EQ(ranges[1].num_documents(), 0);
  EXPECT_EQ(ranges[2].num_tokens(), 8);
  EXPECT_EQ(all_tokens(ranges[2], 1), all_tokens(corpus, 4));
  EXPECT_EQ(ranges[2].source(0), 2);
  EXPECT_EQ(ranges[2].content_hash(0), corpus.content_hash(3));
  EXPECT_THROW(ranges[2].length(2), Error);
}

TEST(CorpusRange, SourcesThatDoNotLieTogetherAreRefused) {
  MemoryCorpus corpus(10, {"a", "b"});
  for (const int32_t source : {0, 1, 0}) corpus.add({.tokens = {1, 2}, .source = source});
  EXPECT_THROW(ranges_of_sources(corpus), Error);
}

}  // namespace
}  // namespace dsmoe::data

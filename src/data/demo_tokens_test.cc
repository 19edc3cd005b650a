// The demo's figures hang together: floor below trigram, domains as sources, every target counted.
#include "data/demo_tokens.h"

#include <gtest/gtest.h>

#include "data/batches.h"
#include "data/test_support.h"
#include "data/trigram.h"

namespace dsmoe::data {
namespace {

using testing::byte_encoder;
using testing::decode;
using testing::tokens_of;

TEST(DemoTokens, KeepTextDomainAndNats) {
  const DemoCorpus demo(3);
  const DemoTokens tokens = encode_demo(demo, {.first = 5, .count = 50}, byte_encoder());
  ASSERT_EQ(tokens.corpus.num_documents(), 50);
  double nats = 0;
  int64_t targets = 0;
  for (int64_t d = 0; d < 50; ++d) {
    const DemoDocument document = demo.document(5 + static_cast<uint64_t>(d));
    EXPECT_EQ(decode(tokens_of(tokens.corpus, d)), "<" + document.text + ">");
    EXPECT_EQ(tokens.corpus.sources()[static_cast<size_t>(tokens.corpus.source(d))],
              to_string(document.domain));
    nats += document.nats;
    targets += static_cast<int64_t>(document.text.size()) + 1;
  }
  EXPECT_DOUBLE_EQ(tokens.nats, nats);
  EXPECT_EQ(tokens.num_targets, targets);
  const DocumentSplit split(tokens.corpus, {.fraction = 0});
  EXPECT_EQ(PackedBatches(split, {.batch = 1, .seq = 64}).counted_targets(), targets);
}

TEST(DemoTokens, TheFloorIsWellBelowATrigramModel) {
  const DemoCorpus demo(3);
  const DemoTokens training = encode_demo(demo, {.count = 4000}, byte_encoder());
  const DemoTokens valid =
      encode_demo(demo, {.first = kDemoValidation, .count = 500}, byte_encoder());
  const TrigramModel::Score score = data::score(fit_trigram(training.corpus), valid.corpus);
  EXPECT_EQ(score.num_tokens, valid.num_targets);
  EXPECT_GT(valid.floor(), 0.05);
  EXPECT_GT(score.nats_per_token(), 3 * valid.floor());
}

}  // namespace
}  // namespace dsmoe::data

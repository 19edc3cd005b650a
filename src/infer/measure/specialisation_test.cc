// Counts by domain against a token-by-token record, and mutual information in closed form.
#include "infer/measure/specialisation.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/thread_pool.h"
#include "infer/load_model.h"
#include "infer/sequence/session.h"
#include "kernels/table.h"

namespace dsmoe::infer {
namespace {

TEST(MutualInformation, ClosedForms) {
  EXPECT_EQ(mutual_information({}), 0);
  EXPECT_EQ(mutual_information({{0, 0}, {0, 0}}), 0);
  EXPECT_NEAR(mutual_information({{3, 6}, {1, 2}, {5, 10}}), 0, 1e-15);  // independent
  EXPECT_DOUBLE_EQ(mutual_information({{7, 0, 0, 0}, {0, 7, 0, 0}, {0, 0, 7, 0}, {0, 0, 0, 7}}),
                   2);  // one expert each
  // A binary symmetric channel with error 1/4: 1 - h(1/4).
  EXPECT_NEAR(mutual_information({{30, 10}, {10, 30}}),
              1 + 0.25 * std::log2(0.25) + 0.75 * std::log2(0.75), 1e-12);
}

TEST(TopShares, DescendingWithTiesByNumber) {
  const std::vector<int64_t> row{2, 0, 4, 2, 0};
  const auto shares = top_shares(row, 4);
  ASSERT_EQ(shares.size(), 3u);  // the empty ones are left out
  EXPECT_EQ(shares[0].expert, 2);
  EXPECT_DOUBLE_EQ(shares[0].share, 0.5);
  EXPECT_EQ(shares[1].expert, 0);
  EXPECT_EQ(shares[2].expert, 3);
  EXPECT_EQ(top_shares(row, 1).size(), 1u);
  EXPECT_TRUE(top_shares({}, 2).empty());
}

TEST(CountRouting, EqualsTheRecordOfEachDocumentAlone) {
  ThreadPool pool(2);
  const kernels::Context context{.table = &kernels::select_cpu_table(), .pool = &pool};
  const auto folder = std::filesystem::path(DSMOE_SOURCE_DIR) / "tests/goldens/released";
  const auto model = load_model(context, folder, {});
  const std::vector<std::vector<int32_t>> tokens{{5, 17, 3}, {42}, {8, 8, 30, 2, 11}, {3, 3, 9}};
  const std::vector<int32_t> domains{0, 2, 0, 2};
  std::vector<DomainDocument> documents;
  for (std::size_t d = 0; d < tokens.size(); ++d) documents.push_back({tokens[d], domains[d]});
  const auto counted = count_routing(context, *model, documents, {.num_domains = 3});

  std::vector<LayerRouting> expected = counted;
  for (LayerRouting& layer : expected) {
    for (DomainCounts* counts : {&layer.chosen, &layer.first}) {
      for (auto& row : *counts) row.assign(row.size(), 0);
    }
  }
  for (std::size_t d = 0; d < tokens.size(); ++d) {
    Session session(context, *model, {.record_routing = true});
    session.assign(tokens[d]);
    const auto domain = static_cast<std::size_t>(domains[d]);
    const RoutesView routes = session.routes().view();
    ASSERT_EQ(routes.num_tokens, static_cast<int64_t>(tokens[d].size()));
    ASSERT_EQ(routes.num_layers, static_cast<int64_t>(expected.size()));
    for (int64_t t = 0; t < routes.num_tokens; ++t) {
      for (std::size_t l = 0; l < expected.size(); ++l) {
        const auto index = routes.slots(t, static_cast<int64_t>(l)).index;
        ++expected[l].first[domain][static_cast<std::size_t>(index[0])];
        for (const int32_t e : index) ++expected[l].chosen[domain][static_cast<std::size_t>(e)];
      }
    }
  }
  ASSERT_FALSE(counted.empty());
  for (std::size_t l = 0; l < counted.size(); ++l) {
    EXPECT_EQ(counted[l].first, expected[l].first) << counted[l].layer;
    EXPECT_EQ(counted[l].chosen, expected[l].chosen) << counted[l].layer;
  }
}

}  // namespace
}  // namespace dsmoe::infer

#include "train/routing_stats.h"

#include <gtest/gtest.h>

namespace dsmoe::train {
namespace {

TEST(LayerLoad, EvenAndUneven) {
  const LayerLoad even = describe_load(std::vector<int64_t>{5, 5, 5, 5}, 1);
  EXPECT_DOUBLE_EQ(even.max_ratio, 1);
  EXPECT_DOUBLE_EQ(even.entropy, 1);
  EXPECT_DOUBLE_EQ(even.top_share, 0.25);
  EXPECT_EQ(even.dead, 0);
  const LayerLoad one = describe_load(std::vector<int64_t>{0, 8, 0, 0}, 1);
  EXPECT_DOUBLE_EQ(one.max_ratio, 4);
  EXPECT_DOUBLE_EQ(one.entropy, 0);
  EXPECT_DOUBLE_EQ(one.top_share, 1);
  EXPECT_EQ(one.dead, 3);
  EXPECT_EQ(describe_load(std::vector<int64_t>{0, 0}, 1).dead, 2);
}

TEST(CollapseWatch, SpeaksOncePerCollapse) {
  CollapseWatch watch({3}, 8, 2);
  const std::vector<std::vector<int64_t>> even{std::vector<int64_t>(8, 10)};
  const std::vector<std::vector<int64_t>> bad{{400, 400, 0, 0, 0, 0, 0, 0}};
  int warnings = 0;
  const auto feed = [&](const auto& load, int steps) {
    for (int i = 0; i < steps; ++i) {
      for (const std::string& text : watch.add(load)) {
        EXPECT_NE(text.find("layer 3"), std::string::npos);
        ++warnings;
      }
    }
  };
  feed(even, 100);
  EXPECT_EQ(warnings, 0);
  feed(bad, 100);
  EXPECT_EQ(warnings, 1);
  feed(even, 100);
  feed(bad, 100);
  EXPECT_EQ(warnings, 2);
}

}  // namespace
}  // namespace dsmoe::train

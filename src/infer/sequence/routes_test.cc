// Cutting and joining of routes.
#include "infer/sequence/routes.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace dsmoe::infer {
namespace {

// Tokens `first` and on, two layers, two slots: index 100 * token + 10 * layer + slot.
Routes some_routes(int64_t first, int64_t count, int64_t top_k = 2) {
  Routes routes{.num_layers = 2, .top_k = top_k};
  for (int64_t t = first; t < first + count; ++t) {
    for (int64_t l = 0; l < 2; ++l) {
      for (int64_t k = 0; k < top_k; ++k) {
        routes.index.push_back(static_cast<int32_t>(100 * t + 10 * l + k));
        routes.gate.push_back(static_cast<float>(routes.index.back()) / 2);
      }
    }
  }
  return routes;
}

TEST(Routes, SlotsAreThoseOfATokenInALayer) {
  const Routes routes = some_routes(0, 4);
  EXPECT_EQ(routes.num_tokens(), 4);
  const RoutesView slots = routes.view().slots(3, 1);
  EXPECT_TRUE(std::ranges::equal(slots.index, std::vector{310, 311}));
  EXPECT_TRUE(std::ranges::equal(slots.gate, std::vector{155.0f, 155.5f}));
}

TEST(Routes, PartsJoinToTheWhole) {
  const Routes whole = some_routes(0, 5);
  Routes joined{.num_layers = 2, .top_k = 2};
  joined.append(whole.tokens(0, 2));
  joined.append(whole.tokens(2, 2));
  joined.append(whole.tokens(2, 5));
  EXPECT_EQ(joined.index, whole.index);
  EXPECT_EQ(joined.gate, whole.gate);
}

TEST(Routes, OfMoreSlotsTheFirstAreTaken) {
  Routes routes{.num_layers = 2, .top_k = 2};
  routes.append(some_routes(7, 2, 5).view());
  EXPECT_EQ(routes.index, some_routes(7, 2).index);
  EXPECT_EQ(routes.gate, some_routes(7, 2).gate);
}

TEST(Routes, TheFrontGoesAndTheEndIsCut) {
  Routes routes = some_routes(0, 5);
  EXPECT_EQ(routes.take_front(2).index, some_routes(0, 2).index);
  EXPECT_EQ(routes.index, some_routes(2, 3).index);
  routes.truncate(1);
  EXPECT_EQ(routes.gate, some_routes(2, 1).gate);
  routes.clear();
  EXPECT_EQ(routes.num_tokens(), 0);
}

TEST(Routes, WithoutMoeLayersThereIsNothing) {
  Routes routes{.num_layers = 0, .top_k = 2};
  routes.append({.num_tokens = 3, .num_layers = 0, .top_k = 2});
  EXPECT_EQ(routes.num_tokens(), 0);
  EXPECT_EQ(routes.take_front(0).num_tokens(), 0);
}

}  // namespace
}  // namespace dsmoe::infer

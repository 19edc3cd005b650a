#include "train/name_pattern.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace dsmoe::train {
namespace {

const std::vector<tensor::TensorSpec> kTensors{{"model.embed_tokens.weight"},
                                               {"model.layers.1.mlp.experts.0.up_proj.weight"},
                                               {"model.layers.1.mlp.experts.10.up_proj.weight"},
                                               {"model.norm.weight"}};

TEST(NamePattern, SelectsByGlob) {
  const auto count = [](std::vector<std::string> patterns) {
    return select_tensors(kTensors, patterns).size();
  };
  EXPECT_EQ(count({}), 4u);
  EXPECT_EQ(count({"*experts.0.*"}), 1u);
  EXPECT_EQ(count({"*experts.*"}), 2u);
  EXPECT_EQ(count({"*experts.?.*", "*norm*"}), 2u);
  EXPECT_EQ(count({"*"}), 4u);
}

TEST(NamePattern, RefusesWhatMatchesNothing) {
  const std::vector<std::string> patterns{"*", "experts.0"};
  EXPECT_THROW(select_tensors(kTensors, patterns), Error);
}

}  // namespace
}  // namespace dsmoe::train

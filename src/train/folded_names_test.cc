// Lists of tensors on few lines.
#include "train/folded_names.h"

#include <gtest/gtest.h>

namespace dsmoe::train {
namespace {

using Lines = std::vector<std::string>;

tensor::TensorSpec spec(const std::string& name) {
  return {.name = name, .dtype = tensor::DType::F32, .shape = {2, 3}};
}

TEST(FoldedNames, NumbersAreRanges) {
  std::vector<tensor::TensorSpec> specs{spec("embed.weight")};
  for (const int layer : {1, 2, 4}) {
    for (int expert = 0; expert < 64; ++expert) {
      for (const char* part : {"up", "down"}) {
        specs.push_back(spec(fmt::format("layers.{}.experts.{}.{}", layer, expert, part)));
      }
    }
  }
  EXPECT_EQ(folded_names(specs),
            (Lines{"embed.weight [2, 3]", "layers.1-2,4.experts.0-63.up [2, 3]: 192 tensors",
                   "layers.1-2,4.experts.0-63.down [2, 3]: 192 tensors"}));
}

TEST(FoldedNames, HolesAreTold) {
  EXPECT_EQ(folded_names(std::vector{spec("a.0.b.0"), spec("a.1.b.1"), spec("a.1.b.0")}),
            (Lines{"a.0-1.b.0-1 [2, 3]: 3 tensors, not all 4"}));
}

TEST(FoldedNames, OtherShapesAreOtherLines) {
  std::vector<tensor::TensorSpec> specs{spec("a.0"), spec("a.1")};
  specs[1].shape = {4};
  EXPECT_EQ(folded_names(specs).size(), 2u);
  EXPECT_TRUE(folded_names({}).empty());
}

}  // namespace
}  // namespace dsmoe::train

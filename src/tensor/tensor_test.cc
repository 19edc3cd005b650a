#include "tensor/tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tensor/arena.h"

namespace dsmoe::tensor {
namespace {

TEST(Bf16, RoundsToNearestEven) {
  EXPECT_EQ(to_bf16(1.0f).bits, 0x3f80);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f808000u)).bits, 0x3f80);  // tie, even below
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f818000u)).bits, 0x3f82);  // tie, even above
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f808001u)).bits, 0x3f81);
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()).bits, 0x7f80);  // rounds up to infinity
}

TEST(Bf16, FlushesDenormalsAndFixesNan) {
  EXPECT_EQ(to_bf16(1e-40f).bits, 0x0000);
  EXPECT_EQ(to_bf16(-1e-40f).bits, 0x8000);
  EXPECT_EQ(to_bf16(std::nanf("7")).bits, 0x7fc0);
  EXPECT_EQ(to_bf16(-std::nanf("")).bits, 0x7fc0);
}

TEST(Half, EveryClassOfValue) {
  EXPECT_EQ(half_to_float(0x3c00), 1.0f);
  EXPECT_EQ(half_to_float(0xc000), -2.0f);
  EXPECT_EQ(half_to_float(0x0001), std::ldexp(1.0f, -24));
  EXPECT_EQ(half_to_float(0x7bff), 65504.0f);
  EXPECT_TRUE(std::isinf(half_to_float(0xfc00)));
  EXPECT_TRUE(std::isnan(half_to_float(0x7e00)));
}

TEST(Shape, RefusesOverflow) {
  const int64_t big = int64_t{1} << 40;
  EXPECT_THROW(Shape({big, big}), Error);
  EXPECT_THROW(Shape({-1}), Error);
  EXPECT_EQ(Shape({0, big}).num_elements(), 0);
}

TEST(TensorView, RowsAndTypes) {
  Arena arena("test");
  const TensorView view = arena.tensor("a", DType::F32, {4, 3});
  view.as<float>()[3] = 7.0f;
  EXPECT_EQ(view.rows(1, 3).as<float>()[0], 7.0f);
  EXPECT_EQ(view.rows(1, 3).shape, Shape({2, 3}));
  EXPECT_THROW(view.rows(3, 5), Error);
  EXPECT_THROW(view.as<double>(), Error);
}

TEST(Arena, ZeroFilledAlignedAndCounted) {
  Arena arena("test");
  const TensorView small = arena.tensor("a", DType::F32, {5});
  const TensorView large = arena.tensor("a", DType::F32, {1 << 20});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(small.data) % 64, 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(large.data) % (2 << 20), 0u);
  EXPECT_EQ(large.as<float>()[12345], 0.0f);
  ASSERT_EQ(arena.entries().size(), 1u);
  EXPECT_EQ(arena.total_bytes(), 20u + (4u << 20));
  const Arena* arenas[] = {&arena};
  EXPECT_NE(budget_table(arenas).find("test: a"), std::string::npos);
}

}  // namespace
}  // namespace dsmoe::tensor

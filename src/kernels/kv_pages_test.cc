#include "kernels/kv_pages.h"

#include <gtest/gtest.h>

#include <set>

namespace dsmoe::kernels {
namespace {

constexpr WeightLayout kLayouts[] = {WeightLayout::panels, WeightLayout::row_major};

KvShape latent(WeightLayout layout, DType dtype = DType::BF16) {
  return {.dtype = dtype,
          .layout = layout,
          .heads = 1,
          .key_width = 576,
          .value_width = 512,
          .values = KvValues::prefix_of_key};
}

// Every number of every position has a place of its own inside its head's part of the page.
void expect_own_places(const KvShape& shape) {
  std::set<int64_t> keys, values;
  for (int64_t slot = 0; slot < kKeyBlock; ++slot) {
    for (int64_t d = 0; d < shape.key_width; ++d) keys.insert(shape.key_index(slot, d));
    for (int64_t d = 0; d < shape.value_width; ++d) values.insert(shape.value_index(slot, d));
  }
  EXPECT_EQ(static_cast<int64_t>(keys.size()), kKeyBlock * shape.key_width);
  EXPECT_EQ(static_cast<int64_t>(values.size()), kKeyBlock * shape.value_width);
  EXPECT_GE(*keys.begin(), 0);
  EXPECT_GE(*values.begin(), 0);
  EXPECT_LT(*keys.rbegin(), shape.key_head_elements());
  EXPECT_LT(*values.rbegin(), shape.value_head_elements());
}

TEST(KvShape, EveryNumberHasAPlaceOfItsOwn) {
  for (const WeightLayout layout : kLayouts) {
    for (const DType dtype : {DType::BF16, DType::F32}) {
      expect_own_places(
          {.dtype = dtype, .layout = layout, .heads = 2, .key_width = 24, .value_width = 24});
      expect_own_places(
          {.dtype = dtype, .layout = layout, .heads = 2, .key_width = 36, .value_width = 20});
      expect_own_places(latent(layout, dtype));
    }
  }
}

TEST(KvShape, HeadsAndPagesFollowOneAnother) {
  for (const WeightLayout layout : kLayouts) {
    const KvShape shape{
        .dtype = DType::F32, .layout = layout, .heads = 3, .key_width = 36, .value_width = 20};
    EXPECT_EQ(shape.key_offset(2, 1), 7 * shape.key_head_elements());
    EXPECT_EQ(shape.value_offset(2, 1), 7 * shape.value_head_elements());
    EXPECT_EQ(shape.key_offset(5, 0) * 4, 5 * shape.key_page_bytes());
    EXPECT_EQ(shape.value_offset(5, 0) * 4, 5 * shape.value_page_bytes());
  }
}

TEST(KvShape, BytesOfGroupedHeads) {
  KvShape shape{.dtype = DType::BF16,
                .layout = WeightLayout::row_major,
                .heads = 4,
                .key_width = 128,
                .value_width = 128};
  EXPECT_TRUE(shape.has_one_width());
  EXPECT_EQ(shape.projected_width(), 1024);
  EXPECT_EQ(shape.position_bytes(), 2048);
  EXPECT_EQ(shape.page_bytes(), 64 * 2048);
  shape.layout = WeightLayout::panels;
  EXPECT_EQ(shape.page_bytes(), 64 * 2048);
}

// Panels pad: a key's numbers to 32 in BF16, values to 16.
TEST(KvShape, BytesOfOddAndDifferentWidths) {
  KvShape shape{.dtype = DType::BF16,
                .layout = WeightLayout::row_major,
                .heads = 2,
                .key_width = 40,
                .value_width = 24};
  EXPECT_FALSE(shape.has_one_width());
  EXPECT_EQ(shape.projected_width(), 128);
  EXPECT_EQ(shape.position_bytes(), 256);
  EXPECT_EQ(shape.page_bytes(), 64 * 256);
  shape.layout = WeightLayout::panels;
  EXPECT_EQ(shape.position_bytes(), 256);
  EXPECT_EQ(shape.key_page_bytes(), 2 * 64 * 64 * 2);
  EXPECT_EQ(shape.value_page_bytes(), 2 * 32 * 64 * 2);
}

// Latent attention of DeepSeek-V2: 512 + 64 numbers, the first 512 of them are the value.
TEST(KvShape, AValueThatIsAPrefixOfTheKeyNeedsNoMemoryInRows) {
  const KvShape shape = latent(WeightLayout::row_major);
  EXPECT_FALSE(shape.has_one_width());
  EXPECT_TRUE(shape.values_lie_in_keys());
  EXPECT_EQ(shape.projected_width(), 576);
  EXPECT_EQ(shape.position_bytes(), 1152);
  EXPECT_EQ(shape.page_bytes(), 64 * 1152);
  EXPECT_EQ(shape.value_page_bytes(), 0);
  EXPECT_EQ(shape.value_offset(7, 0), shape.key_offset(7, 0));
  for (const int64_t d : {0, 1, 511}) EXPECT_EQ(shape.value_index(33, d), shape.key_index(33, d));
}

TEST(KvShape, PanelsHoldAPrefixTwice) {
  const KvShape shape = latent(WeightLayout::panels);
  EXPECT_FALSE(shape.values_lie_in_keys());
  EXPECT_EQ(shape.projected_width(), 576);
  EXPECT_EQ(shape.position_bytes(), (576 + 512) * 2);
  EXPECT_EQ(shape.page_bytes(), 64 * (576 + 512) * 2);
  EXPECT_NE(shape.value_index(33, 1), shape.key_index(33, 1));
}

}  // namespace
}  // namespace dsmoe::kernels

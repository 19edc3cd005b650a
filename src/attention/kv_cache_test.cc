#include "attention/kv_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/thread_pool.h"
#include "kernels/table.h"

namespace dsmoe::attention {
namespace {

using kernels::DType;
using kernels::KvPages;
using kernels::KvShape;
using kernels::KvValues;
using kernels::WeightLayout;

// Every shape a cache may have, in both layouts: equal and different widths, values in the keys.
class Shapes : public ::testing::TestWithParam<std::tuple<KvShape, WeightLayout>> {
 protected:
  Shapes() : table_(kernels::ref_table()) {
    table_.weight_layout = std::get<WeightLayout>(GetParam());
  }
  KvCache cache(int64_t num_pages) {
    return {{.table = &table_, .pool = &pool_},
            {.shape = std::get<KvShape>(GetParam()), .count = 2},
            num_pages};
  }
  // All keys and values of a position, of both layers; as they lie.
  static std::vector<float> position(const KvCache& cache, const KvSequence& sequence,
                                     int64_t place) {
    std::vector<float> all;
    each_number(cache, sequence, place, [&](float& number) { all.push_back(number); });
    return all;
  }
  static void write(const KvCache& cache, const KvSequence& sequence, int64_t place) {
    float next = 100 * static_cast<float>(place);
    each_number(cache, sequence, place, [&](float& number) { number = ++next; });
  }

 private:
  template <class Visit>
  static void each_number(const KvCache& cache, const KvSequence& sequence, int64_t place,
                          Visit&& visit) {
    const int64_t page = sequence.pages[static_cast<std::size_t>(place / kernels::kKeyBlock)];
    const int64_t slot = place % kernels::kKeyBlock;
    for (int64_t layer = 0; layer < 2; ++layer) {
      const KvPages& pages = cache.layer(layer);
      const KvShape& shape = pages.shape;
      for (int64_t head = 0; head < shape.heads; ++head) {
        float* keys = static_cast<float*>(pages.keys) + shape.key_offset(page, head);
        float* values = static_cast<float*>(pages.values) + shape.value_offset(page, head);
        for (int64_t d = 0; d < shape.key_width; ++d) visit(keys[shape.key_index(slot, d)]);
        if (shape.values_lie_in_keys()) continue;
        for (int64_t d = 0; d < shape.value_width; ++d) visit(values[shape.value_index(slot, d)]);
      }
    }
  }

  kernels::KernelTable table_;
  ThreadPool pool_{1};
};

TEST_P(Shapes, TakesTheBytesThatTheShapeSays) {
  const KvCache five = cache(5);
  KvShape shape = std::get<KvShape>(GetParam());
  shape.layout = std::get<WeightLayout>(GetParam());
  EXPECT_EQ(static_cast<int64_t>(five.arena().total_bytes()), 2 * 5 * shape.page_bytes());
  EXPECT_EQ(five.layer(1).values == five.layer(1).keys, shape.values_lie_in_keys());
}

// What is forgotten reads as zero, what is kept is untouched, and so are other sequences.
TEST_P(Shapes, TruncateClearsAllNumbersOfAPositionAndNoOthers) {
  KvCache pages = cache(6);
  KvSequence own, other;
  pages.reserve(own, 130);
  pages.reserve(other, 130);
  for (int64_t place = 0; place < 130; ++place) {
    write(pages, own, place);
    write(pages, other, place);
  }
  const std::vector<int32_t> former = own.pages;
  const std::vector<float> kept = position(pages, own, 69), others = position(pages, other, 129);
  pages.truncate(own, 70);
  EXPECT_EQ(position(pages, own, 69), kept);
  EXPECT_EQ(position(pages, other, 129), others);
  KvSequence next;
  next.pages = former;
  for (const int64_t place : {70, 127, 128, 129}) {
    const std::vector<float> numbers = position(pages, next, place);
    EXPECT_EQ(std::count(numbers.begin(), numbers.end(), 0.0f),
              static_cast<int64_t>(numbers.size()))
        << place;
  }
}

KvShape shape(int64_t heads, int64_t key_width, int64_t value_width, KvValues values) {
  return {.dtype = DType::F32,
          .heads = heads,
          .key_width = key_width,
          .value_width = value_width,
          .values = values};
}

INSTANTIATE_TEST_SUITE_P(
    All, Shapes,
    ::testing::Combine(::testing::Values(shape(2, 12, 12, KvValues::own),
                                         shape(3, 20, 6, KvValues::own),
                                         shape(1, 36, 32, KvValues::prefix_of_key)),
                       ::testing::Values(WeightLayout::panels, WeightLayout::row_major)));

}  // namespace
}  // namespace dsmoe::attention

// Every piece in exactly one row, no row too full, little room wasted.
#include "data/packing.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "base/rng.h"
#include "data/test_support.h"

namespace dsmoe::data {
namespace {

std::vector<std::vector<uint32_t>> rows_of(const RowPacker& packer) {
  std::vector<std::vector<uint32_t>> rows;
  for (int64_t r = 0; r < packer.num_rows(); ++r) {
    const auto begins = packer.row_begins();
    const auto part =
        packer.pieces().subspan(begins[static_cast<size_t>(r)], begins[static_cast<size_t>(r) + 1] -
                                                                    begins[static_cast<size_t>(r)]);
    rows.emplace_back(part.begin(), part.end());
  }
  return rows;
}

using Rows = std::vector<std::vector<uint32_t>>;

TEST(RowPacker, TakesTheTightestRow) {
  RowPacker packer(10);
  packer.pack(std::vector<int32_t>{6, 7, 3, 4, 10, 1});
  // 3 fills the row of 7 (room 3), not the row of 6 (room 4); 4 fills that one.
  EXPECT_EQ(rows_of(packer), (Rows{{0, 3}, {1, 2}, {4}, {5}}));
}

TEST(RowPacker, LeavesOutPiecesOfLengthZero) {
  RowPacker packer(4);
  packer.pack(std::vector<int32_t>{0, 2, 0, 2, 0});
  EXPECT_EQ(rows_of(packer), (Rows{{1, 3}}));
  packer.pack(std::vector<int32_t>{0});
  EXPECT_EQ(packer.num_rows(), 0);
  packer.pack({});
  EXPECT_EQ(packer.num_rows(), 0);
}

TEST(RowPacker, PlacesEveryPieceOnceAndFillsRows) {
  const Rng rng{.seed = 5, .purpose = RngPurpose::test, .stream = 0};
  for (const int64_t row_length : {1, 7, 64, 65, 300}) {
    std::vector<int32_t> lengths(5000);
    for (size_t i = 0; i < lengths.size(); ++i) {
      lengths[i] = 1 + static_cast<int32_t>(rng.below(i, static_cast<uint64_t>(row_length)));
    }
    RowPacker packer(row_length);
    packer.pack(lengths);
    std::vector<int> placed(lengths.size(), 0);
    for (const auto& row : rows_of(packer)) {
      ASSERT_FALSE(row.empty());
      int64_t used = 0;
      for (size_t i = 0; i < row.size(); ++i) {
        used += lengths[row[i]];
        ++placed[row[i]];
        if (i > 0) {
          EXPECT_LT(row[i - 1], row[i]);
        }
      }
      EXPECT_LE(used, row_length);
    }
    EXPECT_EQ(placed, std::vector<int>(lengths.size(), 1));
    const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    EXPECT_GT(static_cast<double>(tokens),
              0.95 * static_cast<double>(packer.num_rows() * row_length))
        << row_length;
  }
}

TEST(RowPacker, IsAFunctionOfTheLengths) {
  std::vector<int32_t> lengths;
  for (int i = 0; i < 1000; ++i) lengths.push_back(1 + (i * 7919) % 50);
  RowPacker used(64), fresh(64);
  used.pack(std::vector<int32_t>(77, 33));
  used.pack(lengths);
  fresh.pack(lengths);
  EXPECT_EQ(rows_of(used), rows_of(fresh));
}

TEST(RowPacker, RefusesPiecesThatDoNotFit) {
  RowPacker packer(4);
  EXPECT_NE(testing::error_of([&] { packer.pack(std::vector<int32_t>{5}); }), "");
  EXPECT_NE(testing::error_of([&] { packer.pack(std::vector<int32_t>{-1}); }), "");
  EXPECT_NE(testing::error_of([] { RowPacker(0); }), "");
}

}  // namespace
}  // namespace dsmoe::data

// The rows of a step, and those of one rank in micro-batches.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "train/rank_layout.h"

namespace dsmoe::train {

// The rows of a step one after the other, without padding.
struct StepRows {
  std::vector<int32_t> tokens, targets;    // target -1: not counted
  std::vector<int32_t> row_lengths;        // tokens per row
  std::vector<int32_t> documents_per_row;  // documents per row
  std::vector<int32_t> document_lengths;   // tokens per document
  std::vector<int32_t> document_sources;   // per document; empty: losses of sources are not wanted

  int64_t num_rows() const { return static_cast<int64_t>(row_lengths.size()); }
  int64_t num_counted() const;
  void clear();
};

// The rows of a step that are this rank's, cut into micro-batches. Every rank knows all rows, so
// that all cut alike: the numbers of micro-batches and of blocks in them are the same on all ranks.
class OwnRows {
 public:
  struct Limits {
    int64_t rows_per_unit = 1;
    int64_t units = 1;      // of a rank in a micro-batch
    int64_t documents = 0;  // likewise; a unit is never cut
  };
  // Looks at `all` as long as it is used.
  void take(const StepRows& all, const RankLayout& layout, const Limits& limits);

  // Rows of a micro-batch. The last ones may be empty on some ranks.
  struct Part {
    std::span<const int32_t> tokens, targets, row_lengths, document_lengths;
    int64_t first_block = 0;  // of units
  };
  // The next one; false: there is none.
  bool next(Part& part);

  int64_t num_units() const { return num_own_units_; }  // of this rank
  int64_t num_documents(int64_t rank) const;
  // The rank and the place among its documents of each document of the step, in order.
  template <class F>
  void for_each_document(F&& visit) const {
    std::vector<int64_t> next(static_cast<std::size_t>(layout_.ranks), 0);
    for (int64_t row = 0; row < all_->num_rows(); ++row) {
      const int64_t rank = rank_of_row(row);
      for (int32_t d = 0; d < all_->documents_per_row[static_cast<std::size_t>(row)]; ++d)
        visit(rank, next[static_cast<std::size_t>(rank)]++);
    }
  }

 private:
  int64_t rank_of_row(int64_t row) const { return row / limits_.rows_per_unit % layout_.ranks; }
  int64_t documents_of(int64_t unit) const;
  bool fit(int64_t num_blocks) const;
  void copy_own();

  const StepRows* all_ = nullptr;
  RankLayout layout_;
  Limits limits_;
  int64_t num_units_ = 0, num_own_units_ = 0;
  StepRows own_;                    // empty where there is one rank
  const StepRows* rows_ = nullptr;  // this rank's
  int64_t next_block_ = 0, next_row_ = 0, next_token_ = 0, next_document_ = 0;
};

}  // namespace dsmoe::train

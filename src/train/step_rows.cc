// Which units are whose, and how many at a time.
#include "train/step_rows.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace dsmoe::train {
namespace {

template <class T>
std::span<const T> piece(const std::vector<T>& values, int64_t begin, int64_t count) {
  return std::span(values).subspan(static_cast<std::size_t>(begin),
                                   static_cast<std::size_t>(count));
}

int64_t sum(std::span<const int32_t> values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

}  // namespace

int64_t StepRows::num_counted() const {
  return std::count_if(targets.begin(), targets.end(), [](int32_t target) { return target >= 0; });
}

void StepRows::clear() {
  tokens.clear();
  targets.clear();
  row_lengths.clear();
  documents_per_row.clear();
  document_lengths.clear();
  document_sources.clear();
}

void OwnRows::take(const StepRows& all, const RankLayout& layout, const Limits& limits) {
  all_ = &all;
  layout_ = layout;
  limits_ = limits;
  num_units_ = (all.num_rows() + limits.rows_per_unit - 1) / limits.rows_per_unit;
  num_own_units_ = (num_units_ - layout.rank + layout.ranks - 1) / layout.ranks;
  rows_ = &all;
  if (layout.ranks > 1) {
    copy_own();
    rows_ = &own_;
  }
  next_block_ = next_row_ = next_token_ = next_document_ = 0;
}

int64_t OwnRows::documents_of(int64_t unit) const {
  if (unit >= num_units_) return 0;
  const int64_t begin = unit * limits_.rows_per_unit;
  const int64_t end = std::min(begin + limits_.rows_per_unit, all_->num_rows());
  return sum(piece(all_->documents_per_row, begin, end - begin));
}

// Whether so many blocks are no more documents than a micro-batch may have, on any rank.
bool OwnRows::fit(int64_t num_blocks) const {
  for (int64_t rank = 0; rank < layout_.ranks; ++rank) {
    int64_t documents = 0;
    for (int64_t block = next_block_; block < next_block_ + num_blocks; ++block)
      documents += documents_of(block * layout_.ranks + rank);
    if (documents > limits_.documents) return false;
  }
  return true;
}

void OwnRows::copy_own() {
  own_.clear();
  int64_t token = 0, document = 0;
  for (int64_t row = 0; row < all_->num_rows(); ++row) {
    const auto at = static_cast<std::size_t>(row);
    const int64_t tokens = all_->row_lengths[at], documents = all_->documents_per_row[at];
    if (rank_of_row(row) == layout_.rank) {
      const auto append = [](std::vector<int32_t>& to, std::span<const int32_t> from) {
        to.insert(to.end(), from.begin(), from.end());
      };
      append(own_.tokens, piece(all_->tokens, token, tokens));
      append(own_.targets, piece(all_->targets, token, tokens));
      append(own_.document_lengths, piece(all_->document_lengths, document, documents));
      own_.row_lengths.push_back(all_->row_lengths[at]);
      own_.documents_per_row.push_back(all_->documents_per_row[at]);
    }
    token += tokens;
    document += documents;
  }
}

int64_t OwnRows::num_documents(int64_t rank) const {
  int64_t documents = 0;
  for (int64_t row = 0; row < all_->num_rows(); ++row)
    if (rank_of_row(row) == rank)
      documents += all_->documents_per_row[static_cast<std::size_t>(row)];
  return documents;
}

bool OwnRows::next(Part& part) {
  const int64_t num_blocks = (num_units_ + layout_.ranks - 1) / layout_.ranks;
  if (next_block_ >= num_blocks) return false;
  int64_t blocks = std::min(limits_.units, num_blocks - next_block_);
  while (blocks > 1 && !fit(blocks)) --blocks;
  const int64_t rows = std::min(blocks * limits_.rows_per_unit, rows_->num_rows() - next_row_);
  const int64_t documents = sum(piece(rows_->documents_per_row, next_row_, rows));
  part.row_lengths = piece(rows_->row_lengths, next_row_, rows);
  const int64_t tokens = sum(part.row_lengths);
  part.tokens = piece(rows_->tokens, next_token_, tokens);
  part.targets = piece(rows_->targets, next_token_, tokens);
  part.document_lengths = piece(rows_->document_lengths, next_document_, documents);
  part.first_block = next_block_;
  next_block_ += blocks;
  next_row_ += rows;
  next_token_ += tokens;
  next_document_ += documents;
  return true;
}

}  // namespace dsmoe::train

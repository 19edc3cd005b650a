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
  cut();
}

int64_t OwnRows::documents_of(int64_t unit) const {
  if (unit >= num_units_) return 0;
  const int64_t begin = unit * limits_.rows_per_unit;
  const int64_t end = std::min(begin + limits_.rows_per_unit, all_->num_rows());
  return sum(piece(all_->documents_per_row, begin, end - begin));
}

// As many units as fit on every rank.
void OwnRows::cut() {
  blocks_.clear();
  const int64_t num_blocks = (num_units_ + layout_.ranks - 1) / layout_.ranks;
  const auto most_documents = [&](int64_t first, int64_t count) {
    int64_t most = 0;
    for (int64_t rank = 0; rank < layout_.ranks; ++rank) {
      int64_t documents = 0;
      for (int64_t block = first; block < first + count; ++block)
        documents += documents_of(block * layout_.ranks + rank);
      most = std::max(most, documents);
    }
    return most;
  };
  for (int64_t first = 0; first < num_blocks; first += blocks_.back()) {
    int64_t count = std::min(limits_.units, num_blocks - first);
    while (count > 1 && most_documents(first, count) > limits_.documents) --count;
    blocks_.push_back(count);
  }
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

OwnRows::Part OwnRows::part(std::size_t idx) const {
  const int64_t first_block = std::accumulate(
      blocks_.begin(), blocks_.begin() + static_cast<std::ptrdiff_t>(idx), int64_t{0});
  const int64_t rows = rows_->num_rows();
  const int64_t begin = std::min(first_block * limits_.rows_per_unit, rows);
  const int64_t end = std::min((first_block + blocks_[idx]) * limits_.rows_per_unit, rows);
  const int64_t first_token = sum(piece(rows_->row_lengths, 0, begin));
  const int64_t first_document = sum(piece(rows_->documents_per_row, 0, begin));
  Part part{.row_lengths = piece(rows_->row_lengths, begin, end - begin),
            .first_block = first_block};
  const int64_t tokens = sum(part.row_lengths);
  part.tokens = piece(rows_->tokens, first_token, tokens);
  part.targets = piece(rows_->targets, first_token, tokens);
  part.document_lengths = piece(rows_->document_lengths, first_document,
                                sum(piece(rows_->documents_per_row, begin, end - begin)));
  return part;
}

}  // namespace dsmoe::train

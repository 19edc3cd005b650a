// Row -> block -> shuffled pieces -> packed row, each step computed from the numbers before it.
#include "data/batches.h"

#include <algorithm>

#include "base/error.h"
#include "data/permutation.h"

namespace dsmoe::data {
namespace {

// Only every 16th document's first piece is remembered: 50 MB for 100 million documents.
constexpr int64_t kStride = 16;

}  // namespace

PackedBatches::PackedBatches(const DocumentSplit& split, BatchOptions options)
    : split_(split), corpus_(split.corpus()), options_(options), packer_(options.seq) {
  if (options.batch <= 0 || options.block_pieces <= 0) {
    fail(ErrorKind::usage, "a batch of {} rows from blocks of {} pieces; both must be positive",
         options.batch, options.block_pieces);
  }
  inspect();
  if (counted_targets_ == 0) {
    fail(ErrorKind::input,
         "the {} part of the corpus has no token to predict ({} documents, {} tokens in all); give "
         "more data or another validation fraction",
         options.part == SplitPart::training ? "training" : "validation", corpus_.num_documents(),
         corpus_.num_tokens());
  }
  const uint64_t block_pieces = static_cast<uint64_t>(options.block_pieces);
  blocks_per_epoch_ = (num_pieces_ + block_pieces - 1) / block_pieces;
  block_.reserve(std::min(num_pieces_, block_pieces));
  lengths_.reserve(std::min(num_pieces_, block_pieces));
  rows_before_.reserve(1024);
  marks_.reserve(static_cast<size_t>(options.seq));
}

TokenRange PackedBatches::range(int64_t document) const {
  return options_.part == SplitPart::training ? split_.training(document)
                                              : split_.validation(document);
}

// The last token of a range is only ever a target: n tokens give n - 1 inputs.
uint64_t PackedBatches::pieces_of(int64_t document) const {
  const int64_t inputs = range(document).length() - 1;
  return inputs <= 0 ? 0 : static_cast<uint64_t>((inputs - 1) / options_.seq + 1);
}

void PackedBatches::inspect() {
  for (int64_t d = 0; d < corpus_.num_documents(); ++d) {
    if (d % kStride == 0) first_piece_.push_back(num_pieces_);
    num_pieces_ += pieces_of(d);
    const TokenRange tokens = range(d);
    if (tokens.length() > 1)
      counted_targets_ += count_targets(d, tokens.begin, tokens.length() - 1);
  }
}

// Targets are one token ahead of the inputs [begin, begin + length).
int64_t PackedBatches::count_targets(int64_t document, int64_t begin, int64_t length) {
  if (!corpus_.has_mask()) return length;
  int64_t count = 0;
  for (int64_t done = 0; done < length;) {
    const int64_t part = std::min(options_.seq, length - done);
    marks_.resize(static_cast<size_t>(part));
    corpus_.copy_counted(document, begin + 1 + done, marks_);
    count += std::count(marks_.begin(), marks_.end(), uint8_t{1});
    done += part;
  }
  return count;
}

PackedBatches::PieceRef PackedBatches::find_piece(uint64_t piece) {
  const auto after = std::upper_bound(first_piece_.begin(), first_piece_.end(), piece);
  const auto group = after - first_piece_.begin() - 1;
  uint64_t first = first_piece_[static_cast<size_t>(group)];
  int64_t document = group * kStride;
  for (uint64_t count; first + (count = pieces_of(document)) <= piece; ++document) first += count;
  const TokenRange tokens = range(document);
  const int64_t begin = tokens.begin + static_cast<int64_t>(piece - first) * options_.seq;
  const int64_t length = std::min(options_.seq, tokens.end - 1 - begin);
  // A piece without a counted target would cost time and teach nothing.
  const bool counts = count_targets(document, begin, length) > 0;
  return {document, begin, counts ? static_cast<int32_t>(length) : 0};
}

void PackedBatches::load_block(uint64_t block) {
  if (block == loaded_block_) return;
  const uint64_t epoch = block / blocks_per_epoch_, idx = block % blocks_per_epoch_;
  const uint64_t block_pieces = static_cast<uint64_t>(options_.block_pieces);
  const Permutation order(num_pieces_, options_.seed, epoch);
  const uint64_t end = std::min(num_pieces_, (idx + 1) * block_pieces);
  block_.clear();
  lengths_.clear();
  for (uint64_t i = idx * block_pieces; i < end; ++i) {
    block_.push_back(find_piece(order(i)));
    lengths_.push_back(block_.back().length);
  }
  packer_.pack(lengths_);
  loaded_block_ = block;
}

// Loads the block that holds the row. Blocks before it that were never counted are packed on the
// way: that is what resuming at a late step costs.
void PackedBatches::find_row(uint64_t row) {
  while (rows_before_.back() <= row) {
    load_block(rows_before_.size() - 1);
    rows_before_.push_back(rows_before_.back() + static_cast<uint64_t>(packer_.num_rows()));
  }
  const auto after = std::upper_bound(rows_before_.begin(), rows_before_.end(), row);
  load_block(static_cast<uint64_t>(after - rows_before_.begin()) - 1);
}

void PackedBatches::append_piece(const PieceRef& piece, PackedRow& out) {
  const int64_t begin = out.num_tokens();
  const std::span<int32_t> tokens(out.tokens.data() + begin, static_cast<size_t>(piece.length));
  const std::span<int32_t> targets(out.targets.data() + begin, static_cast<size_t>(piece.length));
  corpus_.copy_tokens(piece.document, piece.begin, tokens);
  corpus_.copy_tokens(piece.document, piece.begin + 1, targets);
  out.counted_targets += piece.length;
  if (corpus_.has_mask()) {
    marks_.resize(targets.size());
    corpus_.copy_counted(piece.document, piece.begin + 1, marks_);
    for (size_t i = 0; i < targets.size(); ++i) {
      if (marks_[i] != 0) continue;
      targets[i] = kNoToken;
      --out.counted_targets;
    }
  }
  out.pieces.push_back({.begin = static_cast<int32_t>(begin),
                        .length = piece.length,
                        .source = corpus_.source(piece.document),
                        .document = piece.document,
                        .document_begin = piece.begin});
}

void PackedBatches::fill_row(uint64_t row, PackedRow& out) {
  find_row(row);
  out.tokens.assign(static_cast<size_t>(options_.seq), kNoToken);
  out.targets.assign(static_cast<size_t>(options_.seq), kNoToken);
  out.pieces.clear();
  out.pieces.reserve(static_cast<size_t>(options_.seq));  // as many as there can ever be
  out.counted_targets = 0;
  const size_t idx = static_cast<size_t>(row - rows_before_[loaded_block_]);
  for (uint32_t i = packer_.row_begins()[idx]; i < packer_.row_begins()[idx + 1]; ++i) {
    append_piece(block_[packer_.pieces()[i]], out);
  }
}

void PackedBatches::fill_rows(uint64_t first_row, int64_t count, Batch& out) {
  out.rows.resize(static_cast<size_t>(count));
  out.counted_targets = 0;
  out.num_tokens = 0;
  for (size_t i = 0; i < out.rows.size(); ++i) {
    fill_row(first_row + i, out.rows[i]);
    out.counted_targets += out.rows[i].counted_targets;
    out.num_tokens += out.rows[i].num_tokens();
    if (i == 0) out.epoch = epoch();
  }
}

void PackedBatches::fill(uint64_t step, Batch& out) {
  fill_rows(step * static_cast<uint64_t>(options_.batch), options_.batch, out);
}

Batch PackedBatches::batch(uint64_t step) {
  Batch out;
  fill(step, out);
  return out;
}

uint64_t PackedBatches::rows_in_first_epoch() {
  while (rows_before_.size() <= blocks_per_epoch_) {
    load_block(rows_before_.size() - 1);
    rows_before_.push_back(rows_before_.back() + static_cast<uint64_t>(packer_.num_rows()));
  }
  return rows_before_[blocks_per_epoch_];
}

}  // namespace dsmoe::data

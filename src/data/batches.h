// Batch k of a run as a pure function of (corpus, split, seed, k, batch, seq): rows of packed
// documents with their targets.
#pragma once

#include <cstdint>
#include <vector>

#include "data/packing.h"
#include "data/split.h"
#include "data/token_corpus.h"

namespace dsmoe::data {

// A document, or a part of one longer than a row, inside a row. Attention stays inside it and
// positions count from its first token.
struct Piece {
  int32_t begin = 0, length = 0;  // tokens of the row
  int32_t source = 0;             // index into TokenCorpus::sources()
  int64_t document = 0;
  int64_t document_begin = 0;  // the document's token that is the piece's first

  friend bool operator==(const Piece&, const Piece&) = default;
};

inline constexpr int32_t kNoToken = -1;  // padding in tokens, "not counted" in targets

// tokens and targets have length seq; pieces lie side by side from 0 on, padding after the last.
struct PackedRow {
  std::vector<int32_t> tokens, targets;
  std::vector<Piece> pieces;
  int64_t counted_targets = 0;  // at least 1

  // Tokens that are not padding.
  int64_t num_tokens() const {
    return pieces.empty() ? 0 : pieces.back().begin + pieces.back().length;
  }
  friend bool operator==(const PackedRow&, const PackedRow&) = default;
};

struct Batch {
  std::vector<PackedRow> rows;
  int64_t counted_targets = 0;
  int64_t num_tokens = 0;
  uint64_t epoch = 0;  // the lowest of its rows

  friend bool operator==(const Batch&, const Batch&) = default;
};

enum class SplitPart { training, validation };

struct BatchOptions {
  int64_t batch = 0;  // rows per batch
  int64_t seq = 0;    // tokens per row
  uint64_t seed = 0;
  SplitPart part = SplitPart::training;
  // Pieces are packed in blocks of this many: the memory of the order. Part of the run's identity.
  int64_t block_pieces = 65536;
};

// The order: pieces of all documents are shuffled anew in every epoch, cut into blocks, and each
// block is packed into rows by best fit; row r of the run is the r-th row of that endless list, and
// batch k is rows [k * batch, (k + 1) * batch). Nothing but k need be saved to resume.
// For one thread. A batch far from the last one asked for costs a pass over the lengths in between.
class PackedBatches {
 public:
  // Corpus and split must outlive it. Throws Error(input) when the part holds no counted target.
  PackedBatches(const DocumentSplit& split, BatchOptions options);

  // Reuses the memory of `out`.
  void fill(uint64_t step, Batch& out);
  void fill_row(uint64_t row, PackedRow& out);
  uint64_t epoch() const { return loaded_block_ / blocks_per_epoch_; }  // of the row filled last
  Batch batch(uint64_t step);

  // Rows and batches (the last one may be short of rows; fill() would go on into epoch 1) of one
  // pass over the part in epoch 0: what validation evaluates.
  uint64_t rows_in_first_epoch();
  void fill_rows(uint64_t first_row, int64_t count, Batch& out);

  uint64_t num_pieces() const { return num_pieces_; }
  // Counted targets of one epoch.
  int64_t counted_targets() const { return counted_targets_; }

 private:
  struct PieceRef {
    int64_t document, begin;  // begin: token of the document
    int32_t length;           // inputs; 0 when no target of it counts
  };

  TokenRange range(int64_t document) const;
  uint64_t pieces_of(int64_t document) const;
  void inspect();
  PieceRef find_piece(uint64_t piece);
  int64_t count_targets(int64_t document, int64_t begin, int64_t length);
  void load_block(uint64_t block);
  void find_row(uint64_t row);
  void append_piece(const PieceRef& piece, PackedRow& out);

  const DocumentSplit& split_;
  const TokenCorpus& corpus_;
  BatchOptions options_;
  uint64_t num_pieces_ = 0, blocks_per_epoch_ = 0;
  int64_t counted_targets_ = 0;
  std::vector<uint64_t> first_piece_;     // of every kStride-th document
  std::vector<uint64_t> rows_before_{0};  // per block of the run, as far as it was needed
  uint64_t loaded_block_ = ~uint64_t{0};
  std::vector<PieceRef> block_;
  std::vector<int32_t> lengths_;
  std::vector<uint8_t> marks_;
  RowPacker packer_;
};

}  // namespace dsmoe::data

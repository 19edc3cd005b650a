// Several parts of the data as one endless list of rows, each part with its share of them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/batches.h"
#include "data/split.h"

namespace dsmoe::data {

// Whose turn it is: after any number of turns every part has had its share of them, to within one.
// No turn is drawn: of the parts that have less than their share, that one is next whose turn is
// due first, of several the first. Shares are rounded to 2^-30.
class Turns {
 public:
  explicit Turns(std::span<const double> weights);  // each above zero

  struct Turn {
    std::size_t part = 0;
    uint64_t count = 0;  // turns that the part had before
  };
  // A turn far from the last one asked for costs a pass over those in between.
  Turn at(uint64_t turn);

 private:
  void restart();

  std::vector<int64_t> shares_, credit_;
  std::vector<uint64_t> counts_;
  int64_t whole_ = 0;
  uint64_t next_ = 0;
  Turn last_;
};

struct MixturePart {
  const DocumentSplit* split = nullptr;
  SplitPart part = SplitPart::training;
  double weight = 1;
};

// Row r of the run is a row of the part whose turn r is: its own next row, as PackedBatches makes
// them. So a row holds documents of one part, and a list of one part is that part's PackedBatches.
// For one thread.
class MixedBatches {
 public:
  // The splits must outlive it. Throws Error(input) when a part holds no counted target.
  MixedBatches(std::span<const MixturePart> parts, const BatchOptions& options);

  // Batch `step` of the run; reuses the memory of `out`.
  void fill(uint64_t step, Batch& out);

  // Rows of one pass over the parts, in turn, as many as wanted or as there are: what validation
  // evaluates. A part that has no more rows is passed over.
  struct Place {
    std::size_t part = 0;
    uint64_t row = 0;
  };
  std::vector<Place> first_rows(int64_t most);
  void fill(std::span<const Place> places, Batch& out);

  // Counted targets of one pass over every part.
  int64_t counted_targets() const;
  // The names that Piece::source indexes.
  const std::vector<std::string>& sources() const { return sources_; }

 private:
  BatchOptions options_;
  std::vector<double> weights_;
  std::vector<std::string> sources_;
  std::vector<std::unique_ptr<PackedBatches>> parts_;
  Turns turns_;
  std::vector<Place> places_;
};

// Documents [begin, end) of a corpus as a corpus of their own, with the sources of the whole.
class CorpusRange : public TokenCorpus {
 public:
  CorpusRange(const TokenCorpus& whole, int64_t begin, int64_t end);

  int64_t num_documents() const override { return end_ - begin_; }
  int64_t num_tokens() const override { return num_tokens_; }
  int64_t vocab_size() const override { return whole_.vocab_size(); }
  int64_t length(int64_t document) const override { return whole_.length(at(document)); }
  int32_t source(int64_t document) const override { return whole_.source(at(document)); }
  uint32_t content_hash(int64_t document) const override {
    return whole_.content_hash(at(document));
  }
  const std::vector<std::string>& sources() const override { return whole_.sources(); }
  void copy_tokens(int64_t document, int64_t begin, std::span<int32_t> out) const override {
    whole_.copy_tokens(at(document), begin, out);
  }
  bool has_mask() const override { return whole_.has_mask(); }
  void copy_counted(int64_t document, int64_t begin, std::span<uint8_t> out) const override {
    whole_.copy_counted(at(document), begin, out);
  }

 private:
  int64_t at(int64_t document) const;

  const TokenCorpus& whole_;
  int64_t begin_, end_, num_tokens_ = 0;
};

// One range per source, in the order of sources(); those of a source must lie side by side, as
// build_corpus puts them. A source without documents has an empty range.
std::vector<CorpusRange> ranges_of_sources(const TokenCorpus& corpus);

}  // namespace dsmoe::data

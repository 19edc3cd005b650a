// Shares decide whose turn it is; the parts fill the rows.
#include "data/mixture.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace dsmoe::data {
namespace {

constexpr double kWhole = 1073741824.0;  // 2^30: products of two sums of shares fit in 64 bits
constexpr uint64_t kNone = ~uint64_t{0};

std::vector<double> weights_of(std::span<const MixturePart> parts) {
  std::vector<double> weights;
  for (const MixturePart& part : parts) weights.push_back(part.weight);
  return weights;
}

}  // namespace

Turns::Turns(std::span<const double> weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (const double weight : weights) {
    DSMOE_CHECK(weight > 0 && std::isfinite(sum), "a weight of {} in a sum of {}", weight, sum);
    // A part too small for its share to be seen still has its turn.
    shares_.push_back(std::max<int64_t>(1, std::llround(weight / sum * kWhole)));
  }
  DSMOE_CHECK(!shares_.empty(), "no parts");
  whole_ = std::accumulate(shares_.begin(), shares_.end(), int64_t{0});
  restart();
}

void Turns::restart() {
  credit_.assign(shares_.size(), 0);
  counts_.assign(shares_.size(), 0);
  next_ = 0;
}

// A part's turn k may come when it has a share of more than k turns, and is due when it has a share
// of k + 1. Earliest first, no turn is ever late: parts of a whole are no more than one turn at a
// time. `credit`: the share a part has, less its turns.
Turns::Turn Turns::at(uint64_t turn) {
  if (turn + 1 == next_) return last_;
  if (turn < next_) restart();
  for (; next_ <= turn; ++next_) {
    std::size_t first = shares_.size();
    for (std::size_t i = 0; i < shares_.size(); ++i) {
      credit_[i] += shares_[i];
      if (credit_[i] <= 0) continue;
      // Due in (whole - credit) / share turns.
      if (first == shares_.size() ||
          (whole_ - credit_[i]) * shares_[first] < (whole_ - credit_[first]) * shares_[i]) {
        first = i;
      }
    }
    credit_[first] -= whole_;
    last_ = {.part = first, .count = counts_[first]++};
  }
  return last_;
}

MixedBatches::MixedBatches(std::span<const MixturePart> parts, const BatchOptions& options)
    : options_(options), weights_(weights_of(parts)), turns_(weights_) {
  for (const MixturePart& part : parts) {
    BatchOptions own = options;
    own.part = part.part;
    parts_.push_back(std::make_unique<PackedBatches>(*part.split, own));
  }
  sources_ = parts.front().split->corpus().sources();
}

void MixedBatches::fill(uint64_t step, Batch& out) {
  places_.clear();
  const auto count = static_cast<uint64_t>(options_.batch);
  for (uint64_t i = 0; i < count; ++i) {
    const Turns::Turn turn = turns_.at(step * count + i);
    places_.push_back({.part = turn.part, .row = turn.count});
  }
  fill(places_, out);
}

void MixedBatches::fill(std::span<const Place> places, Batch& out) {
  out.rows.resize(places.size());
  out.counted_targets = out.num_tokens = 0;
  out.epoch = kNone;
  for (std::size_t i = 0; i < places.size(); ++i) {
    PackedBatches& part = *parts_[places[i].part];
    PackedRow& row = out.rows[i];
    part.fill_row(places[i].row, row);
    out.counted_targets += row.counted_targets;
    out.num_tokens += row.num_tokens();
    out.epoch = std::min(out.epoch, part.epoch());
  }
  if (places.empty()) out.epoch = 0;
}

// A part whose rows have all been taken leaves the turns, however large its share is: to wait until
// a part of a millionth has had its turns could take forever.
std::vector<MixedBatches::Place> MixedBatches::first_rows(int64_t most) {
  struct Left {
    std::size_t part;
    uint64_t taken, rows;
  };
  std::vector<Left> left;
  std::vector<double> weights;
  uint64_t total = 0;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const uint64_t rows = parts_[i]->rows_in_first_epoch();
    if (rows == 0) continue;
    left.push_back({.part = i, .taken = 0, .rows = rows});
    weights.push_back(weights_[i]);
    total += rows;
  }
  total = std::min(total, static_cast<uint64_t>(std::max<int64_t>(0, most)));
  std::vector<Place> places;
  while (places.size() < total) {
    Turns turns(weights);
    for (uint64_t turn = 0; places.size() < total; ++turn) {
      const std::size_t at = turns.at(turn).part;
      Left& next = left[at];
      places.push_back({.part = next.part, .row = next.taken++});
      if (next.taken < next.rows) continue;
      left.erase(left.begin() + static_cast<std::ptrdiff_t>(at));
      weights.erase(weights.begin() + static_cast<std::ptrdiff_t>(at));
      break;
    }
  }
  return places;
}

int64_t MixedBatches::counted_targets() const {
  int64_t sum = 0;
  for (const auto& part : parts_) sum += part->counted_targets();
  return sum;
}

CorpusRange::CorpusRange(const TokenCorpus& whole, int64_t begin, int64_t end)
    : whole_(whole), begin_(begin), end_(end) {
  DSMOE_CHECK(begin >= 0 && begin <= end && end <= whole.num_documents(),
              "documents [{}, {}) of {}", begin, end, whole.num_documents());
  for (int64_t d = begin; d < end; ++d) num_tokens_ += whole.length(d);
}

int64_t CorpusRange::at(int64_t document) const {
  DSMOE_CHECK(document >= 0 && document < num_documents(), "document {} of {}", document,
              num_documents());
  return begin_ + document;
}

std::vector<CorpusRange> ranges_of_sources(const TokenCorpus& corpus) {
  std::vector<CorpusRange> ranges;
  int64_t begin = 0;
  for (int32_t source = 0; source < static_cast<int32_t>(corpus.sources().size()); ++source) {
    int64_t end = begin;
    while (end < corpus.num_documents() && corpus.source(end) == source) ++end;
    ranges.emplace_back(corpus, begin, end);
    begin = end;
  }
  DSMOE_CHECK(begin == corpus.num_documents(),
              "document {} of source {} does not lie beside the others of its source", begin,
              corpus.source(begin));
  return ranges;
}

}  // namespace dsmoe::data

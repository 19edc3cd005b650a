// Which experts take which kind of text: routing counted by domain, and how much one tells of the
// other.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "infer/sequence/trace.h"
#include "model/language_model.h"

namespace dsmoe::infer {

// One input of its own, positions from 0, at most `context` tokens.
struct DomainDocument {
  std::span<const int32_t> tokens;
  int32_t domain = 0;
};

// counts[domain][expert]
using DomainCounts = std::vector<std::vector<int64_t>>;

struct LayerRouting {
  int64_t layer = 0;
  DomainCounts chosen;  // tokens that had the expert among their top-k
  DomainCounts first;   // tokens whose strongest expert it was
};

// One entry per MoE layer, ascending. Several documents share a forward pass; the counts are those
// of each alone. Cancelled: counts of what was done.
struct RoutingOptions {
  int64_t num_domains = 0;
  const std::atomic<bool>* cancelled = nullptr;
};
std::vector<LayerRouting> count_routing(const kernels::Context& context, const model::Model& model,
                                        std::span<const DomainDocument> documents,
                                        const RoutingOptions& options);

// Bits that the column tells of the row; 0 for an empty table. Counts, not estimates: a small table
// of few tokens reads too high by about (rows - 1) (columns - 1) / (2 ln 2 tokens).
double mutual_information(const DomainCounts& counts);

struct ExpertShare {
  int64_t expert = 0;
  double share = 0;  // of the row's total
};
// The `count` largest of one row, descending; ties: the lower expert first. Empty experts are left
// out.
std::vector<ExpertShare> top_shares(std::span<const int64_t> row, int64_t count);

}  // namespace dsmoe::infer

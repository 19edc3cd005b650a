// How far one model's predictions are from another's, on the same tokens.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "infer/measure/evaluate.h"

namespace dsmoe::infer {

// Sums over the targets of all documents, in nats and in their order.
struct Divergence {
  int64_t num_targets = 0;
  double reference_nats = 0;  // -log p(target)
  double nats = 0;            // -log q(target)
  double kl = 0;              // sum_v p(v) (log p(v) - log q(v))
  int64_t same_choice = 0;    // targets for which both models find the same token most likely
};

// Logits before every target, row after row, as a reference for the other model: only one of the
// two needs to be in memory. At most `max_bytes`: the document at the limit ends there, those
// beyond are left out.
struct ReferenceLogits {
  std::vector<ScoredDocument> documents;
  std::vector<float> logits;  // [targets, vocabulary]
  Outcome outcome = Outcome::done;
};
ReferenceLogits reference_logits(const kernels::Context& context, const model::Model& model,
                                 std::span<const ScoredDocument> documents, std::size_t max_bytes,
                                 const std::atomic<bool>* cancelled);

// Throws Error(input) when the vocabularies differ. Cancelled: the sums so far.
Outcome compare_with(const kernels::Context& context, const model::Model& model,
                     const ReferenceLogits& reference, const std::atomic<bool>* cancelled,
                     Divergence& divergence);

}  // namespace dsmoe::infer

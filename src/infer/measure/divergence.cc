// Two passes over the same documents: one that keeps logits, one that measures against them.
#include "infer/measure/divergence.h"

#include <algorithm>

#include "base/error.h"
#include "base/functions.h"

namespace dsmoe::infer {
namespace {

// log(sum exp) of a row, and the place of its maximum.
struct RowSummary {
  double log_sum = 0;
  std::size_t best = 0;
};

RowSummary summarise(std::span<const float> row) {
  RowSummary summary;
  for (std::size_t v = 1; v < row.size(); ++v) {
    if (row[v] > row[summary.best]) summary.best = v;
  }
  const double max = row[summary.best];
  summary.log_sum = max + log_f64(sum_of_exp(row, max));
  return summary;
}

void add_row(std::span<const float> p, std::span<const float> q, int32_t target,
             Divergence& divergence) {
  const RowSummary a = summarise(p);
  const RowSummary b = summarise(q);
  for (std::size_t v = 0; v < p.size(); ++v) {
    const double log_p = p[v] - a.log_sum;
    divergence.kl += exp_f64(log_p) * (log_p - (q[v] - b.log_sum));
  }
  const auto t = static_cast<std::size_t>(target);
  divergence.reference_nats += a.log_sum - p[t];
  divergence.nats += b.log_sum - q[t];
  divergence.same_choice += a.best == b.best ? 1 : 0;
  ++divergence.num_targets;
}

// Calls take(row, target) with the logits before each target of a document.
template <class Take>
Outcome for_each_target(const kernels::Context& context, const model::Model& model,
                        const ScoredDocument& document, const std::atomic<bool>* cancelled,
                        Take&& take) {
  const auto vocabulary = static_cast<std::size_t>(model.config.vocab_size);
  const auto inputs = document.tokens.first(document.tokens.size() - 1);
  int64_t next = 1;  // the target behind the next row of logits
  const auto take_logits = [&](std::span<const float> values) {
    for (std::size_t at = 0; at < values.size(); at += vocabulary, ++next) {
      if (next < document.first_target) continue;
      take(values.subspan(at, vocabulary), document.tokens[static_cast<std::size_t>(next)]);
    }
  };
  const auto ignore_routes = [](const RoutesView&) {};
  return trace_sequence(context, model, inputs, {.cancelled = cancelled},
                        {.logits = take_logits, .routes = ignore_routes});
}

}  // namespace

ReferenceLogits reference_logits(const kernels::Context& context, const model::Model& model,
                                 std::span<const ScoredDocument> documents, std::size_t max_bytes,
                                 const std::atomic<bool>* cancelled) {
  ReferenceLogits reference;
  const auto vocabulary = static_cast<std::size_t>(model.config.vocab_size);
  for (ScoredDocument document : documents) {
    const std::size_t room = (max_bytes / sizeof(float) - reference.logits.size()) / vocabulary;
    if (room == 0) break;
    const std::size_t end = static_cast<std::size_t>(document.first_target) + room;
    document.tokens = document.tokens.first(std::min(document.tokens.size(), end));
    reference.documents.push_back(document);
    reference.outcome = for_each_target(
        context, model, document, cancelled, [&](std::span<const float> row, int32_t) {
          reference.logits.insert(reference.logits.end(), row.begin(), row.end());
        });
    if (reference.outcome == Outcome::cancelled) break;
  }
  return reference;
}

Outcome compare_with(const kernels::Context& context, const model::Model& model,
                     const ReferenceLogits& reference, const std::atomic<bool>* cancelled,
                     Divergence& divergence) {
  const auto vocabulary = static_cast<std::size_t>(model.config.vocab_size);
  std::size_t num_rows = 0;
  for (const ScoredDocument& document : reference.documents) {
    num_rows += static_cast<std::size_t>(document.num_targets());
  }
  if (num_rows * vocabulary != reference.logits.size()) {
    fail(ErrorKind::input, "the models differ in their vocabularies: {} and {} tokens",
         num_rows > 0 ? reference.logits.size() / num_rows : 0, vocabulary);
  }
  std::size_t at = 0;
  for (const ScoredDocument& document : reference.documents) {
    const Outcome outcome = for_each_target(
        context, model, document, cancelled, [&](std::span<const float> row, int32_t target) {
          const std::span<const float> kept(reference.logits.data() + at, vocabulary);
          add_row(kept, row, target, divergence);
          at += vocabulary;
        });
    if (outcome == Outcome::cancelled) return outcome;
  }
  return Outcome::done;
}

}  // namespace dsmoe::infer

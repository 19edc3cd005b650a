// One evaluation per variant over the same documents.
#include "infer/measure/probe.h"

#include <algorithm>

#include "base/error.h"
#include "infer/load_model.h"
#include "kernels/combine.h"

namespace dsmoe::infer {

std::string_view name_of(ProbeKind kind) {
  switch (kind) {
    case ProbeKind::whole:
      return "whole";
    case ProbeKind::masked:
      return "masked";
    case ProbeKind::fewer_active:
      return "fewer_active";
    case ProbeKind::shared_replaced:
      return "shared_replaced";
  }
  return "";
}

std::vector<ProbeVariant> probe_variants(const model::ModelConfig& config) {
  if (config.num_moe_layers() == 0) {
    fail(ErrorKind::input, "the model has no MoE layer: there are no experts to take away");
  }
  const int64_t top_k = config.num_experts_per_tok;
  const int64_t selectable = config.num_selectable_experts();
  std::vector<ProbeVariant> variants{{.kind = ProbeKind::whole, .top_k = top_k}};
  int64_t last = 0;
  for (const int64_t sixteenths : {1, 2, 3, 4}) {
    const int64_t skip = std::max(last + 1, (config.n_routed_experts * sixteenths + 8) / 16);
    if (top_k + skip > selectable) break;
    variants.push_back(
        {.kind = ProbeKind::masked, .top_k = top_k, .ablation = {.skip_best = skip}});
    last = skip;
  }
  for (int64_t k = top_k - 1; k >= std::max<int64_t>(1, top_k - kMaxFewer); --k) {
    variants.push_back({.kind = ProbeKind::fewer_active, .top_k = k});
  }
  const int64_t shared = config.n_shared_experts;
  if (shared > 0 && top_k + shared <= std::min(selectable, kernels::kMaxExpertsPerToken)) {
    variants.push_back({.kind = ProbeKind::shared_replaced,
                        .top_k = top_k + shared,
                        .ablation = {.shared = model::SharedExperts::left_out}});
  }
  return variants;
}

std::vector<ProbeResult> run_probe(const kernels::Context& context, const model::Model& model,
                                   std::span<const ProbeVariant> variants,
                                   std::span<const ScoredDocument> documents,
                                   const ProbeOptions& options) {
  DSMOE_CHECK(!documents.empty(), "no documents to probe with");
  std::vector<ProbeResult> results;
  for (const ProbeVariant& variant : variants) {
    double nats = 0;
    int64_t targets = 0;
    const ScorerOptions scorer{
        .top_k = variant.top_k, .ablation = variant.ablation, .cancelled = options.cancelled};
    const Outcome outcome = score_documents(
        context, model, documents, scorer, [&](int64_t document, const TokenScores& scores) {
          nats -= sum_scores(scores).log_likelihood;
          targets += static_cast<int64_t>(scores.log_prob.size());
          if (options.progress) options.progress(static_cast<int64_t>(results.size()), document);
        });
    if (outcome == Outcome::cancelled) return results;
    results.push_back({.variant = variant, .loss = nats / static_cast<double>(targets)});
  }
  return results;
}

}  // namespace dsmoe::infer

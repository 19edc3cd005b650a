// The paper's specialisation tests: the loss of a model that must do without some of its experts.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "infer/measure/evaluate.h"

namespace dsmoe::infer {

enum class ProbeKind {
  whole,            // the model as it is
  masked,           // the best `skip_best` routed experts of each token are out of reach
  fewer_active,     // `top_k` below the model's
  shared_replaced,  // the shared experts left out, as many more routed ones chosen
};
std::string_view name_of(ProbeKind kind);

struct ProbeVariant {
  ProbeKind kind = ProbeKind::whole;
  int64_t top_k = 0;  // routed experts per token
  model::Ablation ablation;
};

// The whole model; masks of 1/16, 1/8, 3/16 and 1/4 of the routed experts, at least one each;
// one active expert less at a time down to one (at most `kMaxFewer` lines); shared experts replaced
// by routed ones. What the model has not enough experts for is left out. Throws Error(input) on a
// model without MoE layers.
inline constexpr int64_t kMaxFewer = 8;
std::vector<ProbeVariant> probe_variants(const model::ModelConfig& config);

struct ProbeResult {
  ProbeVariant variant;
  double loss = 0;  // nats per token
};
struct ProbeOptions {
  const std::atomic<bool>* cancelled = nullptr;
  std::function<void(int64_t variant_idx, int64_t document_idx)> progress;  // may be empty
};
// Fewer results than variants: cancelled.
std::vector<ProbeResult> run_probe(const kernels::Context& context, const model::Model& model,
                                   std::span<const ProbeVariant> variants,
                                   std::span<const ScoredDocument> documents,
                                   const ProbeOptions& options);

}  // namespace dsmoe::infer

// DispatchPlan: which row of which expert computes which token. Plain data, built once per layer
// and step, reused by forward, backward, every backend and every rank.
#pragma once

#include "kernels/context.h"
#include "kernels/layout.h"

namespace dsmoe::kernels {

// All I32. R = tokens * top_k is the capacity; rows [expert_offsets[E], R) are unused when some
// tokens take fewer experts. Rows are sorted by (expert, sequence, token).
struct DispatchPlan {
  TensorView expert_offsets;    // [experts + 1], exclusive prefix sums of rows per expert
  TensorView sequence_offsets;  // [experts, sequences + 1], first row of (expert, sequence)
  TensorView token_of_row;      // [R]
  TensorView row_of_slot;       // [tokens, top_k], -1 where the slot is absent
};

struct PlanBuild {
  TensorView index;  // [tokens, top_k] I32: expert of each slot, -1 absent
  TensorView
      sequence_starts;  // [sequences + 1] I32: tokens of sequence s are [starts[s], starts[s + 1])
  DispatchPlan plan;    // written
};
void plan_build(const Context& context, const PlanBuild& args);

}  // namespace dsmoe::kernels

// The dispatch plan as the layer uses it: memory, building, and a check of everything it promises.
#pragma once

#include "kernels/plan.h"
#include "tensor/arena.h"

namespace dsmoe::moe {

struct PlanSize {
  int64_t num_experts = 0;
  int64_t max_sequences = 0;
  int64_t max_tokens = 0;
  int64_t top_k = 0;
};
kernels::DispatchPlan allocate_plan(const PlanSize& size, tensor::Arena& arena);

// Rows sorted by (expert, sequence, token); in debug builds the result is checked.
void build_plan(const kernels::Context& context, const kernels::TensorView& index,
                const kernels::TensorView& sequence_starts, const kernels::DispatchPlan& plan);

// Throws Error(internal) unless the plan is exactly what its contract says for this choice. Host
// memory only.
void check_plan(const kernels::TensorView& index, const kernels::TensorView& sequence_starts,
                const kernels::DispatchPlan& plan);

}  // namespace dsmoe::moe

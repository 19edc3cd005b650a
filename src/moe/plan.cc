// Allocation and verification of the dispatch plan.
#include "moe/plan.h"

#include <vector>

namespace dsmoe::moe {

using kernels::DispatchPlan;
using kernels::TensorView;

DispatchPlan allocate_plan(const PlanSize& size, tensor::Arena& arena) {
  using kernels::DType;
  return {.expert_offsets = arena.tensor("plan", DType::I32, {size.num_experts + 1}),
          .sequence_offsets =
              arena.tensor("plan", DType::I32, {size.num_experts, size.max_sequences + 1}),
          .token_of_row = arena.tensor("plan", DType::I32, {size.max_tokens * size.top_k}),
          .row_of_slot = arena.tensor("plan", DType::I32, {size.max_tokens, size.top_k})};
}

void build_plan(const kernels::Context& context, const TensorView& index,
                const TensorView& sequence_starts, const DispatchPlan& plan) {
  kernels::plan_build(context, {.index = index, .sequence_starts = sequence_starts, .plan = plan});
#ifndef NDEBUG
  if (index.device == kernels::Device::cpu) check_plan(index, sequence_starts, plan);
#endif
}

void check_plan(const TensorView& index, const TensorView& sequence_starts,
                const DispatchPlan& plan) {
  const int64_t tokens = index.dim(0);
  const int64_t top_k = index.dim(1);
  const int64_t experts = plan.expert_offsets.dim(0) - 1;
  const int64_t sequences = sequence_starts.dim(0) - 1;
  const int32_t* chosen = index.as<int32_t>();
  const int32_t* starts = sequence_starts.as<int32_t>();
  const int32_t* offsets = plan.expert_offsets.as<int32_t>();
  const int32_t* sequence_offsets = plan.sequence_offsets.as<int32_t>();
  const int32_t* token_of_row = plan.token_of_row.as<int32_t>();
  const int32_t* row_of_slot = plan.row_of_slot.as<int32_t>();

  std::vector<int32_t> slot_of_row(tokens * top_k, -1);
  int64_t num_rows = 0;
  for (int64_t slot = 0; slot < tokens * top_k; ++slot) {
    const int32_t row = row_of_slot[slot];
    DSMOE_CHECK((row < 0) == (chosen[slot] < 0), "slot {} has expert {} and row {}", slot,
                chosen[slot], row);
    if (row < 0) continue;
    ++num_rows;
    DSMOE_CHECK(row < tokens * top_k, "slot {} has row {} of {}", slot, row, tokens * top_k);
    DSMOE_CHECK(slot_of_row[row] < 0, "slot {} shares row {} with slot {}", slot, row,
                slot_of_row[row]);
    slot_of_row[row] = static_cast<int32_t>(slot);
    DSMOE_CHECK(token_of_row[row] == slot / top_k, "row {} says token {}, slot says {}", row,
                token_of_row[row], slot / top_k);
    const int32_t e = chosen[slot];
    DSMOE_CHECK(offsets[e] <= row && row < offsets[e + 1],
                "row {} of expert {} lies outside [{}, {})", row, e, offsets[e], offsets[e + 1]);
  }
  DSMOE_CHECK(offsets[0] == 0 && offsets[experts] == num_rows,
              "offsets end at {}, {} slots are present", offsets[experts], num_rows);
  for (int64_t e = 0; e < experts; ++e) {
    const int32_t* expert_sequences = sequence_offsets + e * (sequences + 1);
    DSMOE_CHECK(expert_sequences[0] == offsets[e] && expert_sequences[sequences] == offsets[e + 1],
                "sequence offsets of expert {} do not span its rows", e);
    for (int64_t s = 0; s < sequences; ++s) {
      DSMOE_CHECK(offsets[e] <= expert_sequences[s] && expert_sequences[s + 1] <= offsets[e + 1],
                  "sequence {} of expert {} leaves the expert's rows", s, e);
      for (int32_t row = expert_sequences[s]; row < expert_sequences[s + 1]; ++row) {
        const int32_t token = token_of_row[row];
        DSMOE_CHECK(starts[s] <= token && token < starts[s + 1],
                    "row {} (token {}) is not of sequence {}", row, token, s);
        DSMOE_CHECK(row == offsets[e] || token_of_row[row - 1] < token,
                    "rows {} and {} are out of order", row - 1, row);
      }
    }
  }
}

}  // namespace dsmoe::moe

// The ops of the CPU tiers: each divides its work over the threads and leaves the inner loops to a
// Tier.
#pragma once

#include "kernels/cpu/tier.h"
#include "kernels/ops.h"
#include "kernels/table.h"

namespace dsmoe::kernels::cpu {

#define DSMOE_DECLARE(name, Arguments) \
  void name(const Tier& tier, const Context& context, const Arguments& args);
DSMOE_OPS_OF_TIERS(DSMOE_DECLARE)
DSMOE_OPS_OF_CPU_TIERS(DSMOE_DECLARE)
#undef DSMOE_DECLARE

// Floats of scratch memory that a thread needs for an op of these sizes.
int64_t rope_scratch(int64_t key_width, int64_t value_width);
int64_t attention_backward_scratch(int64_t keys, int64_t key_width, int64_t value_width);
int64_t experts_backward_scratch(int64_t width);
int64_t weight_gradient_scratch(int64_t inputs);
void reserve_scratch(const Context& context, const ScratchBound& bound);

// The table of a tier: its ops over those of `below`.
template <const Tier& tier>
KernelTable make_table(std::string_view name, const KernelTable& below) {
  KernelTable table = below;
  table.name = name;
  table.weight_layout = WeightLayout::panels;
  table.memory.reserve_scratch = reserve_scratch;
#define DSMOE_ENTRY(name, Arguments)                               \
  table.name = [](const Context& context, const Arguments& args) { \
    cpu::name(tier, context, args);                                \
  };
  DSMOE_OPS_OF_TIERS(DSMOE_ENTRY)
  DSMOE_OPS_OF_CPU_TIERS(DSMOE_ENTRY)
#undef DSMOE_ENTRY
  return table;
}

}  // namespace dsmoe::kernels::cpu

// The implementation table: one function per op and tier, chosen once at start, printable.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/attempt.h"
#include "kernels/beside.h"
#include "kernels/context.h"
#include "kernels/layout.h"
#include "kernels/memory.h"
#include "kernels/op_list.h"
#include "kernels/recording.h"
#include "tensor/arena.h"

namespace dsmoe::kernels {

// The arguments of the ops. Only named here: who calls an op includes its header, who implements
// them all includes kernels/ops.h.
#define DSMOE_ARGUMENTS(name, Arguments) struct Arguments;
DSMOE_OPS(DSMOE_ARGUMENTS)
DSMOE_OPS_OF_CPU(DSMOE_ARGUMENTS)
DSMOE_FUSED_OPS(DSMOE_ARGUMENTS)
#undef DSMOE_ARGUMENTS
struct OptimizerStep;
struct TakesParts;

// A tier fills what it implements over a copy of the table below it (amx over v4 over ref), so a
// slot is never empty unless it says so. Callers use the checked functions of the op headers, which
// call through the table of their context.
struct KernelTable {
  std::string_view name;  // "ref", "v3", "v4", "v4_bf16", "amx", "cuda"
  Device device = Device::cpu;
  WeightLayout weight_layout = WeightLayout::panels;
  // Input gradients read the weights themselves as transpose_of says. Others read transposed copies
  // in weight_layout.
  bool takes_transposes = false;
  // Ops write the copies that callers ask for (`rounded`) and add to what lies elsewhere (`base`)
  // in their own pass. Others leave it to the checked functions, which call round_values and
  // rope_backward.
  bool copies_in_pass = false;
  tensor::Arena::Allocator allocator;  // of the device's memory
  MemoryOps memory;
  RecordingOps recording;
  BesideOps beside;

#define DSMOE_SLOT(name, Arguments) void (*name)(const Context&, const Arguments&) = nullptr;
  DSMOE_OPS(DSMOE_SLOT)
  DSMOE_OPS_OF_CPU(DSMOE_SLOT)
  DSMOE_OPS_OF_MANY(DSMOE_SLOT)
#undef DSMOE_SLOT
#define DSMOE_SLOT(name, Arguments) Attempt (*name)(const Context&, const Arguments&) = nullptr;
  DSMOE_FUSED_OPS(DSMOE_SLOT)
#undef DSMOE_SLOT
  // Absent where ops take their columns whole only.
  bool (*takes_parts)(const Context&, const TakesParts&) = nullptr;
};

// The specification: ref<float> for BF16 and F32, ref<double> for F64.
const KernelTable& ref_table();

// One line of `dsmoe info`: a tier this program knows, and why it was passed over (empty when it
// can run here).
struct Candidate {
  const KernelTable* table;  // nullptr: not built in
  std::string_view name;
  std::string declined;
};

// CPU tiers, best first, "ref" last.
std::vector<Candidate> cpu_candidates();

// The first candidate that can run, or the one DSMOE_ISA names; an unknown or impossible name is an
// Error(usage).
const KernelTable& select_cpu_table();

}  // namespace dsmoe::kernels

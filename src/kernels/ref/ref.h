// The reference implementation of every op: the specification, the fallback and the oracle.
#pragma once

#include "kernels/ops.h"
#include "kernels/table.h"

namespace dsmoe::kernels::ref {

#define DSMOE_DECLARE(name, Arguments) void name(const Context&, const Arguments&);
DSMOE_OPS(DSMOE_DECLARE)
DSMOE_OPS_OF_CPU(DSMOE_DECLARE)
#undef DSMOE_DECLARE

}  // namespace dsmoe::kernels::ref

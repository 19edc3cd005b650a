// Kernels whose blocks wait for one another, and who may launch them.
#pragma once

#include "kernels/context.h"

namespace dsmoe::kernels::cuda {

// Two such kernels side by side could each hold half of the multiprocessors and wait for ever. So
// one stream of the process may launch them: the oldest that make_cuda_stream made and that still
// lives. Other streams run ops one by one, with the same bits.
bool waits_allowed(const Context& context);
void claim_waits(void* stream);
void release_waits(void* stream);

}  // namespace dsmoe::kernels::cuda

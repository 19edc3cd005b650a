// The weight gradient for shapes and types the copy engine cannot read.
#pragma once

#include "kernels/matmul.h"

namespace dsmoe::kernels::cuda {

// Any shape, any operand type; for bf16 the same bits as the Hopper kernel. Slow, but for an fp32
// dy with one matrix (the router), whose segments are summed side by side.
void weight_gradient_portable(const Context& context, const WeightGradient& args);

}  // namespace dsmoe::kernels::cuda

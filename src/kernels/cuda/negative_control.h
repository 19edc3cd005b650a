// Kernels that break one rule of docs/numerics.md each. Linked into tests only.
#pragma once

#include "kernels/context.h"
#include "kernels/layout.h"

namespace dsmoe::kernels::cuda {

// out = x W^T with k split into two chains, added at the end.
void product_split_k(const Context& context, const TensorView& x, const WeightStack& weight,
                     const TensorView& out);

}  // namespace dsmoe::kernels::cuda

// What breaks one rule each, of docs/numerics.md or of a contract. Linked into tests only.
#pragma once

#include "kernels/context.h"
#include "kernels/layout.h"
#include "kernels/table.h"

namespace dsmoe::kernels::cuda {

// out = x W^T with k split into two chains, added at the end.
void product_split_k(const Context& context, const TensorView& x, const WeightStack& weight,
                     const TensorView& out);

// Keeps the context's stream busy with one thread, so that who does not wait for it comes too
// early.
void delay(const Context& context);
// The CUDA table whose pieces beside this context begin before what was issued ahead of them is
// done; `queue`: the stream of such pieces, from begin_beside when nothing was under way.
KernelTable table_that_begins_early(const Context& context, void* queue);
// The CUDA table whose wait_beside waits for the piece before the one it was given.
KernelTable table_that_waits_too_little();

}  // namespace dsmoe::kernels::cuda

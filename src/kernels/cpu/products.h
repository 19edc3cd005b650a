// One matrix product over the threads, for the ops that need one.
#pragma once

#include "kernels/context.h"
#include "kernels/cpu/split.h"

namespace dsmoe::kernels::cpu {

// Weight, k, n and all panels of a matrix; rows, x, out and epilogue are the caller's to fill.
ProductBlock block_of(const WeightStack& weight, int64_t matrix_idx);

// Runs in one parallel region, divided by panels and rows.
void run_product(const Tier& tier, const Context& context, const ProductBlock& block);

}  // namespace dsmoe::kernels::cpu

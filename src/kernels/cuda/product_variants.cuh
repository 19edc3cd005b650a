// The tile variants, smallest first, and the launch of one of them.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/cuda/product_kernel.cuh"

namespace dsmoe::kernels::cuda {

// Up to 64 rows per expert the weights' way through memory is the time: small tiles, two blocks to a multiprocessor, 64 to 96 KiB
// of weights in flight on each. Beyond that, 128 x 256 keeps shared-memory reads (80 bytes a cycle) below the limit (128).
using Rows8 = Variant<64, 8, 2, 5>;
using Rows64 = Variant<64, 64, 1, 5>;
using Rows128 = Variant<128, 128, 1, 6>;
using Rows256 = Variant<128, 256, 1, 4>;
constexpr int kVariantRows[] = {8, 64, 128, 256};
constexpr int kVariantWeights[] = {64, 64, 128, 128};

template <class V, Epilogue kEpilogue, bool kGathered>
void launch_one(const Context& context, const VariantLaunch& how, const ProductParameters& parameters) {
  const auto kernel = product_kernel<V, kEpilogue, kGathered>;
  static const bool once = (allow_shared(kernel, V::kSharedBytes), true);
  (void)once;
  const int blocks = how.num_blocks > 0 ? how.num_blocks : num_multiprocessors() * V::kBlocksPerSm;
  launch(context,
         {.grid = dim3(static_cast<unsigned>(blocks)), .block = dim3(V::kThreads), .shared_bytes = V::kSharedBytes},
         kernel, parameters);
}

template <Epilogue kEpilogue, bool kGathered>
void launch_variant(const Context& context, const VariantLaunch& how, const ProductParameters& parameters) {
  switch (how.variant) {
    case 0: return launch_one<Rows8, kEpilogue, kGathered>(context, how, parameters);
    case 1: return launch_one<Rows64, kEpilogue, kGathered>(context, how, parameters);
    case 2: return launch_one<Rows128, kEpilogue, kGathered>(context, how, parameters);
    default: return launch_one<Rows256, kEpilogue, kGathered>(context, how, parameters);
  }
}

}  // namespace dsmoe::kernels::cuda

// The tile variants, smallest first, and the launch of one of them.
#pragma once

#include "kernels/cuda/product/product_kernel.cuh"
#include "kernels/cuda/stream/launch.h"

namespace dsmoe::kernels::cuda {

// Template arguments: weight rows and x rows of a tile, blocks of 64 k in a stage, stages, consumer
// warpgroups, blocks to a multiprocessor. Up to some 64 rows per expert the weights' way through
// memory is the time: 64 KiB and more of them are in flight on each multiprocessor. Beyond that,
// 128 x 256 keeps shared-memory reads (80 bytes a cycle) below the limit (128), and 256 x 128
// halves the rows to gather. Where the epilogue takes as long as the products, consumers take tiles
// in turn.
using Rows8 = Variant<64, 8, 2, 5, 1, 2>;
using Rows64 = Variant<128, 64, 1, 8, 2, 1>;
using Rows128 = Variant<128, 128, 1, 6, 2, 1>;
using Rows128Wide = Variant<256, 128, 1, 4, 2, 1>;
using Rows256 = Variant<128, 256, 1, 4, 2, 1>;
using Rows128InTurn = InTurn<Rows128>;
enum VariantName : int { kRows8, kRows64, kRows128, kRows128Wide, kRows256, kRows128InTurn };
constexpr int kVariantRows[] = {8, 64, 128, 128, 256, 128};
constexpr int kVariantWeights[] = {64, 128, 128, 256, 128, 128};

// Training has no use for the small variants: column-major weights come with many rows.
constexpr int kLeastRowsTransposed = 128;

template <class V, Epilogue kEpilogue, bool kGathered>
void launch_one(const Context& context, const ProductParameters& parameters) {
  allow_shared_once<product_kernel<V, kEpilogue, kGathered>>(V::kSharedBytes);
  launch(context,
         {.grid = dim3(static_cast<unsigned>(num_multiprocessors() * V::kBlocksPerSm)),
          .block = dim3(V::kThreads),
          .shared_bytes = V::kSharedBytes},
         product_kernel<V, kEpilogue, kGathered>, parameters);
}

template <class V, Epilogue kEpilogue>
void launch_either(const Context& context, const VariantLaunch& how,
                   const ProductParameters& parameters) {
  if constexpr (V::kRows >= kLeastRowsTransposed) {
    if (how.transposed) return launch_one<Transposed<V>, kEpilogue, false>(context, parameters);
  }
  launch_one<V, kEpilogue, false>(context, parameters);
}

// The kernels of one variant, each in a source file of its own: they are what takes time to
// compile.
template <class V>
void launch_variant(const Context& context, const VariantLaunch& how,
                    const ProductParameters& parameters) {
  switch (how.epilogue) {
    case Epilogue::swiglu:
      if (how.gathered) return launch_one<V, Epilogue::swiglu, true>(context, parameters);
      return launch_one<V, Epilogue::swiglu, false>(context, parameters);
    case Epilogue::round:
      return launch_either<V, Epilogue::round>(context, how, parameters);
    case Epilogue::dense:
      return launch_either<V, Epilogue::dense>(context, how, parameters);
    case Epilogue::swiglu_backward:
      if constexpr (V::kRows >= kLeastRowsTransposed) {
        if (how.gathered)
          return launch_one<Transposed<V>, Epilogue::swiglu_backward, true>(context, parameters);
        return launch_one<Transposed<V>, Epilogue::swiglu_backward, false>(context, parameters);
      }
      break;
    case Epilogue::rope:  // rope_fits
      if constexpr (V::kRows == 256)
        return launch_one<V, Epilogue::rope, false>(context, parameters);
  }
}

extern template void launch_variant<Rows8>(const Context&, const VariantLaunch&,
                                           const ProductParameters&);
extern template void launch_variant<Rows128Wide>(const Context&, const VariantLaunch&,
                                                 const ProductParameters&);
extern template void launch_variant<Rows64>(const Context&, const VariantLaunch&,
                                            const ProductParameters&);
extern template void launch_variant<Rows128>(const Context&, const VariantLaunch&,
                                             const ProductParameters&);
extern template void launch_variant<Rows256>(const Context&, const VariantLaunch&,
                                             const ProductParameters&);
extern template void launch_variant<Rows128InTurn>(const Context&, const VariantLaunch&,
                                                   const ProductParameters&);

}  // namespace dsmoe::kernels::cuda

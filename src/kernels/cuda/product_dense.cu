// Dense projections into fp32.
#include "kernels/cuda/product_variants.cuh"

namespace dsmoe::kernels::cuda {

void launch_dense(const Context& context, const VariantLaunch& how, const ProductParameters& parameters) {
  launch_variant<Epilogue::dense, false>(context, how, parameters);
}

}  // namespace dsmoe::kernels::cuda

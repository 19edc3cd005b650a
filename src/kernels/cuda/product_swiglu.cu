// Gate and up products with SwiGLU.
#include "kernels/cuda/product_variants.cuh"

namespace dsmoe::kernels::cuda {

void launch_swiglu(const Context& context, const VariantLaunch& how, const ProductParameters& parameters) {
  if (how.gathered) return launch_variant<Epilogue::swiglu, true>(context, how, parameters);
  launch_variant<Epilogue::swiglu, false>(context, how, parameters);
}

}  // namespace dsmoe::kernels::cuda

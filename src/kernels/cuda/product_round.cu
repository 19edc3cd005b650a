// Down products, rounded to bf16.
#include "kernels/cuda/product_variants.cuh"

namespace dsmoe::kernels::cuda {

void launch_round(const Context& context, const VariantLaunch& how, const ProductParameters& parameters) {
  launch_variant<Epilogue::round, false>(context, how, parameters);
}

}  // namespace dsmoe::kernels::cuda

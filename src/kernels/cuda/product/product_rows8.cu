// The kernels of variant Rows8.
#include "kernels/cuda/product/product_variants.cuh"

namespace dsmoe::kernels::cuda {

template void launch_variant<Rows8>(const Context&, const VariantLaunch&, const ProductParameters&);

}  // namespace dsmoe::kernels::cuda

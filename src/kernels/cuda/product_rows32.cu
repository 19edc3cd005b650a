// The kernels of variant Rows32.
#include "kernels/cuda/product_variants.cuh"

namespace dsmoe::kernels::cuda {

template void launch_variant<Rows32>(const Context&, const VariantLaunch&, const ProductParameters&);

}  // namespace dsmoe::kernels::cuda

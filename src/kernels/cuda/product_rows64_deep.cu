// The kernels of variant Rows64Deep.
#include "kernels/cuda/product_variants.cuh"

namespace dsmoe::kernels::cuda {

template void launch_variant<Rows64Deep>(const Context&, const VariantLaunch&, const ProductParameters&);

}  // namespace dsmoe::kernels::cuda

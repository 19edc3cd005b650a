// The kernels of variant Rows8Deep.
#include "kernels/cuda/product_variants.cuh"

namespace dsmoe::kernels::cuda {

template void launch_variant<Rows8Deep>(const Context&, const VariantLaunch&, const ProductParameters&);

}  // namespace dsmoe::kernels::cuda

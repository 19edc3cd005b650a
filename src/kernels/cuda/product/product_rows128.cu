// The kernels of variant Rows128.
#include "kernels/cuda/product/product_variants.cuh"

namespace dsmoe::kernels::cuda {

template void launch_variant<Rows128>(const Context&, const VariantLaunch&,
                                      const ProductParameters&);

}  // namespace dsmoe::kernels::cuda

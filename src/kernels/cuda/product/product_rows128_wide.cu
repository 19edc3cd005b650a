// The kernels of variant Rows128Wide.
#include "kernels/cuda/product/product_variants.cuh"

namespace dsmoe::kernels::cuda {

template void launch_variant<Rows128Wide>(const Context&, const VariantLaunch&,
                                          const ProductParameters&);

}  // namespace dsmoe::kernels::cuda

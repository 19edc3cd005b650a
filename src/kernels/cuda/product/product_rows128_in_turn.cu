// The kernels of variant Rows128InTurn.
#include "kernels/cuda/product/product_variants.cuh"

namespace dsmoe::kernels::cuda {

template void launch_variant<Rows128InTurn>(const Context&, const VariantLaunch&,
                                            const ProductParameters&);

}  // namespace dsmoe::kernels::cuda

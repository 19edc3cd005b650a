// Conversion of stored elements, and their placement in a weight layout.
#include "kernels/elements.h"
#include "kernels/ref/ref.h"

namespace dsmoe::kernels::ref {

void pack_weight(const Context&, const PackWeight& args) {
  const WeightStack& target = args.target;
  void* matrix = target.matrix(args.matrix_idx);
  for (int64_t row = 0; row < args.source.dim(0); ++row) {
    for (int64_t k = 0; k < target.k; ++k) {
      const double value = read_element(args.source.data, args.source.dtype, row * target.k + k);
      const int64_t place =
          weight_index(target.layout, target.dtype, target.k, args.row_begin + row, k);
      write_element(matrix, target.dtype, place, value);
    }
  }
}

}  // namespace dsmoe::kernels::ref

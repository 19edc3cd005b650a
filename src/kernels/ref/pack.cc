// Conversion of stored elements, and their placement in a weight layout.
#include "kernels/elements.h"
#include "kernels/ref/ref.h"

namespace dsmoe::kernels::ref {

void pack_weight(const Context&, const PackWeight& args) {
  const WeightStack& target = args.target;
  void* matrix = target.matrix(args.matrix_idx);
  const int64_t columns = args.source.dim(1);
  for (int64_t row = 0; row < args.source.dim(0); ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      const double value =
          read_element(args.source.data, args.source.dtype, row * columns + column);
      const bool transposed = args.order == PackOrder::transposed;
      const int64_t n = transposed ? column : args.row_begin + row;
      const int64_t k = transposed ? args.row_begin + row : column;
      write_element(matrix, target.dtype, weight_index(target.layout, target.dtype, target.k, n, k),
                    value);
    }
  }
}

}  // namespace dsmoe::kernels::ref

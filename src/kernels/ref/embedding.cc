// Rows of the embedding table, widened.
#include "kernels/ref/ref.h"
#include "kernels/ref/scalar.h"

namespace dsmoe::kernels::ref {

void embedding_forward(const Context&, const EmbeddingForward& args) {
  with_operand(args.table.dtype, [&]<class Operand>() {
    const int64_t hidden = args.table.dim(1);
    auto* out = args.out.as<Scalar<Operand>>();
    for (int64_t t = 0; t < args.ids.dim(0); ++t) {
      const Operand* row = args.table.as<Operand>() + args.ids.as<int32_t>()[t] * hidden;
      for (int64_t i = 0; i < hidden; ++i) out[t * hidden + i] = widen(row[i]);
    }
  });
}

void embedding_backward(const Context&, const EmbeddingBackward& args) {
  with_operand(args.d_out.dtype, [&]<class S>() {
    if constexpr (!std::is_same_v<S, Bf16>) {
      const int64_t hidden = args.d_out.dim(1);
      for (int64_t t = 0; t < args.ids.dim(0); ++t) {
        S* row = args.d_table.as<S>() + args.ids.as<int32_t>()[t] * hidden;
        for (int64_t i = 0; i < hidden; ++i) row[i] = row[i] + args.d_out.as<S>()[t * hidden + i];
      }
    }
  });
}

}  // namespace dsmoe::kernels::ref

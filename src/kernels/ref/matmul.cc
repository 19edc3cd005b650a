// y = x W^T, one dot product at a time.
#include "kernels/ref/ref.h"
#include "kernels/ref/scalar.h"

namespace dsmoe::kernels::ref {

void matmul_forward(const Context&, const MatmulForward& args) {
  with_operand(args.x.dtype, [&]<class Operand>() {
    using S = Scalar<Operand>;
    const auto* x = args.x.as<Operand>();
    const S* bias = args.bias ? args.bias.as<S>() : nullptr;
    S* out = args.out.as<S>();
    for (int64_t t = 0; t < args.x.dim(0); ++t) {
      for (int64_t n = 0; n < args.weight.n; ++n) {
        S y = dot(x + t * args.weight.k, args.weight, 0, n);
        if (bias != nullptr) y = y + bias[n];
        S& target = out[t * args.weight.n + n];
        target = args.store == Store::accumulate ? target + y : y;
      }
    }
  });
}

}  // namespace dsmoe::kernels::ref

// Root-mean-square normalisation of each row.
#include "kernels/ref/ref.h"
#include "kernels/ref/scalar.h"

namespace dsmoe::kernels::ref {

void rms_norm_forward(const Context&, const RmsNormForward& args) {
  with_operand(args.out.dtype, [&]<class Operand>() {
    using S = Scalar<Operand>;
    const int64_t hidden = args.x.dim(1);
    const S* weight = args.weight.as<S>();
    for (int64_t t = 0; t < args.x.dim(0); ++t) {
      const S* x = args.x.as<S>() + t * hidden;
      Operand* out = args.out.as<Operand>() + t * hidden;
      const S sum = reduce_row<S>(
          hidden, S(0), [&](S lane, int64_t i) { return fma(x[i], x[i], lane); },
          [](S a, S b) { return a + b; });
      const S inverse = S(1) / std::sqrt(sum / static_cast<S>(hidden) + static_cast<S>(args.eps));
      for (int64_t i = 0; i < hidden; ++i) out[i] = round_to<Operand>((x[i] * inverse) * weight[i]);
    }
  });
}

}  // namespace dsmoe::kernels::ref

// Root-mean-square normalisation of each row.
#include <algorithm>
#include <vector>

#include "kernels/ref/ref.h"
#include "kernels/ref/scalar.h"

namespace dsmoe::kernels::ref {
namespace {

template <class S>
S inverse_rms(const S* x, int64_t hidden, double eps) {
  const S sum = reduce_row<S>(
      hidden, S(0), [&](S lane, int64_t i) { return fma(x[i], x[i], lane); },
      [](S a, S b) { return a + b; });
  return S(1) / std::sqrt(sum / static_cast<S>(hidden) + static_cast<S>(eps));
}

}  // namespace

void rms_norm_forward(const Context&, const RmsNormForward& args) {
  with_operand(args.out.dtype, [&]<class Operand>() {
    using S = Scalar<Operand>;
    const int64_t hidden = args.x.dim(1);
    const S* weight = args.weight.as<S>();
    for (int64_t t = 0; t < args.x.dim(0); ++t) {
      const S* x = args.x.as<S>() + t * hidden;
      Operand* out = args.out.as<Operand>() + t * hidden;
      const S inverse = inverse_rms(x, hidden, args.eps);
      for (int64_t i = 0; i < hidden; ++i) out[i] = round_to<Operand>((x[i] * inverse) * weight[i]);
    }
  });
}

void rms_norm_backward(const Context&, const RmsNormBackward& args) {
  with_operand(args.x.dtype, [&]<class S>() {
    if constexpr (!std::is_same_v<S, Bf16>) {
      const int64_t hidden = args.x.dim(1);
      const S* weight = args.weight.as<S>();
      const int32_t* starts = args.sequence_starts.as<int32_t>();
      std::vector<S> y(hidden);
      std::vector<S> chain(hidden);
      for (int64_t s = 0; s + 1 < args.sequence_starts.dim(0); ++s) {
        std::fill(chain.begin(), chain.end(), S(0));
        for (int64_t t = starts[s] * args.rows_per_token; t < starts[s + 1] * args.rows_per_token;
             ++t) {
          const S* x = args.x.as<S>() + t * hidden;
          const S* d_out = args.d_out.as<S>() + t * hidden;
          S* d_x = args.d_x.as<S>() + t * hidden;
          const S inverse = inverse_rms(x, hidden, args.eps);
          for (int64_t i = 0; i < hidden; ++i) y[i] = x[i] * inverse;
          const S mean =
              row_sum<S>(hidden, [&](int64_t i) { return (d_out[i] * weight[i]) * y[i]; }) /
              static_cast<S>(hidden);
          for (int64_t i = 0; i < hidden; ++i) {
            d_x[i] = d_x[i] + inverse * (d_out[i] * weight[i] - y[i] * mean);
            chain[i] = fma(d_out[i], y[i], chain[i]);
          }
        }
        if (!args.d_weight) continue;
        for (int64_t i = 0; i < hidden; ++i)
          args.d_weight.as<S>()[i] = args.d_weight.as<S>()[i] + chain[i];
      }
    }
  });
}

}  // namespace dsmoe::kernels::ref

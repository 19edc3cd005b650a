// AdamW on one tensor, and its gradient's share of the global norm.
#include <algorithm>

#include "kernels/ref/ref.h"
#include "kernels/ref/scalar.h"

namespace dsmoe::kernels::ref {

void sum_of_squares(const Context&, const SumOfSquares& args) {
  with_operand(args.x.dtype, [&]<class S>() {
    if constexpr (!std::is_same_v<S, Bf16>) {
      const int64_t size = args.x.num_elements();
      const int64_t part_size = square_part_size(size);
      double sum = 0;
      for (int64_t begin = 0; begin < size; begin += part_size) {
        const S* x = args.x.as<S>() + begin;
        sum += row_sum<double>(std::min(part_size, size - begin), [&](int64_t i) {
          return static_cast<double>(x[i]) * static_cast<double>(x[i]);
        });
      }
      args.out.as<double>()[0] = sum;
    }
  });
}

void adamw_step(const Context&, const AdamwStep& args) {
  with_operand(args.weight.dtype, [&]<class S>() {
    if constexpr (!std::is_same_v<S, Bf16>) {
      S* w = args.weight.as<S>();
      S* m = args.first_moment.as<S>();
      S* v = args.second_moment.as<S>();
      const S beta1 = args.beta1;
      const S beta2 = args.beta2;
      for (int64_t i = 0; i < args.weight.num_elements(); ++i) {
        const S g = args.gradient.as<S>()[i] * S(args.gradient_scale);
        m[i] = fma(beta1, m[i], (S(1) - beta1) * g);
        v[i] = fma(beta2, v[i], ((S(1) - beta2) * g) * g);
        const S update =
            (m[i] / S(args.correction1)) / (std::sqrt(v[i] / S(args.correction2)) + S(args.eps));
        w[i] = w[i] - S(args.lr) * (update + S(args.weight_decay) * w[i]);
        if (args.clear_gradient) args.gradient.as<S>()[i] = 0;
        if (args.rounded) args.rounded.as<Bf16>()[i] = tensor::to_bf16(static_cast<float>(w[i]));
      }
    }
  });
}

}  // namespace dsmoe::kernels::ref

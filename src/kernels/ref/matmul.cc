// y = x W^T, one dot product at a time.
#include <algorithm>

#include "kernels/ref/ref.h"
#include "kernels/ref/scalar.h"

namespace dsmoe::kernels::ref {

void matmul_forward(const Context&, const MatmulForward& args) {
  with_operand(args.operand, [&]<class Operand>() {
    using S = Scalar<Operand>;
    const int64_t n_size = args.weight.stack.n;
    const S* bias = args.bias ? args.bias.as<S>() : nullptr;
    S* out = args.out.as<S>();
    for (int64_t t = 0; t < args.x.dim(0); ++t) {
      const Operand* x = args.x.as<Operand>() + t * args.weight.stack.k;
      const Operand* inner = inner_row(x, args.weight, 0, t);
      for (int64_t n = 0; n < n_size; ++n) {
        S y = dot(x, inner, args.weight, 0, n);
        if (bias != nullptr) y = y + bias[n];
        S& target = out[t * n_size + n];
        target = args.store == Store::accumulate ? target + y : y;
      }
    }
  });
}

void weight_gradient(const Context&, const WeightGradient& args) {
  with_operand(args.x.x.dtype, [&]<class Operand>() {
    const auto accumulate = [&]<class Factor>(Factor) {
      using S = Scalar<Operand>;
      const int64_t sequences = args.sequence_offsets.dim(1) - 1;
      const int64_t size_n = args.d_weight.dim(1);
      const int64_t size_k = args.d_weight.dim(2);
      for (int64_t m = 0; m < args.sequence_offsets.dim(0); ++m) {
        const int64_t slot = args.slot_of_matrix ? args.slot_of_matrix.as<int32_t>()[m] : m;
        if (slot < 0) continue;
        const int32_t* offsets = args.sequence_offsets.as<int32_t>() + m * (sequences + 1);
        S* d_weight = args.d_weight.as<S>() + slot * size_n * size_k;
        if (args.start == GradientStart::from_zero) std::fill_n(d_weight, size_n * size_k, S{0});
        for (int64_t i = 0; i < size_n * size_k; ++i) {
          const int64_t n = i / size_k;
          const int64_t k = i % size_k;
          for (int64_t s = 0; s < sequences; ++s) {
            d_weight[i] = product<Factor>(
                d_weight[i], offsets[s + 1] - offsets[s],
                [&](int64_t j) { return widen(row_of<Factor>(args.dy, offsets[s] + j)[n]); },
                [&](int64_t j) { return widen(row_of<Operand>(args.x, offsets[s] + j)[k]); });
          }
        }
      }
    };
    // A gradient in fp32 beside bf16 activations (the router's) asks for the fp32 rule.
    if (args.dy.x.dtype == args.x.x.dtype) {
      accumulate(Operand{});
    } else {
      accumulate(Scalar<Operand>{});
    }
  });
}

void bias_gradient(const Context&, const BiasGradient& args) {
  with_operand(args.dy.dtype, [&]<class Operand>() {
    using S = Scalar<Operand>;
    const int64_t size = args.dy.dim(1);
    const int32_t* starts = args.sequence_starts.as<int32_t>();
    for (int64_t n = 0; n < size; ++n) {
      for (int64_t s = 0; s + 1 < args.sequence_starts.dim(0); ++s) {
        S chain = 0;
        for (int64_t t = starts[s]; t < starts[s + 1]; ++t) {
          chain = chain + widen(args.dy.as<Operand>()[t * size + n]);
        }
        S& total = args.d_bias.as<S>()[n];
        total = total + chain;
      }
    }
  });
}

void round_values(const Context&, const RoundValues& args) {
  with_operand(args.out.dtype, [&]<class Operand>() {
    const auto* x = args.x.as<Scalar<Operand>>();
    auto* out = args.out.as<Operand>();
    for (int64_t i = 0; i < args.x.num_elements(); ++i) out[i] = round_to<Operand>(x[i]);
  });
}

}  // namespace dsmoe::kernels::ref

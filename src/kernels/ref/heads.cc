// Heads moved between layouts, multiplied one by one, and the shared experts' gate.
#include <vector>

#include "kernels/ref/ref.h"
#include "kernels/ref/scalar.h"

namespace dsmoe::kernels::ref {

void move_columns(const Context&, const MoveColumns& args) {
  with_operand(args.from.rows.dtype, [&]<class From>() {
    with_operand(args.to.rows.dtype, [&]<class To>() {
      if constexpr (std::is_same_v<Scalar<From>, Scalar<To>>) {
        using S = Scalar<From>;
        for (int64_t t = 0; t < args.from.rows.dim(0); ++t) {
          const From* from =
              args.from.rows.as<From>() + t * args.from.rows.dim(1) + args.from.begin;
          To* to = args.to.rows.as<To>() + t * args.to.rows.dim(1) + args.to.begin;
          if (args.adds()) {
            for (int64_t c = 0; c < args.width; ++c) {
              S sum = widen(from[c]);
              for (int64_t g = 1; g < args.groups; ++g)
                sum = sum + widen(from[g * args.from.step + c]);
              to[c] = round_to<To>(sum);
            }
            continue;
          }
          for (int64_t g = 0; g < args.groups; ++g) {
            for (int64_t c = 0; c < args.width; ++c)
              to[g * args.to.step + c] = round_to<To>(widen(from[g * args.from.step + c]));
          }
        }
      }
    });
  });
}

void head_products(const Context&, const HeadProducts& args) {
  with_operand(args.x.dtype, [&]<class Operand>() {
    const int64_t heads = args.x.dim(1);
    const int64_t size_k = args.weight.k;
    const int64_t size_n = args.weight.n;
    for (int64_t row = 0; row < args.x.dim(0) * heads; ++row) {
      const Operand* x = args.x.as<Operand>() + row * size_k;
      Operand* out = args.out.as<Operand>() + row * size_n;
      for (int64_t n = 0; n < size_n; ++n)
        out[n] = round_to<Operand>(dot(x, args.weight, row % heads, n));
    }
  });
}

void shared_gate_forward(const Context&, const SharedGateForward& args) {
  with_operand(args.x.dtype, [&]<class Operand>() {
    using S = Scalar<Operand>;
    const int64_t hidden = args.x.dim(1);
    std::vector<S> widened(hidden);
    for (int64_t t = 0; t < args.x.dim(0); ++t) {
      const Operand* x = args.x.as<Operand>() + t * hidden;
      for (int64_t k = 0; k < hidden; ++k) widened[k] = widen(x[k]);
      args.gate.as<S>()[t] = sigmoid(dot<S>(widened.data(), args.weight, 0, 0));
    }
  });
}

void shared_gate_backward(const Context&, const SharedGateBackward& args) {
  with_operand(args.gate.dtype, [&]<class S>() {
    if constexpr (!std::is_same_v<S, Bf16>) {
      for (int64_t t = 0; t < args.gate.dim(0); ++t) {
        const S gate = args.gate.as<S>()[t];
        args.d_logit.as<S>()[t] = args.d_gate.as<S>()[t] * (gate * (S(1) - gate));
      }
    }
  });
}

}  // namespace dsmoe::kernels::ref

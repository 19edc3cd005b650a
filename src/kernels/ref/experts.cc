// SwiGLU experts, row by row: only rows that the plan lists are computed.
#include <vector>

#include "kernels/ref/ref.h"
#include "kernels/ref/scalar.h"

namespace dsmoe::kernels::ref {
namespace {

// body(expert, row) for every row of the family.
template <class Body>
void for_each_row(const TensorView& offsets, Body&& body) {
  const int32_t* first_row = offsets.as<int32_t>();
  for (int64_t expert = 0; expert + 1 < offsets.dim(0); ++expert) {
    for (int64_t row = first_row[expert]; row < first_row[expert + 1]; ++row) body(expert, row);
  }
}

}  // namespace

void experts_up_forward(const Context&, const ExpertsUpForward& args) {
  with_operand(args.operand, [&]<class Operand>() {
    using S = Scalar<Operand>;
    for (const ExpertFamily& family : args.families) {
      const int64_t width = family.gate.stack.n;
      auto* activation = family.activation.as<Operand>();
      for_each_row(family.offsets, [&](int64_t expert, int64_t row) {
        const auto* x_row = row_of<Operand>(family.x, row);
        const auto* inner_gate = inner_row(x_row, family.gate, expert, row);
        const auto* inner_up = inner_row(x_row, family.up, expert, row);
        for (int64_t n = 0; n < width; ++n) {
          const S gate = dot(x_row, inner_gate, family.gate, expert, n);
          const S up = dot(x_row, inner_up, family.up, expert, n);
          activation[row * width + n] = round_to<Operand>(silu(gate) * up);
          if (family.gate_product) {
            family.gate_product.as<Operand>()[row * width + n] = round_to<Operand>(gate);
            family.up_product.as<Operand>()[row * width + n] = round_to<Operand>(up);
          }
        }
      });
    }
  });
}

void experts_down_forward(const Context&, const ExpertsDownForward& args) {
  for (const ExpertFamily& family : args.families) {
    with_operand(args.operand, [&]<class Operand>() {
      const int64_t hidden = family.down.stack.n;
      auto* out = family.out.as<Operand>();
      for_each_row(family.offsets, [&](int64_t expert, int64_t row) {
        const Operand* activation = family.activation.as<Operand>() + row * family.down.stack.k;
        const Operand* inner = inner_row(activation, family.down, expert, row);
        for (int64_t n = 0; n < hidden; ++n)
          out[row * hidden + n] = round_to<Operand>(dot(activation, inner, family.down, expert, n));
      });
    });
  }
}

void experts_down_backward(const Context&, const ExpertsDownBackward& args) {
  with_operand(args.operand, [&]<class Operand>() {
    using S = Scalar<Operand>;
    for (const ExpertFamilyBackward& family : args.families) {
      const int64_t width = family.activation.dim(1);
      std::vector<S> a(width);
      for_each_row(family.offsets, [&](int64_t expert, int64_t row) {
        const auto* d_out = row_of<Operand>(family.d_out, row);
        const Operand* activation = family.activation.as<Operand>() + row * width;
        const auto* inner = inner_row(d_out, family.down_transposed, expert, row);
        for (int64_t n = 0; n < width; ++n)
          a[n] = dot(d_out, inner, family.down_transposed, expert, n);
        S gate = 1;
        if (family.gate_of_row) {
          gate = family.gate_of_row.as<S>()[row];
          family.d_gate_of_row.as<S>()[row] =
              row_sum<S>(width, [&](int64_t n) { return a[n] * widen(activation[n]); });
        }
        for (int64_t n = 0; n < width; ++n) {
          const int64_t i = row * width + n;
          const S g = widen(family.gate_product.as<Operand>()[i]);
          const S u = widen(family.up_product.as<Operand>()[i]);
          const S d_activation = gate * a[n];
          const S s = sigmoid(g);
          const S d_up = d_activation * silu(g);
          const S d_gate = (d_activation * u) * (s * fma(g, S(1) - s, S(1)));
          family.d_up_product.as<Operand>()[i] = round_to<Operand>(d_up);
          family.d_gate_product.as<Operand>()[i] = round_to<Operand>(d_gate);
          if (family.gate_of_row) {
            family.scaled_activation.as<Operand>()[i] =
                round_to<Operand>(gate * widen(activation[n]));
          }
        }
      });
    }
  });
}

void experts_up_backward(const Context&, const ExpertsUpBackward& args) {
  for (const ExpertFamilyBackward& family : args.families) {
    with_operand(args.operand, [&]<class Operand>() {
      const int64_t width = family.d_gate_product.dim(1);
      const int64_t hidden = family.d_x.dim(1);
      for_each_row(family.offsets, [&](int64_t expert, int64_t row) {
        const Operand* d_gate = family.d_gate_product.as<Operand>() + row * width;
        const Operand* d_up = family.d_up_product.as<Operand>() + row * width;
        const Operand* inner_gate = inner_row(d_gate, family.gate_transposed, expert, row);
        const Operand* inner_up = inner_row(d_up, family.up_transposed, expert, row);
        for (int64_t n = 0; n < hidden; ++n) {
          const auto gate_part = dot(d_gate, inner_gate, family.gate_transposed, expert, n);
          family.d_x.as<Operand>()[row * hidden + n] =
              round_to<Operand>(dot(d_up, inner_up, family.up_transposed, expert, n, gate_part));
        }
      });
    });
  }
}

}  // namespace dsmoe::kernels::ref

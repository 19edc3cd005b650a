// SwiGLU experts, row by row: only rows that the plan lists are computed.
#include "kernels/ref/ref.h"
#include "kernels/ref/scalar.h"

namespace dsmoe::kernels::ref {
namespace {

// body(expert, row, token) for every row of the family.
template <class Body>
void for_each_row(const ExpertFamily& family, Body&& body) {
  const int32_t* offsets = family.offsets.as<int32_t>();
  const int32_t* token_of_row = family.token_of_row ? family.token_of_row.as<int32_t>() : nullptr;
  for (int64_t expert = 0; expert < family.gate.count; ++expert) {
    for (int64_t row = offsets[expert]; row < offsets[expert + 1]; ++row) {
      body(expert, row, token_of_row != nullptr ? token_of_row[row] : row);
    }
  }
}

}  // namespace

void experts_up_forward(const Context&, const ExpertsUpForward& args) {
  with_operand(args.x.dtype, [&]<class Operand>() {
    using S = Scalar<Operand>;
    const auto* x = args.x.as<Operand>();
    for (const ExpertFamily& family : args.families) {
      const int64_t width = family.gate.n;
      auto* activation = family.activation.as<Operand>();
      for_each_row(family, [&](int64_t expert, int64_t row, int64_t token) {
        const Operand* x_row = x + token * family.gate.k;
        for (int64_t n = 0; n < width; ++n) {
          const S gate = dot(x_row, family.gate, expert, n);
          const S up = dot(x_row, family.up, expert, n);
          activation[row * width + n] = round_to<Operand>(silu(gate) * up);
        }
      });
    }
  });
}

void experts_down_forward(const Context&, const ExpertsDownForward& args) {
  for (const ExpertFamily& family : args.families) {
    with_operand(family.activation.dtype, [&]<class Operand>() {
      const auto* activation = family.activation.as<Operand>();
      auto* out = family.out.as<Operand>();
      for_each_row(family, [&](int64_t expert, int64_t row, int64_t) {
        for (int64_t n = 0; n < family.down.n; ++n) {
          out[row * family.down.n + n] =
              round_to<Operand>(dot(activation + row * family.down.k, family.down, expert, n));
        }
      });
    });
  }
}

}  // namespace dsmoe::kernels::ref

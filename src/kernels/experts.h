// The experts: SwiGLU feed-forward networks, each over its own rows only.
#pragma once

#include <span>

#include "kernels/context.h"
#include "kernels/layout.h"

namespace dsmoe::kernels {

// Experts of one shape: the routed ones through the plan, the fused shared ones (or a dense layer)
// over all tokens. Row r of expert e, offsets[e] <= r < offsets[e + 1], computes token
// token_of_row[r].
struct ExpertFamily {
  WeightStack gate;         // count x [width, hidden]
  WeightStack up;           // count x [width, hidden]
  WeightStack down;         // count x [hidden, width]
  TensorView offsets;       // [count + 1] I32
  TensorView token_of_row;  // [rows] I32; absent: row r is token r
  TensorView activation;    // [rows, width], operand type: silu(gate x) * (up x), rounded
  TensorView out;           // [rows, hidden], operand type: down activation, rounded
};

// activation = silu(x Wg^T) * (x Wu^T). Families run side by side.
struct ExpertsUpForward {
  TensorView x;  // [tokens, hidden], operand type
  std::span<const ExpertFamily> families;
};
void experts_up_forward(const Context& context, const ExpertsUpForward& args);

// out = activation Wd^T.
struct ExpertsDownForward {
  std::span<const ExpertFamily> families;
};
void experts_down_forward(const Context& context, const ExpertsDownForward& args);

}  // namespace dsmoe::kernels

// How much the shared experts count for a token: g = sigmoid(w . x).
#pragma once

#include "kernels/context.h"
#include "kernels/layout.h"

namespace dsmoe::kernels {

// An fp32 product of the rounded activation and the stored weight, like the router's.
struct SharedGateForward {
  TensorView x;        // [tokens, hidden], operand type
  WeightStack weight;  // one matrix [1, hidden] F32 (F64)
  TensorView gate;     // [tokens, 1] F32 (F64), written
};
void shared_gate_forward(const Context& context, const SharedGateForward& args);

// d_logit = d_gate * (g * (1 - g))
struct SharedGateBackward {
  TensorView gate;     // [tokens, 1] F32 (F64)
  TensorView d_gate;   // [tokens] F32 (F64)
  TensorView d_logit;  // [tokens, 1] F32 (F64), written
};
void shared_gate_backward(const Context& context, const SharedGateBackward& args);

}  // namespace dsmoe::kernels

// Combine: the layer's output from its experts' rows. The adjoint of dispatch, through the same
// plan.
#pragma once

#include "kernels/context.h"
#include "kernels/plan.h"

namespace dsmoe::kernels {

// residual[t] = residual[t] + ((tree over chosen experts of gate * routed) + shared[t]).
struct CombineForward {
  TensorView index;        // [tokens, top_k] I32; absent with routed: no routed experts
  TensorView gate;         // [tokens, top_k] F32 (F64)
  TensorView row_of_slot;  // [tokens, top_k] I32, from the plan
  TensorView routed;       // [rows, hidden], operand type, or absent
  TensorView shared;       // [tokens, hidden], operand type, or absent
  TensorView residual;     // [tokens, hidden] F32 (F64), read and written
};
void combine_forward(const Context& context, const CombineForward& args);

}  // namespace dsmoe::kernels

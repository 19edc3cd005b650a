// y = x / sqrt(mean(x^2) + eps) * weight, rounded once.
#pragma once

#include "kernels/context.h"
#include "kernels/layout.h"

namespace dsmoe::kernels {

struct RmsNormForward {
  TensorView x;       // [tokens, hidden] F32 (F64): the residual stream
  TensorView weight;  // [hidden] F32 (F64)
  double eps = 1e-6;
  TensorView out;  // [tokens, hidden], operand type
};
void rms_norm_forward(const Context& context, const RmsNormForward& args);

}  // namespace dsmoe::kernels

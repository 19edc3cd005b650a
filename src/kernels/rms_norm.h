// y = x / sqrt(mean(x^2) + eps) * weight, rounded once.
#pragma once

#include "kernels/context.h"
#include "kernels/layout.h"

namespace dsmoe::kernels {

struct RmsNormForward {
  TensorView x;       // [rows, hidden] F32 (F64): the residual stream, or heads
  TensorView weight;  // [hidden] F32 (F64)
  double eps = 1e-6;
  TensorView out;  // [rows, hidden], operand type
};
void rms_norm_forward(const Context& context, const RmsNormForward& args);

// With y = x * inv: d_x += inv * (d_out * weight - y * (row_sum((d_out * weight) * y) / hidden)).
struct RmsNormBackward {
  TensorView x;       // [rows, hidden] F32 (F64)
  TensorView weight;  // [hidden]
  double eps = 1e-6;
  TensorView d_out;            // [rows, hidden] F32 (F64)
  TensorView sequence_starts;  // [sequences + 1] I32, in tokens
  int64_t rows_per_token = 1;  // heads, where each is a row
  TensorView d_x;       // [rows, hidden] F32 (F64), accumulated: the residual stream's gradient
  TensorView d_weight;  // [hidden] F32 (F64), accumulated; absent: not wanted
  TensorView rounded;   // [rows, hidden], operand type, optional: d_x as it enters products
};
void rms_norm_backward(const Context& context, const RmsNormBackward& args);

}  // namespace dsmoe::kernels

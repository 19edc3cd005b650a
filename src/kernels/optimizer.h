// AdamW and the norm of gradients.
#pragma once

#include "kernels/context.h"
#include "kernels/layout.h"

namespace dsmoe::kernels {

// sum of x^2: 16 double lanes, element i in lane i mod 16, joined 8-4-2-1.
struct SumOfSquares {
  TensorView x;    // any shape, F32 (F64)
  TensorView out;  // [1] F64, written
};
void sum_of_squares(const Context& context, const SumOfSquares& args);

// g = gradient * gradient_scale (the clip); m = fma(beta1, m, (1 - beta1) * g); v = fma(beta2, v,
// ((1 - beta2) * g) * g); w = w - lr * ((m / correction1) / (sqrt(v / correction2) + eps) +
// weight_decay * w), rounded as written.
struct AdamwStep {
  TensorView weight;         // F32 (F64), updated
  TensorView gradient;       // same shape
  TensorView first_moment;   // same shape, updated
  TensorView second_moment;  // same shape, updated
  float gradient_scale = 1;
  float lr = 0;
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float eps = 1e-8f;
  float weight_decay = 0;
  float correction1 = 1;  // 1 - beta1^step
  float correction2 = 1;  // 1 - beta2^step
};
void adamw_step(const Context& context, const AdamwStep& args);

}  // namespace dsmoe::kernels

// y = x W^T: the product of every dense projection.
#pragma once

#include "kernels/context.h"
#include "kernels/layout.h"

namespace dsmoe::kernels {

enum class Store : uint8_t {
  assign,      // out = acc (+ bias)
  accumulate,  // out = out + (acc (+ bias)): the residual stream
};

// Types: x and weight share the operand type (BF16, F32, F64); bias and out are F32 (F64 for F64).
struct MatmulForward {
  TensorView x;        // [tokens, k]
  WeightStack weight;  // one matrix [n, k]
  TensorView bias;     // [n], or absent
  TensorView out;      // [tokens, n]
  Store store = Store::assign;
};
void matmul_forward(const Context& context, const MatmulForward& args);

}  // namespace dsmoe::kernels

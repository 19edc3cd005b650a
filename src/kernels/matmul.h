// y = x W^T: the product of every dense projection.
#pragma once

#include <span>

#include "kernels/context.h"
#include "kernels/rows.h"
#include "kernels/weight.h"

namespace dsmoe::kernels {

enum class Store : uint8_t {
  assign,      // out = acc (+ bias)
  accumulate,  // out = out + (acc (+ bias)): the residual stream
};

// The operand type says which rule of sums holds, and in which type x and weight are (BF16, F32,
// F64); bias and out are F32 (F64 for F64).
struct MatmulForward {
  DType operand = DType::F32;
  TensorView x;     // [tokens, k]
  Weight weight;    // one matrix [n, k]
  TensorView bias;  // [n], or absent
  TensorView out;   // [tokens, n]
  Store store = Store::assign;
  TensorView base;  // [tokens, n], optional: out = base + .. instead, with Store::accumulate
  TensorView
      rounded;  // [tokens, n], operand type, optional: takes the result; out is then anything
};
void matmul_forward(const Context& context, const MatmulForward& args);

// The input gradient of y = x W^T is a product too: matmul_forward of dy (rounded) with the
// transposed weight [k, n], a copy or, where the table takes it, transpose_of the weight.

enum class GradientStart : uint8_t {
  from_buffer,  // what d_weight holds
  from_zero,    // zero: d_weight may hold anything, and all of its wanted matrices are written
};

// dW += dy^T x over the rows of each matrix: the weight gradient of dense layers (count 1) and of
// experts. One chain per element, continued in d_weight: sequences ascending, rows ascending,
// blocks restarting zero-padded at each sequence. x is BF16, F32 or F64; dy has the type of x, or
// F32 beside BF16 (then the fp32 rule holds: the router).
struct WeightGradient {
  Rows dy;                      // [rows, n]
  Rows x;                       // [rows, k]
  TensorView sequence_offsets;  // [count, sequences + 1] I32: rows of (matrix, sequence)
  TensorView
      slot_of_matrix;  // [count] I32: where in d_weight, -1: not wanted; absent: matrix m in slot m
  TensorView d_weight;  // [slots, n, k] F32 (F64), accumulated
  int64_t first_n = 0;  // dy may hold a part of the columns, from this one on
  GradientStart start = GradientStart::from_buffer;
};
void weight_gradient(const Context& context, const WeightGradient& args);

// Several that do not depend on one another, at once where the table can: a device is filled by
// many small matrices together.
void weight_gradients(const Context& context, std::span<const WeightGradient> list);

// d_bias[n] += dy[., n]: per sequence one chain from zero, sequences added in order.
struct BiasGradient {
  TensorView dy;               // [tokens, n], operand type
  TensorView sequence_starts;  // [sequences + 1] I32
  TensorView d_bias;           // [n] F32 (F64), accumulated
};
void bias_gradient(const Context& context, const BiasGradient& args);

// Rounding of a gradient that enters a product.
struct RoundValues {
  TensorView x;    // F32 (F64)
  TensorView out;  // same shape, operand type
};
void round_values(const Context& context, const RoundValues& args);

}  // namespace dsmoe::kernels

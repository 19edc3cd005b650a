// The experts: SwiGLU feed-forward networks, each over its own rows only.
#pragma once

#include <span>

#include "kernels/attempt.h"
#include "kernels/context.h"
#include "kernels/rows.h"
#include "kernels/weight.h"

namespace dsmoe::kernels {

// In all structs, `operand` is the type whose rule of sums holds and in which rows and weights are.

// Experts of one shape: the routed ones through the plan, the fused shared ones (or a dense layer)
// over all tokens. Expert e computes rows offsets[e] <= r < offsets[e + 1].
struct ExpertFamily {
  Weight gate;            // count x [width, hidden]
  Weight up;              // count x [width, hidden]
  Weight down;            // count x [hidden, width]
  TensorView offsets;     // [count + 1] I32
  Rows x;                 // [rows, hidden], operand type, of the gate and up products; may lie
                          // where out will
  TensorView activation;  // [rows, width], operand type: silu(gate x) * (up x), rounded
  TensorView out;         // [rows, columns], operand type: down activation, rounded
  // Kept for the backward pass, in training only (absent otherwise): the products before SwiGLU,
  // rounded.
  TensorView gate_product;  // [rows, width], operand type
  TensorView up_product;    // [rows, width], operand type
};

// activation = silu(x Wg^T) * (x Wu^T). Families run side by side.
struct ExpertsUpForward {
  DType operand = DType::F32;
  std::span<const ExpertFamily> families;
};
void experts_up_forward(const Context& context, const ExpertsUpForward& args);

// out = activation Wd^T.
struct ExpertsDownForward {
  DType operand = DType::F32;
  std::span<const ExpertFamily> families;
  ColumnRange columns;  // of hidden: which out holds
};
void experts_down_forward(const Context& context, const ExpertsDownForward& args);

// Both products in one launch, with the same bits; callers take experts_part (kernels/composed.h).
struct ExpertsForward {
  DType operand = DType::F32;
  std::span<const ExpertFamily> families;
};
Attempt experts_forward(const Context& context, const ExpertsForward& args);

// The same experts on the way back. Weights are transposed: products run over the other dimension;
// where the table takes transposes they are column-major.
// Results may lie where their namesakes did: scaled_activation in activation, d_gate_product in
// gate_product, d_up_product in up_product.
struct ExpertFamilyBackward {
  Weight gate_transposed;        // count x [hidden, width]
  Weight up_transposed;          // count x [hidden, width]
  Weight down_transposed;        // count x [width, hidden]
  TensorView offsets;            // [count + 1] I32
  Rows d_out;                    // [rows, hidden], operand type: gradient of the layer's output,
                                 // rounded; of experts_down_backward
  TensorView gate_of_row;        // [rows] F32 (F64); absent: 1 (shared experts)
  TensorView activation;         // [rows, width], kept by the forward pass, like the next two
  TensorView gate_product;       // [rows, width]
  TensorView up_product;         // [rows, width]
  TensorView scaled_activation;  // [rows, width], operand type, written: gate_of_row * activation;
                                 // absent with gate_of_row
  TensorView d_gate_of_row;      // [rows] F32 (F64), written; absent with gate_of_row
  TensorView d_gate_product;     // [rows, width], operand type, written
  TensorView d_up_product;       // [rows, width], operand type, written
  TensorView d_x;                // [rows, hidden], operand type, written by experts_up_backward
};

// With a = d_out W_down (not scaled by the gate): d_gate_of_row = row_sum(a * activation);
// d_activation = gate * a; then through SwiGLU, with s = sigmoid(g): d_up = d_activation * silu(g),
// d_gate = (d_activation * u) * (s * fma(g, 1 - s, 1)).
struct ExpertsDownBackward {
  DType operand = DType::F32;
  std::span<const ExpertFamilyBackward> families;
};
void experts_down_backward(const Context& context, const ExpertsDownBackward& args);

// d_x = d_gate_product W_gate + d_up_product W_up: one chain, gate first, each weight's adapter
// behind it; rounded.
struct ExpertsUpBackward {
  DType operand = DType::F32;
  std::span<const ExpertFamilyBackward> families;
};
void experts_up_backward(const Context& context, const ExpertsUpBackward& args);

}  // namespace dsmoe::kernels

// Combine: the layer's output from its experts' rows. The adjoint of dispatch, through the same
// plan.
#pragma once

#include "kernels/attempt.h"
#include "kernels/context.h"
#include "kernels/matmul.h"
#include "kernels/plan.h"
#include "kernels/rows.h"

namespace dsmoe::kernels {

inline constexpr int64_t kMaxExpertsPerToken = 1024;  // terms of the tree; a device may take fewer

// out[t] = (tree over chosen experts of gate * routed) + shared_gate[t] * shared[t], assigned or
// added to what is there (the residual stream). With absent gates (1 each) and Store::assign it is
// the adjoint of dispatch: the input gradient of the experts.
struct CombineForward {
  TensorView index;        // [tokens, top_k] I32; absent with routed: no routed experts
  TensorView gate;         // [tokens, top_k] F32 (F64); absent: 1
  TensorView row_of_slot;  // [tokens, top_k] I32, from the plan
  ColumnRange columns;     // of hidden: which the next two hold
  TensorView routed;       // [rows, columns], operand type, or absent
  TensorView shared;       // [tokens, columns], operand type, or absent
  TensorView shared_gate;  // [tokens, 1] F32 (F64); absent: 1
  TensorView residual;     // [tokens, hidden] F32 (F64), these columns written
  TensorView base;         // the same, optional: what is added to instead, with Store::accumulate
  Store store = Store::accumulate;
};
void combine_forward(const Context& context, const CombineForward& args);

// The input gradient of the layer: the adjoint of dispatch, then + d_logits centroids^T, by the
// rule of fp32 products. One launch; callers take input_gradient (kernels/composed.h).
struct CombineBackward {
  CombineForward combine;  // gate absent, Store::assign
  TensorView d_logits;     // [tokens, experts] F32
  WeightStack centroids;   // one matrix [hidden, experts] F32
};
Attempt combine_backward(const Context& context, const CombineBackward& args);

// gate_of_row[row_of_slot[slot]] = gate[slot]: gates in the order of the plan's rows.
struct DispatchGates {
  TensorView gate;         // [tokens, top_k] F32 (F64)
  TensorView row_of_slot;  // [tokens, top_k] I32
  TensorView gate_of_row;  // [tokens * top_k] F32 (F64), written
};
void dispatch_gates(const Context& context, const DispatchGates& args);

// Lays out rows for the products that will read them. It declines where the device gathers rows on
// their way into each product; callers take dispatch (kernels/composed.h).
struct DispatchRows {
  Rows rows;               // [rows, hidden], operand type, by index
  TensorView offsets;      // [experts + 1] I32
  TensorView row_of_slot;  // [tokens, top_k] I32, or absent: the same from the tokens' side
  ColumnRange columns;     // of hidden
  TensorView out;          // [rows, columns], operand type, written up to offsets[experts]
  int readers = 1;         // how many products
};
Attempt dispatch_rows(const Context& context, const DispatchRows& args);

// Whether experts of this shape, their weight gradients and combine may come in parts: ColumnRange.
struct TakesParts {
  DType operand = DType::F32;
  int64_t hidden = 0;  // of one part
  int64_t width = 0;
};
bool takes_parts(const Context& context, const TakesParts& shape);

}  // namespace dsmoe::kernels

// The router: affinity of every token to every routed expert, the choice of the top K, and their
// gates.
#pragma once

#include "kernels/context.h"
#include "kernels/layout.h"
#include "kernels/router_rule.h"

namespace dsmoe::kernels {

// s = score(x . e_i); selection by s + selection_bias, descending, ties by lower index; gates from
// the unbiased s. Slots are stored by descending selection score; absent slots have index -1 and
// gate 0.
struct RouterForward {
  RouterRule rule;
  TensorView x;                 // [tokens, hidden], operand type
  WeightStack centroids;        // one matrix [experts, hidden], F32 (F64 for F64): the stored gate
                                // weight, widened
  TensorView selection_bias;    // [experts] F32 (F64), or absent
  TensorView experts_of_token;  // [tokens] I32, each in [0, top_k]; absent: top_k for all
  // [tokens, top_k] I32: take this choice (up to the first -1), compute its gates; absent, or a row
  // that starts with kChooseFreely: choose.
  TensorView replayed_index;
  TensorView logits;     // [tokens, experts] F32 (F64), written; absent: not wanted
  TensorView affinity;   // [tokens, experts] F32 (F64), written
  TensorView index;      // [tokens, top_k] I32, written
  TensorView gate;       // [tokens, top_k] F32 (F64), written
  TensorView bad_token;  // [1] I32, written: lowest token with a non-finite score, or -1
};
void router_forward(const Context& context, const RouterForward& args);

// From the gates' gradients to the logits'. The choice itself is constant.
struct RouterBackward {
  RouterRule rule;
  TensorView affinity;       // [tokens, experts]
  TensorView index;          // [tokens, top_k]
  TensorView row_of_slot;    // [tokens, top_k]
  TensorView d_gate_of_row;  // [tokens * top_k] F32 (F64)
  TensorView
      d_affinity;       // [tokens, experts] F32 (F64): what the balance losses add; absent: nothing
  TensorView d_logits;  // [tokens, experts] F32 (F64), written
};
void router_backward(const Context& context, const RouterBackward& args);

}  // namespace dsmoe::kernels

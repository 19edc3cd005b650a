// Steps that a device may run in one launch. Behind each stands the plain sequence of ops, which
// gives the same bits, so that callers never ask what a device has.
#pragma once

#include "kernels/combine.h"
#include "kernels/context.h"
#include "kernels/experts.h"
#include "kernels/kv_pages.h"
#include "kernels/rows.h"
#include "kernels/weight.h"

namespace dsmoe::kernels {

// q, k, v = rope(W norm(u) + bias) of heads that turn whole; k and v go into the KV cache.
struct ProjectHeads {
  DType operand = DType::F32;
  TensorView residual;     // u [tokens, hidden] F32 (F64)
  TensorView norm_weight;  // [hidden]
  double eps = 1e-6;
  TensorView x;   // [tokens, hidden], operand type, written: round(norm(u))
  Weight weight;  // [(heads + 2 * kv_heads) * head_dim, hidden]
  TensorView bias;
  TensorView cos;  // as of RopeForward, like the rest
  TensorView sin;
  TensorView position;
  TensorView kv_slot;
  TensorView q;
  KvPages kv;
  TensorView qkv;        // room for the product
  bool keeps_x = false;  // a backward pass reads x: one launch of all would leave it as it was
};
void project_heads(const Context& context, const ProjectHeads& args);

// Rows for the products that will read them: laid out in args.out, or left to be gathered on their
// way into each product.
Rows dispatch(const Context& context, const DispatchRows& args);

// out = down(silu(gate x) * (up x)) of all experts, a range of the columns of out at a time. The
// range that begins at 0 comes first: it computes the activations too.
struct ExpertsPart {
  DType operand = DType::F32;
  std::span<const ExpertFamily> families;
  ColumnRange columns;  // of hidden: which out holds
  // Of the family whose x is by index:
  TensorView row_of_slot;  // [tokens, top_k] I32, or absent
  TensorView x_rows;       // [rows, hidden], operand type: room for its x laid out, or absent
};
void experts_part(const Context& context, const ExpertsPart& args);

// The input gradient of the layer: the adjoint of dispatch, then + d_logits centroids^T where
// there is a router.
void input_gradient(const Context& context, const CombineBackward& args);

// logits = W x, and the most likely id of each row, as argmax_forward finds it.
struct MostLikely {
  TensorView x;       // [tokens, hidden], operand type
  Weight weight;      // [vocabulary, hidden]
  TensorView logits;  // [tokens, vocabulary] F32 (F64), written
  TensorView index;   // [tokens] I32, written
};
void most_likely(const Context& context, const MostLikely& args);

}  // namespace dsmoe::kernels

// Several ops in one launch, for a few tokens: where weights are read once and launches would be
// most of the time.
#pragma once

#include "kernels/attempt.h"
#include "kernels/context.h"
#include "kernels/experts.h"
#include "kernels/kv_pages.h"
#include "kernels/layout.h"
#include "kernels/router_rule.h"

namespace dsmoe::kernels {

// All decline where the table or the shape has no such kernel: then the ops run one by one, and
// give the same bits. What only those ops leave behind (the normalised stream, products, the plan)
// is not written, or only some of it.

// q, k, v = rope(W norm(u) + bias); k and v go into the KV cache.
struct FewTokensQkv {
  TensorView residual;     // u [tokens, hidden] F32
  TensorView norm_weight;  // [hidden] F32
  double eps = 1e-6;
  WeightStack weight;   // [(heads + 2 * kv_heads) * head_dim, hidden]
  TensorView bias;      // [(heads + 2 * kv_heads) * head_dim] F32, or absent
  TensorView cos;       // [positions, head_dim / 2] F32
  TensorView sin;       // [positions, head_dim / 2] F32
  TensorView position;  // [tokens] I32
  TensorView kv_slot;   // [tokens] I32
  TensorView q;         // [tokens, heads, head_dim], operand type, written
  KvPages kv;           // written at kv_slot
  TensorView x;         // [tokens, hidden], operand type: room for round(norm(u))
};
Attempt few_tokens_qkv(const Context& context, const FewTokensQkv& args);

// u += sum_shared FFN(x) + sum_routed g FFN(x): router, experts and combine.
struct FewTokensFfn {
  RouterRule rule;
  TensorView x;            // [tokens, hidden], operand type; absent: round(norm(u))
  TensorView norm_weight;  // [hidden] F32, when x is absent
  double eps = 1e-6;
  WeightStack centroids;        // [experts, hidden] F32; absent: no routed experts
  TensorView selection_bias;    // [experts] F32, or absent
  TensorView experts_of_token;  // [tokens] I32, or absent
  ExpertFamily routed;          // weights and activation [tokens * top_k, width]; absent: dense
  ExpertFamily shared;          // weights and activation [tokens, width]; absent: none
  TensorView affinity;          // [tokens, experts] F32, written
  TensorView index;             // [tokens, top_k] I32, written
  TensorView gate;              // [tokens, top_k] F32, written
  TensorView bad_token;         // [1] I32, written
  TensorView residual;          // u [tokens, hidden] F32
};
Attempt few_tokens_ffn(const Context& context, const FewTokensFfn& args);

// logits = W x, and the most likely id of each row, as argmax_forward finds it.
struct FewTokensHead {
  TensorView x;        // [tokens, hidden], operand type
  WeightStack weight;  // [vocabulary, hidden]
  TensorView logits;   // [tokens, vocabulary] F32, written
  TensorView index;    // [tokens] I32, written
};
Attempt few_tokens_head(const Context& context, const FewTokensHead& args);

}  // namespace dsmoe::kernels

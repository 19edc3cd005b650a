// Causal attention over paged keys and values; grouped query heads; a batch of independent
// sequences.
#pragma once

#include "kernels/context.h"
#include "kernels/kv_pages.h"
#include "kernels/layout.h"
#include "kernels/rope.h"

namespace dsmoe::kernels {

// Queries are as wide as keys, outputs as wide as values (KvShape). Query token t of sequence s,
// q_starts[s] <= t < q_starts[s + 1], attends to positions 0 .. position[t] of its sequence, which
// lie in pages page_table[s][0 ..]. Head h reads KV head h / (heads / kv_heads). Blocks, spans and
// merges: docs/numerics.md.
struct AttentionForward {
  TensorView q;  // [tokens, heads, key_width], operand type
  KvPages kv;
  TensorView q_starts;    // [sequences + 1] I32
  TensorView position;    // [tokens] I32
  TensorView page_table;  // [sequences, max_pages] I32
  float scale = 0;        // of scores
  TensorView out;         // [tokens, heads, value_width], operand type
  TensorView log_sums;    // [tokens, heads] F32 or absent: what the backward pass of some devices
                          // wants to know again; others leave it alone
};
void attention_forward(const Context& context, const AttentionForward& args);

// Every sequence must be whole: its first query is at position 0. Values are numbers of their own.
// Query blocks are 64 positions like key blocks. With M, L the softmax maximum and sum over all
// keys of a query (M by blocks, L by spans as in the forward pass):
//   p = exp(s - M) / L,  D = row_sum(d_out * out),  ds = (p * (dp - D)) * scale,  dp = d_out . v
//   dq = sum over key blocks ds k;  dk = sum over heads of the group, then query blocks, ds q;  dv
//   likewise p d_out
// where p and ds are rounded to the operand type when they enter a product, and each sum is one
// chain.
struct AttentionBackward {
  TensorView q;  // [tokens, heads, key_width]
  KvPages kv;
  TensorView q_starts;    // [sequences + 1] I32
  TensorView page_table;  // [sequences, max_pages] I32
  float scale = 0;
  TensorView out;       // [tokens, heads, value_width]: the forward pass's result
  TensorView log_sums;  // as the forward pass left them
  TensorView d_out;     // [tokens, heads, value_width], operand type
  TensorView d_qkv;  // [tokens, heads * key_width + kv.shape.projected_width()] F32 (F64), written
  // Optional: rope_backward of d_qkv, which is working memory then and may hold anything.
  TensorView rounded;  // same shape, operand type, written
  TensorView cos;      // [positions, half] F32
  TensorView sin;      // [positions, half] F32
  Rotation rotation;
  TensorView position;  // [tokens] I32: from each sequence's start
};
void attention_backward(const Context& context, const AttentionBackward& args);
// The last step of one with `rounded`, where a table does not take it in its stride.
inline RopeBackward rotation_back(const AttentionBackward& args) {
  return {.d_qkv = args.d_qkv,
          .cos = args.cos,
          .sin = args.sin,
          .rotation = args.rotation,
          .position = args.position,
          .num_heads = args.q.dim(1),
          .num_kv_heads = args.kv.shape.heads,
          .key_width = args.kv.shape.key_width,
          .out = args.rounded};
}

}  // namespace dsmoe::kernels

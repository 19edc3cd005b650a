// Causal attention over paged keys and values; grouped query heads; a batch of independent
// sequences.
#pragma once

#include "kernels/context.h"
#include "kernels/layout.h"

namespace dsmoe::kernels {

// Query token t of sequence s, q_starts[s] <= t < q_starts[s + 1], attends to positions 0 ..
// position[t] of its sequence, which lie in pages page_table[s][0 ..]. Head h reads KV head h /
// (heads / kv_heads). Blocks, spans and merges: docs/numerics.md.
struct AttentionForward {
  TensorView q;  // [tokens, heads, head_dim], operand type
  KvPages kv;
  TensorView q_starts;    // [sequences + 1] I32
  TensorView position;    // [tokens] I32
  TensorView page_table;  // [sequences, max_pages] I32
  float scale = 0;        // 1 / sqrt(head_dim)
  TensorView out;         // [tokens, heads, head_dim], operand type
};
void attention_forward(const Context& context, const AttentionForward& args);

}  // namespace dsmoe::kernels

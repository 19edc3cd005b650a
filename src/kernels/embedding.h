// Token ids to the residual stream.
#pragma once

#include "kernels/context.h"
#include "kernels/layout.h"

namespace dsmoe::kernels {

struct EmbeddingForward {
  TensorView ids;    // [tokens] I32, each in [0, vocabulary)
  TensorView table;  // [vocabulary, hidden], operand type
  TensorView out;    // [tokens, hidden] F32 (F64)
};
void embedding_forward(const Context& context, const EmbeddingForward& args);

// d_table[id] += d_out[t], tokens ascending.
struct EmbeddingBackward {
  TensorView ids;      // [tokens] I32
  TensorView d_out;    // [tokens, hidden] F32 (F64)
  TensorView d_table;  // [vocabulary, hidden] F32 (F64), accumulated
};
void embedding_backward(const Context& context, const EmbeddingBackward& args);

}  // namespace dsmoe::kernels

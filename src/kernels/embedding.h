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

}  // namespace dsmoe::kernels

// The attention part of a block: h = u + W_o attention(q, k, v), q, k, v = rope(W_qkv x), with
// x = RMSNorm(u), q and k perhaps normalised or made from latents (latent.cc); and the mirror image
// of it for the backward pass.
#pragma once

#include "attention/memory.h"
#include "kernels/beside.h"
#include "kernels/matmul.h"

namespace dsmoe::attention {

using kernels::Context;

// Angles of all positions of a context (kernels/rope.h).
struct RopeTable {
  TensorView cos;  // [positions, half of what turns of a head] F32
  TensorView sin;  // the same
};

struct Forward {
  Shape shape;
  Weights weights;
  Tape tape;  // the used part, like the next; written
  Workspace workspace;
  RopeTable rope;
  kernels::KvPages kv;         // written at kv_slot
  TensorView norm_weight;      // [hidden]
  double eps = 1e-6;           // of the norm
  TensorView x;                // [tokens, hidden], operand type, written: the normalised stream
  TensorView position;         // [tokens] I32, from the start of the document
  TensorView kv_slot;          // [tokens] I32
  TensorView document_starts;  // [documents + 1] I32
  TensorView page_table;       // [documents, max_pages] I32
  TensorView residual;         // [tokens, hidden] F32: u, becomes h
  TensorView out;              // [tokens, hidden] F32, optional: h here instead, u stays
};

// For a few tokens a device may make q, k and v in one launch (kernels/few_tokens.h), unless the
// tape is one for a backward pass: then x and the workspace are left as they were.
void forward(const Context& context, const Forward& args);

// The weights of norms between the projections; absent where there are none.
struct Norms {
  TensorView q_norm;
  TensorView k_norm;
};

struct Backward {
  Shape shape;
  Transposed weights;
  Norms norms;
  Gradients gradients;
  kernels::GradientStart start = kernels::GradientStart::from_buffer;  // of the weights
  kernels::GradientWork work = kernels::GradientWork::in_turn;
  kernels::BesideWork before;  // of the part that was in these row gradients before
  Tape tape;                   // of the forward pass
  RowGradients row_gradients;  // written
  RopeTable rope;
  kernels::KvPages kv;
  TensorView x;                // [tokens, hidden], operand type
  TensorView d_out;            // [tokens, hidden], operand type: gradient of h, rounded
  TensorView position;         // [tokens] I32
  TensorView document_starts;  // [documents + 1] I32
  TensorView page_table;       // [documents, max_pages] I32
  TensorView sequence_starts;  // [sequences + 1] I32: what gradient sums run over
  TensorView d_x;              // [tokens, hidden] F32, written: gradient of x
};

// Weight gradients beside read x, d_out, the tape and d_projected: the caller waits for what it
// gets before it writes over these, or reads the weights' gradients.
kernels::BesideWork backward(const Context& context, const Backward& args);

}  // namespace dsmoe::attention

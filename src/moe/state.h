// The memory of a layer's passes: what the forward pass leaves behind, and what the backward pass
// works in.
#pragma once

#include "kernels/plan.h"
#include "moe/weights.h"
#include "tensor/arena.h"

namespace dsmoe::moe {

enum class Passes : uint8_t { forward, forward_and_backward };

// When weight gradients are made: as they come, or beside what follows (kernels/beside.h), where
// rows laid out for them have memory of their own.
enum class GradientWork : uint8_t { in_turn, beside };

// For the backward pass, and for whoever wants to look.
struct LayerState {
  TensorView logits;     // [tokens, experts]; only when a z loss wants it
  TensorView affinity;   // s [tokens, experts]
  TensorView index;      // [tokens, top_k], by descending selection score, -1 absent
  TensorView gate;       // g [tokens, top_k]
  TensorView bad_token;  // [1]: lowest token without finite scores, or -1
  kernels::DispatchPlan plan;
  TensorView routed_activation;    // [tokens * top_k, width]
  TensorView routed_out;           // [tokens * top_k, columns of a part]
  TensorView d_out_rows;           // [tokens * top_k, hidden]; with GradientWork::beside only
  TensorView x_rows;               // [tokens * top_k, hidden]; likewise
  TensorView shared_activation;    // [tokens, shared width]
  TensorView shared_out;           // [tokens, columns of a part]
  TensorView routed_gate_product;  // [tokens * top_k, width]; in training only, like the next three
  TensorView routed_up_product;    // [tokens * top_k, width]
  TensorView shared_gate_product;  // [tokens, shared width]
  TensorView shared_up_product;    // [tokens, shared width]
  // While activations are needed, of everything [rows, hidden] so many parts exist one after the
  // other, each a range of columns: of the outputs, which combine takes before the next are made;
  // and of rows of d_out in the order of the plan, which lie in the place of the outputs.
  int64_t parts = 1;
  int64_t hidden = 0;
  kernels::ColumnRange columns;  // which the outputs hold, where there are parts
  // Where there are parts, room for all columns of both outputs in the place of the outputs and the
  // activations, which nobody needs any more once the backward pass has been through down.
  TensorView routed_late;  // [tokens * top_k, hidden]
  TensorView shared_late;  // [tokens, hidden]

  // With the outputs cut to the columns of one part: the last may be narrower.
  LayerState of_part(int64_t part) const;
  // Whole, when the activations are not needed any more.
  LayerState without_activations() const;
};

// The experts' gradients take the place of what they were made from, in LayerState.
struct BackwardState {
  TensorView gate_of_row;    // [tokens * top_k]
  TensorView d_gate_of_row;  // [tokens * top_k]
  TensorView d_affinity;     // [tokens, experts]
  TensorView d_logits;       // [tokens, experts]
};

struct LayerSize {
  int64_t max_tokens = 0;
  int64_t max_sequences = 0;
  int64_t hidden = 0;
  int64_t num_experts = 0;  // routed; 0: dense
  int64_t top_k = 0;
  int64_t routed_width = 0;
  int64_t shared_width = 0;  // 0: none
  DType operand = DType::F32;
  Passes passes = Passes::forward;
  int64_t parts = 1;  // of hidden, in a layer with routed experts; see parts_that_fit
  GradientWork work = GradientWork::in_turn;  // beside: of one part
};
// At most `wanted` parts, each but the last a multiple of 128 columns, where the context's ops take
// parts of this shape; else 1.
int64_t parts_that_fit(const kernels::Context& context, const LayerSize& size, int64_t wanted);

// `lender`: a state whose memory for outputs and rows this one shall use too. A layer needs it only
// while it runs.
LayerState allocate_state(const LayerSize& size, tensor::Arena& arena,
                          const LayerState* lender = nullptr);
BackwardState allocate_backward_state(const LayerSize& size, tensor::Arena& arena);

// The part that a call on `tokens` tokens of `sequences` sequences uses.
LayerState used_part(const LayerState& state, int64_t tokens, int64_t sequences, int64_t top_k);
BackwardState used_part(const BackwardState& state, int64_t tokens, int64_t top_k);

}  // namespace dsmoe::moe

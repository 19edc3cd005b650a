// The memory of a layer's passes, in three types: what the forward pass leaves behind, what only a
// running pass needs, and the gradients on their way. Each view has one meaning; which of them lie
// over one another says allocate_memory.
#pragma once

#include "kernels/passes.h"
#include "kernels/plan.h"
#include "moe/exchange.h"
#include "moe/weights.h"
#include "tensor/arena.h"

namespace dsmoe::moe {

using kernels::GradientWork;
using kernels::Passes;

// What the experts of one shape leave behind, row by row, operand type.
struct ExpertTape {
  TensorView activation;    // [rows, width]
  TensorView gate_product;  // [rows, width]; in training only, like the next
  TensorView up_product;    // [rows, width]
};

// What the forward pass leaves, for the backward pass and for whoever wants to look.
struct LayerTape {
  TensorView logits;     // [tokens, experts]; in training only: a z loss wants it
  TensorView affinity;   // s [tokens, experts]
  TensorView index;      // [tokens, top_k], by descending selection score, -1 absent
  TensorView gate;       // g [tokens, top_k]
  TensorView bad_token;  // [1]: lowest token without finite scores, or -1
  kernels::DispatchPlan plan;
  ExpertTape routed;  // rows of the plan, at most tokens * top_k; among ranks, of the exchange's
  ExchangeTape exchange;
  ExpertTape shared;       // rows are tokens
  TensorView shared_gate;  // [tokens, 1], or absent
};

// What only a running pass needs, operand type. Where memory is short, outputs and rows of d_out
// exist a part of their columns at a time; then combine, or the weight gradient, takes each part
// before the next is made.
struct LayerWorkspace {
  TensorView x_rows;  // [rows, hidden]: x in the order of the plan; absent where there are parts
  TensorView routed_out;   // [rows, columns]: outputs of the routed experts
  TensorView shared_out;   // [tokens, columns]: output of the shared experts
  TensorView d_out_rows;   // [rows, columns]: d_out in the order of the plan
  TensorView late_x_rows;  // [rows, hidden]: x in that order, once more for the weight gradients
  ExchangeWorkspace exchange;

  int64_t parts = 1;
  int64_t hidden = 0;
  kernels::ColumnRange columns;  // those of the part

  // With the views cut to the columns of one part: the last may be narrower.
  LayerWorkspace part(int64_t idx) const;
};

// What the backward pass makes of the experts' rows, operand type.
struct ExpertRowGradients {
  TensorView scaled_activation;  // [rows, width]: gate * activation; absent without a gate
  TensorView d_gate_product;     // [rows, width]
  TensorView d_up_product;       // [rows, width]
  TensorView d_x;                // [rows, hidden]
};

// The gradients between d_out and d_x; absent without a backward pass.
struct LayerRowGradients {
  TensorView gate_of_row;    // [rows]: what they are scaled by
  TensorView d_gate_of_row;  // [rows]
  TensorView d_affinity;     // [tokens, experts]
  TensorView d_logits;       // [tokens, experts]
  ExpertRowGradients routed;
  ExpertRowGradients shared;
  TensorView d_shared_gate;   // [tokens], where there is a gate, like the next
  TensorView d_shared_logit;  // [tokens, 1]
};

struct LayerMemory {
  LayerTape tape;
  LayerWorkspace workspace;
  LayerRowGradients gradients;
};

struct LayerSize {
  int64_t max_tokens = 0;
  int64_t max_sequences = 0;
  int64_t hidden = 0;
  int64_t num_experts = 0;  // routed; 0: dense
  int64_t top_k = 0;
  int64_t routed_width = 0;
  int64_t shared_width = 0;  // 0: none
  bool has_shared_gate = false;
  DType operand = DType::F32;
  Passes passes = Passes::forward;
  int64_t parts = 1;  // of hidden, in a layer with routed experts; see parts_that_fit
  GradientWork work = GradientWork::in_turn;  // beside: of one part
  int64_t rank = 0;                           // of those that share the routed experts
  int64_t ranks = 1;
};
// At most `wanted` parts, each but the last a multiple of 128 columns, where the context's ops take
// parts of this shape; else 1.
int64_t parts_that_fit(const kernels::Context& context, const LayerSize& size, int64_t wanted);

// `common`: what layers that run one after the other need only while they run. This layer takes
// from there what fits, and leaves there what it had to add.
LayerMemory allocate_memory(const LayerSize& size, tensor::Arena& arena,
                            LayerMemory* common = nullptr);

// The views of routed rows, to so many.
void cut_routed(LayerMemory& memory, int64_t rows);

// What a call on `tokens` tokens of `sequences` sequences uses.
LayerMemory used_part(const LayerMemory& memory, int64_t tokens, int64_t sequences, int64_t top_k);

}  // namespace dsmoe::moe

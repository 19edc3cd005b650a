// The DeepSeekMoE layer: h = u + sum_shared FFN(x) + sum_routed g FFN(x), x = RMSNorm(u), as in the
// paper, equations 3 to 11; and the mirror image of it for the backward pass.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/beside.h"
#include "kernels/experts.h"
#include "kernels/matmul.h"
#include "kernels/plan.h"
#include "kernels/router_rule.h"
#include "moe/memory.h"
#include "moe/weights.h"

namespace dsmoe::moe {

using kernels::Context;

struct LayerForward {
  DType operand = DType::F32;
  kernels::RouterRule rule;  // top_k slots per token
  LayerWeights weights;
  LayerTape tape;  // the used part, like the next; written
  LayerWorkspace workspace;
  TensorView norm_weight;          // [hidden]: x = RMSNorm(u) is computed; absent: x is given
  double eps = 1e-6;               // of the norm
  TensorView x;                    // [tokens, hidden], operand type: the normalised stream
  TensorView token_range;          // [2] I32 = {0, tokens}
  TensorView sequence_starts;      // [sequences + 1] I32
  TensorView experts_of_token;     // [tokens] I32, or absent: rule.top_k each
  TensorView replayed_index;       // [tokens, top_k] I32, or absent
  int64_t sequences_per_unit = 1;  // that stay together on one rank (moe/exchange.h)
  TensorView residual;             // [tokens, hidden] F32: u, becomes h
  TensorView out;                  // [tokens, hidden] F32, optional: h here instead, u stays
};

// A token whose scores are not finite takes no routed experts, and tape.bad_token tells of it: who
// runs the layer has to look before the output is used. For a few tokens a device may do it all in
// one launch (kernels/few_tokens.h), unless the tape asks for what lies between: then x and the
// plan are left as they were.
void layer_forward(const Context& context, const LayerForward& args);

// Which balance losses act on the router, and how they are scaled (kernels/balance.h).
struct BalanceRule {
  double alpha = 0;         // expert level
  double device_alpha = 0;  // device level
  double z_alpha = 0;       // router z loss
  int64_t num_devices = 1;
  int64_t sequences_per_group = 1;
  double group_weight = 0;  // 1 / groups of the whole step
  double token_weight = 0;  // 1 / counted targets of the whole step
};

struct BalanceLosses {
  TensorView balance;  // [2] F64, accumulated: expert level, device level
  TensorView z;        // [1] F64, accumulated
};

// Weight gradients beside what follows, which may be unfinished; none where they are made in turn.
struct LayerWork {
  kernels::BesideWork down;  // reads d_out, the workspace's rows of it and the scaled activations
  kernels::BesideWork up;    // reads x and d_logits, writes the workspace's late rows of x
};

struct LayerBackward {
  DType operand = DType::F32;
  kernels::RouterRule rule;
  BalanceRule balance;
  LayerTransposed weights;
  LayerGradients gradients;  // accumulated; absent ones are not computed
  // Among ranks, where each brings one unit (moe/exchange.h) and units have buffers of their own:
  // the routed experts' gradients of the unit that rank r brings. Empty: all in `gradients`.
  std::span<const ExpertGradients> routed_of_unit;
  kernels::GradientStart start = kernels::GradientStart::from_buffer;  // of the experts' weights
  GradientWork work = GradientWork::in_turn;
  LayerWork before;                 // of the layer that was in this workspace before
  LayerTape tape;                   // of the forward pass: its routing, its experts' rows once
  LayerWorkspace workspace;         // the used part, like the next
  LayerRowGradients row_gradients;  // written
  BalanceLosses losses;
  TensorView x;                // [tokens, hidden], operand type
  TensorView d_out;            // [tokens, hidden], operand type: gradient of h, rounded
  TensorView is_counted;       // [tokens] I32: the token's target counts; needed for the z loss
  TensorView token_range;      // [2] I32
  TensorView sequence_starts;  // [sequences + 1] I32
  TensorView d_x;              // [tokens, hidden] F32, written: gradient of x
};

// The caller waits for what it returns before it writes over x, d_out or the tape, or reads the
// weights' gradients.
LayerWork layer_backward(const Context& context, const LayerBackward& args);

}  // namespace dsmoe::moe

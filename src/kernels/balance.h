// Balance losses of the router (docs/math.md, equations 12 to 17) and their gradients with respect
// to the affinities.
#pragma once

#include "kernels/context.h"
#include "kernels/layout.h"
#include "kernels/router_rule.h"

namespace dsmoe::kernels {

// Groups of consecutive sequences, each with its own f and P over its T tokens:
//   expert level: alpha * sum_i f_i P_i, f_i = E / (K T) * count_i, P_i = mean of s_i
//   device level: device_alpha * sum_d f'_d P'_d, f' = mean of f in device group d, P' = sum of P
//   there
// averaged over the groups of the whole step (group_weight = 1 / their number). Sigmoid scores
// enter divided by the sum of the token's scores. Statistics are taken in double, tokens ascending.
// f is a constant for the gradient; P carries it.
struct BalanceLoss {
  ScoreFunction score = ScoreFunction::softmax;
  int64_t sequences_per_group = 1;
  double alpha = 0;
  double device_alpha = 0;
  int64_t num_devices = 1;
  double group_weight = 0;
  TensorView affinity;         // [tokens, experts] F32 (F64)
  TensorView index;            // [tokens, top_k] I32
  TensorView sequence_starts;  // [sequences + 1] I32
  TensorView d_affinity;       // [tokens, experts] F32 (F64), written
  TensorView losses;           // [2] F64, accumulated: expert level, device level
};
void balance_loss(const Context& context, const BalanceLoss& args);

// weight * logsumexp(logits)^2 over the tokens whose target counts; weight = alpha / counted
// targets of the step.
struct RouterZLoss {
  double weight = 0;
  TensorView logits;      // [tokens, experts] F32 (F64)
  TensorView is_counted;  // [tokens] I32
  TensorView d_logits;    // [tokens, experts] F32 (F64), accumulated
  TensorView loss;        // [1] F64, accumulated
};
void router_z_loss(const Context& context, const RouterZLoss& args);

}  // namespace dsmoe::kernels

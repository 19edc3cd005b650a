// The reference implementation of every op: the specification, the fallback and the oracle.
#pragma once

#include "kernels/ops.h"
#include "kernels/table.h"

namespace dsmoe::kernels::ref {

void pack_weight(const Context&, const PackWeight&);
void embedding_forward(const Context&, const EmbeddingForward&);
void rms_norm_forward(const Context&, const RmsNormForward&);
void matmul_forward(const Context&, const MatmulForward&);
void rope_forward(const Context&, const RopeForward&);
void attention_forward(const Context&, const AttentionForward&);
void router_forward(const Context&, const RouterForward&);
void plan_build(const Context&, const PlanBuild&);
void experts_up_forward(const Context&, const ExpertsUpForward&);
void experts_down_forward(const Context&, const ExpertsDownForward&);
void combine_forward(const Context&, const CombineForward&);
void log_prob_forward(const Context&, const LogProbForward&);
void argmax_forward(const Context&, const ArgmaxForward&);
void sample_forward(const Context&, const SampleForward&);

void dispatch_gates(const Context&, const DispatchGates&);
void weight_gradient(const Context&, const WeightGradient&);
void bias_gradient(const Context&, const BiasGradient&);
void round_values(const Context&, const RoundValues&);
void experts_down_backward(const Context&, const ExpertsDownBackward&);
void experts_up_backward(const Context&, const ExpertsUpBackward&);
void router_backward(const Context&, const RouterBackward&);
void rms_norm_backward(const Context&, const RmsNormBackward&);
void rope_backward(const Context&, const RopeBackward&);
void attention_backward(const Context&, const AttentionBackward&);
void embedding_backward(const Context&, const EmbeddingBackward&);
void cross_entropy_backward(const Context&, const CrossEntropyBackward&);
void balance_loss(const Context&, const BalanceLoss&);
void router_z_loss(const Context&, const RouterZLoss&);
void sum_of_squares(const Context&, const SumOfSquares&);
void adamw_step(const Context&, const AdamwStep&);

}  // namespace dsmoe::kernels::ref

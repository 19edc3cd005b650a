// Every op once: its name and its arguments. The slots of the table, the declarations of each
// backend and the tiers' tables follow from these lists.
#pragma once

// Ops of every backend; the CPU tiers have their own.
#define DSMOE_OPS_OF_TIERS(OP)                     \
  OP(pack_weight, PackWeight)                      \
  OP(embedding_forward, EmbeddingForward)          \
  OP(rms_norm_forward, RmsNormForward)             \
  OP(matmul_forward, MatmulForward)                \
  OP(rope_forward, RopeForward)                    \
  OP(attention_forward, AttentionForward)          \
  OP(router_forward, RouterForward)                \
  OP(experts_up_forward, ExpertsUpForward)         \
  OP(experts_down_forward, ExpertsDownForward)     \
  OP(combine_forward, CombineForward)              \
  OP(log_prob_forward, LogProbForward)             \
  OP(argmax_forward, ArgmaxForward)                \
  OP(sample_forward, SampleForward)                \
  OP(weight_gradient, WeightGradient)              \
  OP(bias_gradient, BiasGradient)                  \
  OP(round_values, RoundValues)                    \
  OP(experts_down_backward, ExpertsDownBackward)   \
  OP(experts_up_backward, ExpertsUpBackward)       \
  OP(router_backward, RouterBackward)              \
  OP(rms_norm_backward, RmsNormBackward)           \
  OP(rope_backward, RopeBackward)                  \
  OP(attention_backward, AttentionBackward)        \
  OP(embedding_backward, EmbeddingBackward)        \
  OP(cross_entropy_backward, CrossEntropyBackward) \
  OP(sum_of_squares, SumOfSquares)                 \
  OP(adamw_step, AdamwStep)

// Ops over a few thousand numbers, for which the CPU tiers take the reference's.
#define DSMOE_OPS_OF_REF(OP)        \
  OP(plan_build, PlanBuild)         \
  OP(dispatch_gates, DispatchGates) \
  OP(balance_loss, BalanceLoss)     \
  OP(router_z_loss, RouterZLoss)

// The same two kinds for latent attention, norms of heads and gated shared experts. The CUDA table
// leaves them empty yet, and no model that needs them runs there.
#define DSMOE_OPS_OF_CPU_TIERS(OP) \
  OP(move_columns, MoveColumns)    \
  OP(head_products, HeadProducts)  \
  OP(shared_gate_forward, SharedGateForward)
#define DSMOE_OPS_OF_CPU_REF(OP) OP(shared_gate_backward, SharedGateBackward)
#define DSMOE_OPS_OF_CPU(OP) \
  DSMOE_OPS_OF_CPU_TIERS(OP) \
  DSMOE_OPS_OF_CPU_REF(OP)

// Every op that a table always has.
#define DSMOE_OPS(OP)    \
  DSMOE_OPS_OF_TIERS(OP) \
  DSMOE_OPS_OF_REF(OP)

// Several ops in one launch, where launches cost time. A slot may be empty, and a kernel may
// decline (kernels/attempt.h). Who calls them has the ops themselves behind it
// (kernels/composed.h).
#define DSMOE_FUSED_OPS(OP)           \
  OP(few_tokens_qkv, FewTokensQkv)    \
  OP(few_tokens_ffn, FewTokensFfn)    \
  OP(few_tokens_head, FewTokensHead)  \
  OP(experts_forward, ExpertsForward) \
  OP(qkv_forward, QkvForward)         \
  OP(dispatch_rows, DispatchRows)     \
  OP(combine_backward, CombineBackward)

// Many tensors in one launch. A slot may be empty: then they are taken one by one.
#define DSMOE_OPS_OF_MANY(OP)                           \
  OP(weight_gradients, std::span<const WeightGradient>) \
  OP(gradient_square_sums, OptimizerStep)               \
  OP(optimizer_step, OptimizerStep)

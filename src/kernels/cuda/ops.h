// The CUDA implementation of every op of the table.
#pragma once

#include "kernels/ops.h"
#include "kernels/table.h"

namespace dsmoe::kernels::cuda {

void pack_weight(const Context&, const PackWeight&);
void embedding_forward(const Context&, const EmbeddingForward&);
void rms_norm_forward(const Context&, const RmsNormForward&);
void matmul_forward(const Context&, const MatmulForward&);
void rope_forward(const Context&, const RopeForward&);
bool qkv_forward(const Context&, const QkvForward&);
void attention_forward(const Context&, const AttentionForward&);
void router_forward(const Context&, const RouterForward&);
void plan_build(const Context&, const PlanBuild&);
void experts_up_forward(const Context&, const ExpertsUpForward&);
void experts_down_forward(const Context&, const ExpertsDownForward&);
bool experts_forward(const Context&, const ExpertsForward&);
void combine_forward(const Context&, const CombineForward&);
void log_prob_forward(const Context&, const LogProbForward&);
void argmax_forward(const Context&, const ArgmaxForward&);
void sample_forward(const Context&, const SampleForward&);
bool few_tokens_qkv(const Context&, const FewTokensQkv&);
bool few_tokens_ffn(const Context&, const FewTokensFfn&);
bool few_tokens_head(const Context&, const FewTokensHead&);
// False: too many rows, or a shape for the grouped product.
bool few_rows_matmul(const Context&, const MatmulForward&);

void upload(const Context&, const void* host, void* device, std::size_t bytes);
void download(const Context&, const void* device, void* host, std::size_t bytes);

void begin_recording(const Context&);
void* end_recording(const Context&);
void replay_recording(const Context&, void* recording);
void release_recording(void* recording);

void* begin_beside(const Context&);
BesideWork end_beside(const Context&);
void wait_beside(const Context&, BesideWork);

void dispatch_gates(const Context&, const DispatchGates&);
bool dispatch_rows(const Context&, const DispatchRows&);
bool combine_backward(const Context&, const CombineBackward&);
bool takes_parts(const Context&, const TakesParts&);
void weight_gradient(const Context&, const WeightGradient&);
void weight_gradients(const Context&, const std::span<const WeightGradient>&);
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
void gradient_square_sums(const Context&, const OptimizerStep&);
void optimizer_step(const Context&, const OptimizerStep&);

// The end of experts_down_backward: d_gate_of_row from its sums over 16 outputs each.
void add_partial_sums(const Context& context, const ExpertFamilyBackward& family,
                      const float* partial_sums);

// The device memory in which the kernels of a stream count: made with the stream, because nothing
// can be allocated while a graph is captured.
void prepare_router(const Context& context);
void prepare_products(const Context& context);
void prepare_experts(const Context& context);
void prepare_few_tokens_ffn(const Context& context);
void prepare_few_tokens_head(const Context& context);

}  // namespace dsmoe::kernels::cuda

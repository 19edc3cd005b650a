// The CUDA implementation of every op of the table.
#pragma once

#include "kernels/few_tokens.h"
#include "kernels/table.h"

namespace dsmoe::kernels::cuda {

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
bool few_tokens_qkv(const Context&, const FewTokensQkv&);
bool few_tokens_ffn(const Context&, const FewTokensFfn&);
// False: too many rows, or a shape for the grouped product.
bool few_rows_matmul(const Context&, const MatmulForward&);

void begin_recording(const Context&);
void* end_recording(const Context&);
void replay_recording(const Context&, void* recording);
void release_recording(void* recording);

// Denormals of stored bf16 numbers to zero, every NaN to the one we write.
void make_canonical(const Context&, void* bf16_values, int64_t count);

// Fills device scratch memory that must not be filled while a graph is captured.
void prepare_router();

}  // namespace dsmoe::kernels::cuda

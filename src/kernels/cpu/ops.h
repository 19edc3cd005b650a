// The ops of the CPU tiers: each divides its work over the threads and leaves the inner loops to a
// Tier.
#pragma once

#include "kernels/cpu/tier.h"
#include "kernels/ops.h"
#include "kernels/table.h"

namespace dsmoe::kernels::cpu {

void pack_weight(const Tier& tier, const Context& context, const PackWeight& args);
void embedding_forward(const Tier& tier, const Context& context, const EmbeddingForward& args);
void rms_norm_forward(const Tier& tier, const Context& context, const RmsNormForward& args);
void matmul_forward(const Tier& tier, const Context& context, const MatmulForward& args);
void rope_forward(const Tier& tier, const Context& context, const RopeForward& args);
void attention_forward(const Tier& tier, const Context& context, const AttentionForward& args);
void router_forward(const Tier& tier, const Context& context, const RouterForward& args);
void experts_up_forward(const Tier& tier, const Context& context, const ExpertsUpForward& args);
void experts_down_forward(const Tier& tier, const Context& context, const ExpertsDownForward& args);
void combine_forward(const Tier& tier, const Context& context, const CombineForward& args);
void log_prob_forward(const Tier& tier, const Context& context, const LogProbForward& args);
void argmax_forward(const Tier& tier, const Context& context, const ArgmaxForward& args);
void sample_forward(const Context& context, const SampleForward& args);

void weight_gradient(const Tier& tier, const Context& context, const WeightGradient& args);
void experts_down_backward(const Tier& tier, const Context& context,
                           const ExpertsDownBackward& args);
void experts_up_backward(const Tier& tier, const Context& context, const ExpertsUpBackward& args);
void bias_gradient(const Tier& tier, const Context& context, const BiasGradient& args);
void round_values(const Tier& tier, const Context& context, const RoundValues& args);
void router_backward(const Tier& tier, const Context& context, const RouterBackward& args);
void rms_norm_backward(const Tier& tier, const Context& context, const RmsNormBackward& args);
void rope_backward(const Tier& tier, const Context& context, const RopeBackward& args);
void attention_backward(const Tier& tier, const Context& context, const AttentionBackward& args);
void embedding_backward(const Tier& tier, const Context& context, const EmbeddingBackward& args);
void cross_entropy_backward(const Tier& tier, const Context& context,
                            const CrossEntropyBackward& args);
void sum_of_squares(const Tier& tier, const Context& context, const SumOfSquares& args);
void adamw_step(const Tier& tier, const Context& context, const AdamwStep& args);

// Floats of scratch memory that a thread needs for an op of these sizes.
int64_t rope_scratch(int64_t head_dim);
int64_t attention_backward_scratch(int64_t keys, int64_t head_dim);
int64_t experts_backward_scratch(int64_t width);
int64_t weight_gradient_scratch(int64_t inputs);
void reserve_scratch(const Context& context, const ScratchBound& bound);

// The table of a tier: its ops over those of `below`. The plan, the order of gates and the balance
// losses are a few thousand numbers and stay ref's.
template <const Tier& tier>
KernelTable make_table(std::string_view name, const KernelTable& below) {
  KernelTable table = below;
  table.name = name;
  table.weight_layout = WeightLayout::panels;
  table.memory.reserve_scratch = reserve_scratch;
  table.pack_weight = [](const Context& c, const PackWeight& a) { pack_weight(tier, c, a); };
  table.embedding_forward = [](const Context& c, const EmbeddingForward& a) {
    embedding_forward(tier, c, a);
  };
  table.rms_norm_forward = [](const Context& c, const RmsNormForward& a) {
    rms_norm_forward(tier, c, a);
  };
  table.matmul_forward = [](const Context& c, const MatmulForward& a) {
    matmul_forward(tier, c, a);
  };
  table.rope_forward = [](const Context& c, const RopeForward& a) { rope_forward(tier, c, a); };
  table.attention_forward = [](const Context& c, const AttentionForward& a) {
    attention_forward(tier, c, a);
  };
  table.router_forward = [](const Context& c, const RouterForward& a) {
    router_forward(tier, c, a);
  };
  table.experts_up_forward = [](const Context& c, const ExpertsUpForward& a) {
    experts_up_forward(tier, c, a);
  };
  table.experts_down_forward = [](const Context& c, const ExpertsDownForward& a) {
    experts_down_forward(tier, c, a);
  };
  table.combine_forward = [](const Context& c, const CombineForward& a) {
    combine_forward(tier, c, a);
  };
  table.log_prob_forward = [](const Context& c, const LogProbForward& a) {
    log_prob_forward(tier, c, a);
  };
  table.argmax_forward = [](const Context& c, const ArgmaxForward& a) {
    argmax_forward(tier, c, a);
  };
  table.sample_forward = sample_forward;
  table.weight_gradient = [](const Context& c, const WeightGradient& a) {
    weight_gradient(tier, c, a);
  };
  table.experts_down_backward = [](const Context& c, const ExpertsDownBackward& a) {
    experts_down_backward(tier, c, a);
  };
  table.experts_up_backward = [](const Context& c, const ExpertsUpBackward& a) {
    experts_up_backward(tier, c, a);
  };
  table.bias_gradient = [](const Context& c, const BiasGradient& a) { bias_gradient(tier, c, a); };
  table.round_values = [](const Context& c, const RoundValues& a) { round_values(tier, c, a); };
  table.router_backward = [](const Context& c, const RouterBackward& a) {
    router_backward(tier, c, a);
  };
  table.rms_norm_backward = [](const Context& c, const RmsNormBackward& a) {
    rms_norm_backward(tier, c, a);
  };
  table.rope_backward = [](const Context& c, const RopeBackward& a) { rope_backward(tier, c, a); };
  table.attention_backward = [](const Context& c, const AttentionBackward& a) {
    attention_backward(tier, c, a);
  };
  table.embedding_backward = [](const Context& c, const EmbeddingBackward& a) {
    embedding_backward(tier, c, a);
  };
  table.cross_entropy_backward = [](const Context& c, const CrossEntropyBackward& a) {
    cross_entropy_backward(tier, c, a);
  };
  table.sum_of_squares = [](const Context& c, const SumOfSquares& a) {
    sum_of_squares(tier, c, a);
  };
  table.adamw_step = [](const Context& c, const AdamwStep& a) { adamw_step(tier, c, a); };
  return table;
}

}  // namespace dsmoe::kernels::cpu

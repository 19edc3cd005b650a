// The steps of a block: norm, part, norm, part; below them the same steps in reverse.
#include "model/block.h"

#include "kernels/checks.h"
#include "kernels/rms_norm.h"

namespace dsmoe::model {
namespace {

// u += attention(norm(u)).
void attention_forward(const Context& context, const BlockForward& args) {
  const BlockTape& tape = args.memory.tape;
  attention::forward(context, {.shape = args.config.attention_shape(args.operand, args.form),
                               .weights = args.weights.attention,
                               .tape = args.memory.attention.tape,
                               .workspace = args.memory.attention.workspace,
                               .rope = args.rope,
                               .kv = args.kv,
                               .norm_weight = args.weights.attention_norm,
                               .eps = args.config.rms_norm_eps,
                               .x = tape.attention_normed,
                               .position = args.batch.position,
                               .kv_slot = args.batch.kv_slot,
                               .document_starts = args.batch.document_starts,
                               .page_table = args.batch.page_table,
                               .residual = args.u,
                               .out = tape.ffn_input});
}

// u += ffn(norm(u)).
void ffn_forward(const Context& context, const BlockForward& args) {
  const BlockTape& tape = args.memory.tape;
  kernels::RouterRule rule = router_rule(args.config, args.top_k);
  rule.skip_best = static_cast<int>(args.ablation.skip_best);
  moe::LayerWeights weights = args.weights.ffn;
  if (args.ablation.shared == SharedExperts::left_out && weights.routed) {
    weights.shared = {};
    weights.shared_gate = {};
  }
  moe::layer_forward(context, {.operand = args.operand,
                               .rule = rule,
                               .weights = weights,
                               .tape = args.memory.ffn.tape,
                               .workspace = args.memory.ffn.workspace,
                               .norm_weight = args.weights.ffn_norm,
                               .eps = args.config.rms_norm_eps,
                               .x = tape.ffn_normed,
                               .token_range = args.batch.token_range,
                               .sequence_starts = args.batch.sequence_starts,
                               .experts_of_token = args.batch.experts_of_token,
                               .replayed_index = args.replayed_index,
                               .sequences_per_unit = args.sequences_per_unit,
                               .residual = tape.ffn_input ? tape.ffn_input : args.u,
                               .out = args.out});
}

}  // namespace

void block_forward(const Context& context, const BlockForward& args) {
  attention_forward(context, args);
  ffn_forward(context, args);
}

namespace {

moe::LayerWork ffn_backward(const Context& context, const BlockBackward& args) {
  const BlockMemory& memory = args.memory;
  return moe::layer_backward(context, {.operand = args.operand,
                                       .rule = router_rule(args.config, args.top_k),
                                       .balance = args.balance,
                                       .weights = args.transposed.ffn,
                                       .gradients = args.gradients.ffn,
                                       .routed_of_unit = args.routed_of_unit,
                                       .start = args.start,
                                       .work = args.work,
                                       .before = args.before.ffn,
                                       .tape = memory.ffn.tape,
                                       .workspace = memory.ffn.workspace,
                                       .row_gradients = memory.ffn.gradients,
                                       .losses = args.losses,
                                       .x = memory.tape.ffn_normed,
                                       .d_out = memory.gradients.d_after_ffn,
                                       .is_counted = args.batch.is_counted,
                                       .token_range = args.batch.token_range,
                                       .sequence_starts = args.batch.sequence_starts,
                                       .d_x = memory.gradients.d_normed});
}

kernels::BesideWork attention_backward(const Context& context, const BlockBackward& args) {
  const BlockMemory& memory = args.memory;
  return attention::backward(
      context,
      {.shape = args.config.attention_shape(args.operand, attention::LatentForm::expanded),
       .weights = args.transposed.attention,
       .norms = {.q_norm = args.weights.attention.q_norm, .k_norm = args.weights.attention.k_norm},
       .gradients = args.gradients.attention,
       .start = args.start,
       .work = args.work,
       .before = args.before.attention,
       .tape = memory.attention.tape,
       .row_gradients = memory.attention.gradients,
       .rope = args.rope,
       .kv = args.kv,
       .x = memory.tape.attention_normed,
       .d_out = memory.gradients.d_after_attention,
       .position = args.batch.position,
       .document_starts = args.batch.document_starts,
       .page_table = args.batch.page_table,
       .sequence_starts = args.batch.sequence_starts,
       .d_x = memory.gradients.d_normed});
}

// The gradient of a norm's output joins the stream's, which is kept rounded as well.
struct NormBackward {
  TensorView u;  // that the norm read
  TensorView weight;
  TensorView d_weight;
  TensorView rounded;
};
void norm_backward(const Context& context, const BlockBackward& args, const NormBackward& norm) {
  kernels::rms_norm_backward(context, {.x = norm.u,
                                       .weight = norm.weight,
                                       .eps = args.config.rms_norm_eps,
                                       .d_out = args.memory.gradients.d_normed,
                                       .sequence_starts = args.batch.sequence_starts,
                                       .d_x = args.d_u,
                                       .d_weight = norm.d_weight,
                                       .rounded = norm.rounded});
}

}  // namespace

BlockWork block_backward(const Context& context, const BlockBackward& args) {
  const auto& [tape, rows, attention, ffn] = args.memory;
  BlockWork work;
  work.ffn = ffn_backward(context, args);
  kernels::wait_beside(context, args.before.attention);  // reads d_after_attention
  norm_backward(context, args,
                {.u = tape.ffn_input,
                 .weight = args.weights.ffn_norm,
                 .d_weight = args.gradients.ffn_norm,
                 .rounded = rows.d_after_attention});
  work.attention = attention_backward(context, args);
  kernels::wait_beside(context, work.ffn.down);  // reads d_after_ffn
  norm_backward(context, args,
                {.u = tape.attention_input,
                 .weight = args.weights.attention_norm,
                 .d_weight = args.gradients.attention_norm,
                 .rounded = rows.d_after_ffn});
  return work;
}

void wait_for(const Context& context, const BlockWork& work) {
  for (const kernels::BesideWork& piece : {work.ffn.down, work.ffn.up, work.attention})
    kernels::wait_beside(context, piece);
}

kernels::RouterRule router_rule(const ModelConfig& config, int64_t top_k) {
  const bool v3 = config.topk_method == TopkMethod::noaux_tc;
  const bool grouped = config.topk_method != TopkMethod::greedy;
  return {.score = config.scoring_func == ScoringFunc::sigmoid ? kernels::ScoreFunction::sigmoid
                                                               : kernels::ScoreFunction::softmax,
          .top_k = static_cast<int>(top_k),
          .num_groups = grouped ? static_cast<int>(config.n_group) : 1,
          .top_groups = grouped ? static_cast<int>(config.topk_group) : 1,
          .group_score = v3 ? kernels::GroupScore::sum_of_best_two : kernels::GroupScore::max,
          .normalise = config.norm_topk_prob,
          .scale = static_cast<float>(config.routed_scaling_factor),
          .scale_gates = v3 ? kernels::ScaleGates::always : kernels::ScaleGates::unless_normalised};
}

moe::LayerSize layer_size(const ModelConfig& config, bool is_moe, const BlockSize& size) {
  moe::LayerSize layer{.max_tokens = size.max_tokens,
                       .max_sequences = size.max_sequences,
                       .hidden = config.hidden_size,
                       .shared_width = config.intermediate_size,
                       .operand = size.operand,
                       .passes = size.passes,
                       .work = size.work};
  if (is_moe) {
    layer.num_experts = config.n_routed_experts;
    layer.top_k = size.top_k;
    layer.routed_width = config.moe_intermediate_size;
    layer.shared_width = config.shared_width();
    layer.has_shared_gate = config.shared_expert_gate;
    layer.parts = size.parts;
    layer.rank = size.rank;
    layer.ranks = size.ranks;
  }
  return layer;
}

BlockMemory allocate_block_memory(const ModelConfig& config, const BlockSize& size,
                                  tensor::Arena& arena, const BlockMemory* common) {
  const DType scalar = kernels::scalar_type(size.operand);
  const kernels::Shape stream{size.max_tokens, config.hidden_size};
  const bool training = size.passes == moe::Passes::forward_and_backward;
  BlockMemory memory;
  BlockTape& tape = memory.tape;
  if (training) {
    tape.attention_input = arena.tensor("block inputs", scalar, stream);
    tape.ffn_input = arena.tensor("block inputs", scalar, stream);
  }
  tape.attention_normed = arena.tensor("normed", size.operand, stream);
  // Without a backward pass nobody reads the first after the second is written.
  tape.ffn_normed = training ? arena.tensor("normed", size.operand, stream) : tape.attention_normed;
  memory.attention =
      attention::allocate_memory({.shape = config.attention_shape(size.operand, size.form),
                                  .max_tokens = size.max_tokens,
                                  .passes = size.passes},
                                 arena, common != nullptr ? &common->attention : nullptr);
  if (common != nullptr) {
    memory.gradients = common->gradients;
  } else if (training) {
    memory.gradients = {.d_after_ffn = arena.tensor("backward", size.operand, stream),
                        .d_after_attention = arena.tensor("backward", size.operand, stream),
                        .d_normed = arena.tensor("backward", scalar, stream)};
  }
  return memory;
}

BlockMemory used_part(const BlockMemory& memory, int64_t tokens, int64_t sequences, int64_t top_k) {
  BlockMemory used = memory;
  auto& [tape, gradients, attention, ffn] = used;
  for (TensorView* view :
       {&tape.attention_input, &tape.attention_normed, &tape.ffn_input, &tape.ffn_normed,
        &gradients.d_after_ffn, &gradients.d_after_attention, &gradients.d_normed}) {
    if (*view) *view = view->rows(0, tokens);
  }
  attention = attention::used_part(memory.attention, tokens);
  ffn = moe::used_part(memory.ffn, tokens, sequences, top_k);
  return used;
}

}  // namespace dsmoe::model

// The steps of a block, in the order of the paper; below them the same steps in reverse.
#include "model/block.h"

#include <cmath>

#include "kernels/attention.h"
#include "kernels/beside.h"
#include "kernels/checks.h"
#include "kernels/few_tokens.h"
#include "kernels/matmul.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"

namespace dsmoe::model {
namespace {

float attention_scale(const ModelConfig& config) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim)));
}

// [tokens, heads, head_dim] as the rows of a product.
TensorView flat(TensorView heads) {
  heads.shape = {heads.dim(0), heads.dim(1) * heads.dim(2)};
  return heads;
}

// q, k, v = rope(W_qkv norm(u)): in one launch where there is such a kernel and no backward pass
// wants what lies between.
void project(const Context& context, const BlockForward& args) {
  const BlockTape& tape = args.tape;
  const AttentionWeights& weights = args.weights.attention;
  if (!tape.ffn_input &&
      kernels::few_tokens_qkv(context, {.residual = args.u,
                                        .norm_weight = args.weights.attention_norm,
                                        .eps = args.config.rms_norm_eps,
                                        .weight = weights.qkv,
                                        .bias = weights.qkv_bias,
                                        .cos = args.rope.cos,
                                        .sin = args.rope.sin,
                                        .position = args.batch.position,
                                        .kv_slot = args.batch.kv_slot,
                                        .q = tape.q,
                                        .kv = args.kv,
                                        .x = tape.attention_normed})) {
    return;
  }
  kernels::rms_norm_forward(context, {.x = args.u,
                                      .weight = args.weights.attention_norm,
                                      .eps = args.config.rms_norm_eps,
                                      .out = tape.attention_normed});
  if (kernels::qkv_forward(context, {.x = tape.attention_normed,
                                     .weight = weights.qkv,
                                     .bias = weights.qkv_bias,
                                     .cos = args.rope.cos,
                                     .sin = args.rope.sin,
                                     .position = args.batch.position,
                                     .kv_slot = args.batch.kv_slot,
                                     .q = tape.q,
                                     .kv = args.kv})) {
    return;
  }
  kernels::matmul_forward(context, {.x = tape.attention_normed,
                                    .weight = weights.qkv,
                                    .bias = weights.qkv_bias,
                                    .out = tape.qkv});
  kernels::rope_forward(context, {.qkv = tape.qkv,
                                  .cos = args.rope.cos,
                                  .sin = args.rope.sin,
                                  .position = args.batch.position,
                                  .kv_slot = args.batch.kv_slot,
                                  .q = tape.q,
                                  .kv = args.kv});
}

// Where the stream is between attention and the layer.
TensorView middle(const BlockForward& args) {
  return args.tape.ffn_input ? args.tape.ffn_input : args.u;
}

// u + W_o attention(q, k, v).
void attention_forward(const Context& context, const BlockForward& args) {
  const BlockTape& tape = args.tape;
  const AttentionWeights& weights = args.weights.attention;
  project(context, args);
  kernels::attention_forward(context, {.q = tape.q,
                                       .kv = args.kv,
                                       .q_starts = args.batch.document_starts,
                                       .position = args.batch.position,
                                       .page_table = args.batch.page_table,
                                       .scale = attention_scale(args.config),
                                       .out = tape.attention_out,
                                       .log_sums = tape.log_sums});
  kernels::matmul_forward(context, {.x = flat(tape.attention_out),
                                    .weight = weights.out,
                                    .bias = weights.out_bias,
                                    .out = middle(args),
                                    .store = kernels::Store::accumulate,
                                    .base = args.u});
}

}  // namespace

void block_forward(const Context& context, const BlockForward& args) {
  const BlockTape& tape = args.tape;
  attention_forward(context, args);
  kernels::RouterRule rule = router_rule(args.config, args.top_k);
  rule.skip_best = static_cast<int>(args.ablation.skip_best);
  moe::LayerWeights ffn = args.weights.ffn;
  if (args.ablation.shared == SharedExperts::left_out && ffn.routed) ffn.shared = {};
  moe::layer_forward(context, {.rule = rule,
                               .weights = ffn,
                               .state = tape.ffn,
                               .norm_weight = args.weights.ffn_norm,
                               .eps = args.config.rms_norm_eps,
                               .x = tape.ffn_normed,
                               .token_range = args.batch.token_range,
                               .sequence_starts = args.batch.sequence_starts,
                               .experts_of_token = args.batch.experts_of_token,
                               .replayed_index = args.replayed_index,
                               .residual = middle(args),
                               .out = args.out});
}

namespace {

// The gradients of y = x W^T + b of both projections, for whichever of W and b are wanted.
void projection_gradients(const Context& context, const BlockBackward& args) {
  const BlockGradients& gradients = args.gradients;
  const BackwardTape& scratch = args.scratch;
  TensorView rows = args.batch.sequence_starts;
  rows.shape = {1, rows.dim(0)};
  kernels::WeightGradient list[2];
  std::size_t count = 0;
  if (gradients.qkv) {
    list[count++] = {.dy = scratch.d_qkv_rounded,
                     .x = args.tape.attention_normed,
                     .sequence_offsets = rows,
                     .d_weight = gradients.qkv,
                     .start = args.start};
  }
  if (gradients.out) {
    list[count++] = {.dy = scratch.d_out,
                     .x = flat(args.tape.attention_out),
                     .sequence_offsets = rows,
                     .d_weight = gradients.out,
                     .start = args.start};
  }
  const auto make = [&](const Context& own) { kernels::weight_gradients(own, {list, count}); };
  if (args.work == moe::GradientWork::beside) {
    kernels::run_beside(context, make);
  } else {
    make(context);
  }
  const auto bias = [&](const TensorView& dy, const TensorView& d_bias) {
    if (!d_bias) return;
    kernels::bias_gradient(
        context, {.dy = dy, .sequence_starts = args.batch.sequence_starts, .d_bias = d_bias});
  };
  bias(scratch.d_qkv_rounded, gradients.qkv_bias);
  bias(scratch.d_out, gradients.out_bias);
}

// A block ends three pieces of weight gradients: the layer's down, its up, the projections'.
void wait_for_pieces(const Context& context, const BlockBackward& args, int unfinished) {
  if (args.work == moe::GradientWork::beside) kernels::wait_beside(context, unfinished);
}

void ffn_backward(const Context& context, const BlockBackward& args) {
  const bool is_moe = args.config.is_moe_layer(args.layer);
  const BackwardTape& scratch = args.scratch;
  moe::layer_backward(context, {.rule = router_rule(args.config, args.top_k),
                                .balance = args.balance,
                                .weights = args.transposed.ffn,
                                .gradients = args.gradients.ffn,
                                .start = args.start,
                                .work = args.work,
                                .state = args.tape.ffn,
                                .scratch = is_moe ? scratch.moe : scratch.dense,
                                .losses = args.losses,
                                .x = args.tape.ffn_normed,
                                .d_out = scratch.d_ffn_out,
                                .is_counted = args.batch.is_counted,
                                .token_range = args.batch.token_range,
                                .sequence_starts = args.batch.sequence_starts,
                                .d_x = scratch.d_x});
  wait_for_pieces(context, args, 2);  // the projections' of the block above read d_out
  kernels::rms_norm_backward(context, {.x = args.tape.ffn_input,
                                       .weight = args.weights.ffn_norm,
                                       .eps = args.config.rms_norm_eps,
                                       .d_out = scratch.d_x,
                                       .sequence_starts = args.batch.sequence_starts,
                                       .d_x = args.d_u,
                                       .d_weight = args.gradients.ffn_norm,
                                       .rounded = scratch.d_out});
}

void attention_backward(const Context& context, const BlockBackward& args) {
  const BlockTape& tape = args.tape;
  const BackwardTape& scratch = args.scratch;
  const BlockGradients& gradients = args.gradients;
  kernels::matmul_forward(context, {.x = scratch.d_out,
                                    .weight = args.transposed.out,
                                    .out = scratch.d_attention,
                                    .rounded = flat(scratch.d_attention_out)});
  kernels::attention_backward(context, {.q = tape.q,
                                        .kv = args.kv,
                                        .q_starts = args.batch.document_starts,
                                        .page_table = args.batch.page_table,
                                        .scale = attention_scale(args.config),
                                        .out = tape.attention_out,
                                        .log_sums = tape.log_sums,
                                        .d_out = scratch.d_attention_out,
                                        .d_qkv = scratch.d_qkv,
                                        .rounded = scratch.d_qkv_rounded,
                                        .cos = args.rope.cos,
                                        .sin = args.rope.sin,
                                        .position = args.batch.position});
  projection_gradients(context, args);
  kernels::matmul_forward(
      context, {.x = scratch.d_qkv_rounded, .weight = args.transposed.qkv, .out = scratch.d_x});
  // Those of the layer read d_ffn_out, and its scratch memory, which the next block writes.
  wait_for_pieces(context, args, 1);
  kernels::rms_norm_backward(context, {.x = tape.attention_input,
                                       .weight = args.weights.attention_norm,
                                       .eps = args.config.rms_norm_eps,
                                       .d_out = scratch.d_x,
                                       .sequence_starts = args.batch.sequence_starts,
                                       .d_x = args.d_u,
                                       .d_weight = gradients.attention_norm,
                                       .rounded = scratch.d_ffn_out});
}

}  // namespace

void block_backward(const Context& context, const BlockBackward& args) {
  ffn_backward(context, args);
  attention_backward(context, args);
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

moe::LayerSize layer_size(const ModelConfig& config, bool is_moe, const TapeSize& size) {
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
    layer.parts = size.parts;
  }
  return layer;
}

BlockTape allocate_attention_tape(const ModelConfig& config, const TapeSize& size,
                                  tensor::Arena& arena, const BlockTape* lender) {
  const DType scalar = kernels::scalar_type(size.operand);
  const int64_t tokens = size.max_tokens;
  const kernels::Shape heads{tokens, config.num_attention_heads, config.head_dim};
  const bool training = size.passes == moe::Passes::forward_and_backward;
  BlockTape tape;
  if (training) {
    tape.attention_input = arena.tensor("block inputs", scalar, {tokens, config.hidden_size});
    tape.ffn_input = arena.tensor("block inputs", scalar, {tokens, config.hidden_size});
  }
  tape.attention_normed = arena.tensor("normed", size.operand, {tokens, config.hidden_size});
  // Without a backward pass nobody reads the first after the second is written.
  tape.ffn_normed = training ? arena.tensor("normed", size.operand, {tokens, config.hidden_size})
                             : tape.attention_normed;
  const int64_t qkv = config.q_width() + 2 * config.kv_width();
  tape.qkv = lender ? lender->qkv : arena.tensor("attention", scalar, {tokens, qkv});
  tape.q = arena.tensor("attention", size.operand, heads);
  tape.attention_out = arena.tensor("attention", size.operand, heads);
  if (training)
    tape.log_sums = arena.tensor("attention", DType::F32, {tokens, config.num_attention_heads});
  return tape;
}

BlockTape used_part(const BlockTape& tape, int64_t tokens, int64_t sequences, int64_t top_k) {
  BlockTape used = tape;
  for (TensorView* view :
       {&used.attention_input, &used.attention_normed, &used.qkv, &used.q, &used.attention_out,
        &used.log_sums, &used.ffn_input, &used.ffn_normed}) {
    if (*view) *view = view->rows(0, tokens);
  }
  used.ffn = moe::used_part(tape.ffn, tokens, sequences, top_k);
  return used;
}

BackwardTape allocate_backward_tape(const ModelConfig& config, const TapeSize& size,
                                    tensor::Arena& arena) {
  const DType scalar = kernels::scalar_type(size.operand);
  const int64_t tokens = size.max_tokens;
  const int64_t qkv = config.q_width() + 2 * config.kv_width();
  const std::string name = "backward";
  BackwardTape tape;
  tape.d_ffn_out = arena.tensor(name, size.operand, {tokens, config.hidden_size});
  tape.d_out = arena.tensor(name, size.operand, {tokens, config.hidden_size});
  tape.d_x = arena.tensor(name, scalar, {tokens, config.hidden_size});
  tape.d_attention = arena.tensor(name, scalar, {tokens, config.q_width()});
  tape.d_attention_out =
      arena.tensor(name, size.operand, {tokens, config.num_attention_heads, config.head_dim});
  tape.d_qkv = arena.tensor(name, scalar, {tokens, qkv});
  tape.d_qkv_rounded = arena.tensor(name, size.operand, {tokens, qkv});
  if (config.num_moe_layers() > 0) {
    tape.moe = moe::allocate_backward_state(layer_size(config, true, size), arena);
  }
  if (config.num_moe_layers() < config.num_hidden_layers) {
    tape.dense = moe::allocate_backward_state(layer_size(config, false, size), arena);
  }
  return tape;
}

BackwardTape used_part(const BackwardTape& tape, int64_t tokens, int64_t top_k) {
  BackwardTape used = tape;
  for (TensorView* view : {&used.d_ffn_out, &used.d_out, &used.d_x, &used.d_attention,
                           &used.d_attention_out, &used.d_qkv, &used.d_qkv_rounded}) {
    *view = view->rows(0, tokens);
  }
  used.moe = moe::used_part(tape.moe, tokens, top_k);
  used.dense = moe::used_part(tape.dense, tokens, 0);
  return used;
}

}  // namespace dsmoe::model

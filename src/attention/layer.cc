// The steps of an attention part, in the order of the paper; below them the same in reverse.
#include "attention/layer.h"

#include "attention/steps.h"
#include "kernels/attention.h"
#include "kernels/composed.h"
#include "kernels/rope.h"

namespace dsmoe::attention {
namespace {

void turn(const Context& context, const Forward& args) {
  kernels::rope_forward(context, {.qkv = args.workspace.qkv,
                                  .cos = args.rope.cos,
                                  .sin = args.rope.sin,
                                  .rotation = args.shape.rotation,
                                  .position = args.position,
                                  .kv_slot = args.kv_slot,
                                  .q = args.tape.q,
                                  .kv = args.kv});
}

// Heads of q and of k, each normalised before it turns.
void normalise_heads(const Context& context, const Forward& args) {
  const auto normalise = [&](int64_t begin, const TensorView& in, const TensorView& weight) {
    const TensorView normed = with_columns(args.workspace.normed, in.dim(1));
    take_columns(context, args.workspace.qkv, begin, in);
    kernels::rms_norm_forward(context, {.x = as_rows(in, weight.dim(0)),
                                        .weight = weight,
                                        .eps = args.shape.norm_eps,
                                        .out = as_rows(normed, weight.dim(0))});
    put_columns(context, normed, args.workspace.qkv, begin);
  };
  normalise(0, args.tape.q_in, args.weights.q_norm);
  normalise(args.shape.q_width(), args.tape.k_in, args.weights.k_norm);
}

// q, k, v = rope(W_qkv norm(u)).
void project(const Context& context, const Forward& args) {
  if (args.shape.is_plain()) {
    return kernels::project_heads(context, {.operand = args.shape.kv.dtype,
                                            .residual = args.residual,
                                            .norm_weight = args.norm_weight,
                                            .eps = args.eps,
                                            .x = args.x,
                                            .weight = args.weights.qkv,
                                            .bias = args.weights.qkv_bias,
                                            .cos = args.rope.cos,
                                            .sin = args.rope.sin,
                                            .position = args.position,
                                            .kv_slot = args.kv_slot,
                                            .q = args.tape.q,
                                            .kv = args.kv,
                                            .qkv = args.workspace.qkv,
                                            .keeps_x = static_cast<bool>(args.tape.log_sums)});
  }
  if (args.shape.latent) {
    latent_project(context, args);
    return turn(context, args);
  }
  kernels::rms_norm_forward(
      context, {.x = args.residual, .weight = args.norm_weight, .eps = args.eps, .out = args.x});
  kernels::matmul_forward(context, {.operand = args.shape.kv.dtype,
                                    .x = args.x,
                                    .weight = args.weights.qkv,
                                    .bias = args.weights.qkv_bias,
                                    .out = args.workspace.qkv});
  if (args.shape.has_qk_norm) normalise_heads(context, args);
  turn(context, args);
}

// What the last projection reads: the heads' outputs, which absorbed heads still have to make from
// sums of latents.
TensorView merge_heads(const Context& context, const Forward& args) {
  if (!args.shape.latent.is_absorbed()) return flat(args.tape.out);
  kernels::head_products(
      context, {.x = args.tape.out, .weight = args.weights.value_up, .out = args.workspace.merged});
  return flat(args.workspace.merged);
}

}  // namespace

void forward(const Context& context, const Forward& args) {
  project(context, args);
  kernels::attention_forward(context, {.q = args.tape.q,
                                       .kv = args.kv,
                                       .q_starts = args.document_starts,
                                       .position = args.position,
                                       .page_table = args.page_table,
                                       .scale = args.shape.scale(),
                                       .out = args.tape.out,
                                       .log_sums = args.tape.log_sums});
  kernels::matmul_forward(context, {.operand = args.shape.kv.dtype,
                                    .x = merge_heads(context, args),
                                    .weight = args.weights.out,
                                    .bias = args.weights.out_bias,
                                    .out = args.out ? args.out : args.residual,
                                    .store = kernels::Store::accumulate,
                                    .base = args.residual});
}

namespace {

// The gradients of y = x W^T + b of all projections, for whichever of W and b are wanted.
kernels::BesideWork projection_gradients(const Context& context, const Backward& args) {
  const RowGradients& rows = args.row_gradients;
  TensorView one_matrix = args.sequence_starts;  // all tokens, as the rows of a single matrix
  one_matrix.shape = {1, one_matrix.dim(0)};
  kernels::WeightGradient list[4];
  std::size_t count = 0;
  const auto add = [&](const TensorView& dy, const TensorView& x, const TensorView& d_weight) {
    if (!d_weight) return;
    list[count++] = {.dy = {dy},
                     .x = {x},
                     .sequence_offsets = one_matrix,
                     .d_weight = d_weight,
                     .start = args.start};
  };
  add(rows.d_projected, args.x, args.gradients.qkv);
  add(rows.d_q_heads, args.tape.q_latent, args.gradients.q_up);
  add(rows.d_kv_heads, args.tape.kv_latent, args.gradients.kv_up);
  add(args.d_out, flat(args.tape.out), args.gradients.out);
  const auto make = [&](const Context& own) { kernels::weight_gradients(own, {list, count}); };
  kernels::BesideWork work;
  if (args.work == kernels::GradientWork::beside) {
    work = kernels::run_beside(context, make);
  } else {
    make(context);
  }
  const auto bias = [&](const TensorView& dy, const TensorView& d_bias) {
    if (!d_bias) return;
    kernels::bias_gradient(context,
                           {.dy = dy, .sequence_starts = args.sequence_starts, .d_bias = d_bias});
  };
  bias(rows.d_projected, args.gradients.qkv_bias);
  bias(args.d_out, args.gradients.out_bias);
  return work;
}

// The norms of q's and k's heads, and the values beside them.
void heads_norm_backward(const Context& context, const Backward& args) {
  const RowGradients& rows = args.row_gradients;
  kernels::round_values(context, {.x = rows.d_turned_back, .out = rows.d_projected});
  const auto through = [&](int64_t begin, const TensorView& in, const TensorView& weight,
                           const TensorView& d_weight) {
    const TensorView d_normed = with_columns(rows.d_normed, in.dim(1));
    const TensorView d_in = with_columns(rows.d_in, in.dim(1));
    take_columns(context, rows.d_turned_back, begin, d_normed);
    norm_backward(context, {.in = in,
                            .weight = weight,
                            .eps = args.shape.norm_eps,
                            .d_out = d_normed,
                            .sequence_starts = args.sequence_starts,
                            .d_in = d_in,
                            .d_weight = d_weight});
    put_columns(context, d_in, rows.d_projected, begin);
  };
  through(0, args.tape.q_in, args.norms.q_norm, args.gradients.q_norm);
  through(args.shape.q_width(), args.tape.k_in, args.norms.k_norm, args.gradients.k_norm);
}

// d_projected from d_out_rounded. Without norms on the way, attention turns and rounds by itself.
void project_backward(const Context& context, const Backward& args) {
  const RowGradients& rows = args.row_gradients;
  kernels::AttentionBackward attention{.q = args.tape.q,
                                       .kv = args.kv,
                                       .q_starts = args.document_starts,
                                       .page_table = args.page_table,
                                       .scale = args.shape.scale(),
                                       .out = args.tape.out,
                                       .log_sums = args.tape.log_sums,
                                       .d_out = rows.d_out_rounded,
                                       .d_qkv = rows.d_qkv,
                                       .cos = args.rope.cos,
                                       .sin = args.rope.sin,
                                       .rotation = args.shape.rotation,
                                       .position = args.position};
  if (!rows.d_turned_back) {
    attention.rounded = rows.d_projected;
    return kernels::attention_backward(context, attention);
  }
  kernels::attention_backward(context, attention);
  kernels::RopeBackward turn = kernels::rotation_back(attention);
  turn.out = rows.d_turned_back;
  kernels::rope_backward(context, turn);
  args.shape.latent ? latent_backward(context, args) : heads_norm_backward(context, args);
}

}  // namespace

kernels::BesideWork backward(const Context& context, const Backward& args) {
  const RowGradients& rows = args.row_gradients;
  kernels::matmul_forward(context, {.operand = args.shape.kv.dtype,
                                    .x = args.d_out,
                                    .weight = args.weights.out,
                                    .out = rows.d_out,
                                    .rounded = flat(rows.d_out_rounded)});
  kernels::wait_beside(context, args.before);  // reads d_projected
  project_backward(context, args);
  const kernels::BesideWork work = projection_gradients(context, args);
  kernels::matmul_forward(context, {.operand = args.shape.kv.dtype,
                                    .x = rows.d_projected,
                                    .weight = args.weights.qkv,
                                    .out = args.d_x});
  return work;
}

}  // namespace dsmoe::attention

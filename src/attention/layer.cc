// The steps of an attention part, in the order of the paper; below them the same in reverse.
#include "attention/layer.h"

#include "kernels/attention.h"
#include "kernels/few_tokens.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"

namespace dsmoe::attention {
namespace {

// [tokens, heads, width] as the rows of a product.
TensorView flat(TensorView heads) {
  heads.shape = {heads.dim(0), heads.dim(1) * heads.dim(2)};
  return heads;
}

// q, k, v = rope(W_qkv norm(u)): in one launch where there is such a kernel and no backward pass
// wants what lies between.
void project(const Context& context, const Forward& args) {
  if (!args.tape.log_sums && kernels::few_tokens_qkv(context, {.residual = args.residual,
                                                               .norm_weight = args.norm_weight,
                                                               .eps = args.eps,
                                                               .weight = args.weights.qkv,
                                                               .bias = args.weights.qkv_bias,
                                                               .cos = args.rope.cos,
                                                               .sin = args.rope.sin,
                                                               .position = args.position,
                                                               .kv_slot = args.kv_slot,
                                                               .q = args.tape.q,
                                                               .kv = args.kv,
                                                               .x = args.x})
                                 .ran()) {
    return;
  }
  kernels::rms_norm_forward(
      context, {.x = args.residual, .weight = args.norm_weight, .eps = args.eps, .out = args.x});
  if (kernels::qkv_forward(context, {.x = args.x,
                                     .weight = args.weights.qkv,
                                     .bias = args.weights.qkv_bias,
                                     .cos = args.rope.cos,
                                     .sin = args.rope.sin,
                                     .position = args.position,
                                     .kv_slot = args.kv_slot,
                                     .q = args.tape.q,
                                     .kv = args.kv})
          .ran()) {
    return;
  }
  kernels::matmul_forward(context, {.operand = args.shape.kv.dtype,
                                    .x = args.x,
                                    .weight = args.weights.qkv,
                                    .bias = args.weights.qkv_bias,
                                    .out = args.workspace.qkv});
  kernels::rope_forward(context, {.qkv = args.workspace.qkv,
                                  .cos = args.rope.cos,
                                  .sin = args.rope.sin,
                                  .position = args.position,
                                  .kv_slot = args.kv_slot,
                                  .q = args.tape.q,
                                  .kv = args.kv});
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
                                    .x = flat(args.tape.out),
                                    .weight = args.weights.out,
                                    .bias = args.weights.out_bias,
                                    .out = args.out ? args.out : args.residual,
                                    .store = kernels::Store::accumulate,
                                    .base = args.residual});
}

namespace {

// The gradients of y = x W^T + b of both projections, for whichever of W and b are wanted.
kernels::BesideWork projection_gradients(const Context& context, const Backward& args) {
  const RowGradients& rows = args.row_gradients;
  TensorView one_matrix = args.sequence_starts;  // all tokens, as the rows of a single matrix
  one_matrix.shape = {1, one_matrix.dim(0)};
  kernels::WeightGradient list[2];
  std::size_t count = 0;
  if (args.gradients.qkv) {
    list[count++] = {.dy = {rows.d_qkv_rounded},
                     .x = {args.x},
                     .sequence_offsets = one_matrix,
                     .d_weight = args.gradients.qkv,
                     .start = args.start};
  }
  if (args.gradients.out) {
    list[count++] = {.dy = {args.d_out},
                     .x = {flat(args.tape.out)},
                     .sequence_offsets = one_matrix,
                     .d_weight = args.gradients.out,
                     .start = args.start};
  }
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
  bias(rows.d_qkv_rounded, args.gradients.qkv_bias);
  bias(args.d_out, args.gradients.out_bias);
  return work;
}

}  // namespace

kernels::BesideWork backward(const Context& context, const Backward& args) {
  const RowGradients& rows = args.row_gradients;
  kernels::matmul_forward(context, {.operand = args.shape.kv.dtype,
                                    .x = args.d_out,
                                    .weight = args.weights.out,
                                    .out = rows.d_out,
                                    .rounded = flat(rows.d_out_rounded)});
  kernels::wait_beside(context, args.before);  // reads d_qkv_rounded
  kernels::attention_backward(context, {.q = args.tape.q,
                                        .kv = args.kv,
                                        .q_starts = args.document_starts,
                                        .page_table = args.page_table,
                                        .scale = args.shape.scale(),
                                        .out = args.tape.out,
                                        .log_sums = args.tape.log_sums,
                                        .d_out = rows.d_out_rounded,
                                        .d_qkv = rows.d_qkv,
                                        .rounded = rows.d_qkv_rounded,
                                        .cos = args.rope.cos,
                                        .sin = args.rope.sin,
                                        .position = args.position});
  const kernels::BesideWork work = projection_gradients(context, args);
  kernels::matmul_forward(context, {.operand = args.shape.kv.dtype,
                                    .x = rows.d_qkv_rounded,
                                    .weight = args.weights.qkv,
                                    .out = args.d_x});
  return work;
}

}  // namespace dsmoe::attention

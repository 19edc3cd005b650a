// Latent attention: c = norm(W_down x) holds keys and values of all heads; k_h = [W_uk,h c ;
// k_rope], v_h = W_uv,h c. Expanded, these are made; absorbed, q_h goes to the latent instead: q_h
// . W_uk,h c = (W_uk,h^T q_h) . c.
#include "attention/steps.h"
#include "kernels/rope.h"

namespace dsmoe::attention {
namespace {

// Queries of all heads: as x is multiplied to them, or from their latent.
kernels::Columns query_heads(const Context& context, const Forward& args) {
  const Latent& latent = args.shape.latent;
  if (latent.q_rank == 0) return {args.workspace.projected, 0, latent.key()};
  take_columns(context, args.workspace.projected, 0, args.tape.q_in);
  kernels::rms_norm_forward(context, {.x = args.tape.q_in,
                                      .weight = args.weights.q_norm,
                                      .eps = args.shape.norm_eps,
                                      .out = args.tape.q_latent});
  kernels::matmul_forward(context, {.operand = args.shape.kv.dtype,
                                    .x = args.tape.q_latent,
                                    .weight = args.weights.q_up,
                                    .out = args.workspace.q_heads});
  return {args.workspace.q_heads, 0, latent.key()};
}

kernels::Columns from_column(kernels::Columns columns, int64_t begin) {
  columns.begin += begin;
  return columns;
}

void expanded_rows(const Context& context, const Forward& args, const kernels::Columns& q) {
  const Latent& latent = args.shape.latent;
  const int64_t heads = args.shape.heads;
  const int64_t key = latent.key();
  const TensorView& row = args.workspace.qkv;
  kernels::rms_norm_forward(context, {.x = args.tape.k_in,
                                      .weight = args.weights.k_norm,
                                      .eps = args.shape.norm_eps,
                                      .out = args.tape.kv_latent});
  kernels::matmul_forward(context, {.operand = args.shape.kv.dtype,
                                    .x = args.tape.kv_latent,
                                    .weight = args.weights.kv_up,
                                    .out = args.workspace.kv_heads});
  const int64_t q_width = heads * key;
  const kernels::Columns kv{args.workspace.kv_heads, 0, latent.nope + latent.value};
  kernels::move_columns(context, {q, {row, 0, key}, heads, key});
  kernels::move_columns(context, {kv, {row, q_width, key}, heads, latent.nope});
  const kernels::Columns shared{args.workspace.projected, args.shape.q_part() + latent.kv_rank, 0};
  kernels::move_columns(context, {shared, {row, q_width + latent.nope, key}, heads, latent.rope});
  kernels::move_columns(
      context,
      {from_column(kv, latent.nope), {row, 2 * q_width, latent.value}, heads, latent.value});
}

void absorbed_rows(const Context& context, const Forward& args, const kernels::Columns& q) {
  const Latent& latent = args.shape.latent;
  const int64_t heads = args.shape.heads;
  const int64_t key = latent.kv_rank + latent.rope;
  const TensorView& row = args.workspace.qkv;
  kernels::rms_norm_forward(context, {.x = args.tape.k_in,
                                      .weight = args.weights.k_norm,
                                      .eps = args.shape.norm_eps,
                                      .out = args.workspace.normed});
  put_columns(context, args.workspace.normed, row, heads * key);
  const kernels::Columns shared{args.workspace.projected, args.shape.q_part() + latent.kv_rank};
  kernels::move_columns(context, {shared, {row, heads * key + latent.kv_rank}, 1, latent.rope});
  const TensorView q_nope = flat(args.workspace.q_nope);
  kernels::move_columns(context, {q, {q_nope, 0, latent.nope}, heads, latent.nope});
  kernels::head_products(context, {.x = args.workspace.q_nope,
                                   .weight = args.weights.key_up,
                                   .out = args.workspace.q_absorbed});
  const kernels::Columns absorbed{flat(args.workspace.q_absorbed), 0, latent.kv_rank};
  kernels::move_columns(context, {absorbed, {row, 0, key}, heads, latent.kv_rank});
  kernels::move_columns(
      context, {from_column(q, latent.nope), {row, latent.kv_rank, key}, heads, latent.rope});
}

}  // namespace

void latent_project(const Context& context, const Forward& args) {
  kernels::rms_norm_forward(
      context, {.x = args.residual, .weight = args.norm_weight, .eps = args.eps, .out = args.x});
  kernels::matmul_forward(context, {.operand = args.shape.kv.dtype,
                                    .x = args.x,
                                    .weight = args.weights.qkv,
                                    .out = args.workspace.projected});
  const kernels::Columns q = query_heads(context, args);
  take_columns(context, args.workspace.projected, args.shape.q_part(), args.tape.k_in);
  args.shape.latent.is_absorbed() ? absorbed_rows(context, args, q)
                                  : expanded_rows(context, args, q);
}

void latent_backward(const Context& context, const Backward& args) {
  const Latent& latent = args.shape.latent;
  const RowGradients& rows = args.row_gradients;
  const int64_t heads = args.shape.heads;
  const int64_t key = latent.key();
  const int64_t q_width = heads * key;
  const TensorView& from = rows.d_turned_back;
  const kernels::Columns d_kv{rows.d_kv_heads, 0, latent.nope + latent.value};
  kernels::move_columns(context, {{from, q_width, key}, d_kv, heads, latent.nope});
  kernels::move_columns(
      context,
      {{from, 2 * q_width, latent.value}, from_column(d_kv, latent.nope), heads, latent.value});
  kernels::move_columns(
      context, {{from, q_width + latent.nope, key}, {rows.d_shared_key}, heads, latent.rope});
  put_columns(context, rows.d_shared_key, rows.d_projected, args.shape.q_part() + latent.kv_rank);

  const auto through_norm = [&](const TensorView& d_heads, const WeightStack& up,
                                const TensorView& in, const TensorView& weight,
                                const TensorView& d_weight, int64_t begin) {
    const TensorView d_normed = with_columns(rows.d_normed, in.dim(1));
    const TensorView d_in = with_columns(rows.d_in, in.dim(1));
    kernels::matmul_forward(
        context, {.operand = args.shape.kv.dtype, .x = d_heads, .weight = up, .out = d_normed});
    norm_backward(context, {.in = in,
                            .weight = weight,
                            .eps = args.shape.norm_eps,
                            .d_out = d_normed,
                            .sequence_starts = args.sequence_starts,
                            .d_in = d_in,
                            .d_weight = d_weight});
    put_columns(context, d_in, rows.d_projected, begin);
  };
  through_norm(rows.d_kv_heads, args.weights.kv_up, args.tape.k_in, args.norms.k_norm,
               args.gradients.k_norm, args.shape.q_part());
  const TensorView& d_q = latent.q_rank > 0 ? rows.d_q_heads : rows.d_projected;
  kernels::move_columns(context, {{from}, {d_q}, 1, q_width});
  if (latent.q_rank == 0) return;
  through_norm(rows.d_q_heads, args.weights.q_up, args.tape.q_in, args.norms.q_norm,
               args.gradients.q_norm, 0);
}

}  // namespace dsmoe::attention

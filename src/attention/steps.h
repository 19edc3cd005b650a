// Steps that layers of every shape share.
#pragma once

#include "attention/layer.h"
#include "kernels/heads.h"
#include "kernels/memory.h"
#include "kernels/rms_norm.h"

namespace dsmoe::attention {

// [tokens, heads, width] as the rows of a product.
inline TensorView flat(TensorView heads) {
  heads.shape = {heads.dim(0), heads.dim(1) * heads.dim(2)};
  return heads;
}
// The same numbers as rows of so many columns.
inline TensorView as_rows(TensorView view, int64_t columns) {
  view.shape = {view.num_elements() / columns, columns};
  return view;
}

// Columns [begin, begin + width) of `from`, where `to` has nothing else.
inline void take_columns(const Context& context, const TensorView& from, int64_t begin,
                         const TensorView& to) {
  kernels::move_columns(context,
                        {.from = {from, begin}, .to = {to}, .width = to.dim(to.shape.rank() - 1)});
}
// All of `from` to columns of `to` from `begin` on.
inline void put_columns(const Context& context, const TensorView& from, const TensorView& to,
                        int64_t begin) {
  kernels::move_columns(context, {.from = {from}, .to = {to, begin}, .width = from.dim(1)});
}

// A norm on the way back: of rows of `weight` numbers, which may be heads.
struct NormBackward {
  TensorView in;      // what the norm read: [tokens, n] F32
  TensorView weight;  // divides n
  double eps = 1e-6;
  TensorView d_out;            // [tokens, n] F32
  TensorView sequence_starts;  // [sequences + 1] I32
  TensorView d_in;             // [tokens, n] F32, written
  TensorView d_weight;         // or absent
};
inline void norm_backward(const Context& context, const NormBackward& args) {
  const int64_t width = args.weight.dim(0);
  kernels::zero(context, args.d_in.data, args.d_in.num_bytes());
  kernels::rms_norm_backward(context, {.x = as_rows(args.in, width),
                                       .weight = args.weight,
                                       .eps = args.eps,
                                       .d_out = as_rows(args.d_out, width),
                                       .sequence_starts = args.sequence_starts,
                                       .rows_per_token = args.in.dim(1) / width,
                                       .d_x = as_rows(args.d_in, width),
                                       .d_weight = args.d_weight});
}

// A view cut to fewer columns per row, where the memory holds more.
inline TensorView with_columns(TensorView view, int64_t columns) {
  view.shape = {view.dim(0), columns};
  return view;
}

// q, k and v, turned, rounded and in their pages, from what x is multiplied to.
void latent_project(const Context& context, const Forward& args);

// d_projected, and the gradients of what lies between, from d_turned_back.
void latent_backward(const Context& context, const Backward& args);

}  // namespace dsmoe::attention

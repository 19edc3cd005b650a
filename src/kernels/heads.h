// Heads side by side in rows: moved between layouts, and multiplied by a matrix of their own each.
#pragma once

#include "kernels/context.h"
#include "kernels/layout.h"

namespace dsmoe::kernels {

// Groups of columns of equal width: group g begins at column begin + g * step.
struct Columns {
  TensorView rows;  // [tokens, all columns], F32, F64 or the operand type
  int64_t begin = 0;
  int64_t step = 0;
};

// to[g] = from[g], rounded to the type of `to`. With from.step 0 every group gets the same columns.
// With to.step 0 and several groups it gets their sum, groups ascending: the adjoint of that.
struct MoveColumns {
  Columns from;
  Columns to;
  int64_t groups = 1;
  int64_t width = 0;

  bool adds() const { return groups > 1 && to.step == 0; }
};
void move_columns(const Context& context, const MoveColumns& args);

// out[t, h] = W_h x[t, h], rounded.
struct HeadProducts {
  TensorView x;        // [tokens, heads, k], operand type
  WeightStack weight;  // heads x [n, k]
  TensorView out;      // [tokens, heads, n], operand type, written
};
void head_products(const Context& context, const HeadProducts& args);

}  // namespace dsmoe::kernels

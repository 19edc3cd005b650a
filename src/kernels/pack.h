// From a checkpoint's row-major tensor to the layout and type a backend computes with.
#pragma once

#include "kernels/context.h"
#include "kernels/layout.h"

namespace dsmoe::kernels {

enum class PackOrder : uint8_t { as_stored, transposed };

// Writes the source into matrix `matrix_idx`. as_stored: source [rows, k] becomes rows [row_begin,
// row_begin + rows) of W; several calls stack several sources into one matrix (q, k and v).
// transposed: source row r becomes column row_begin + r of W [k, n]. Types: F32, BF16, F16, F64 to
// BF16 (rounded), F32 or F64. Padding is left as it is: zero from the arena.
// Integers (I8, or U8 with two to the byte: tensor/quantised.h) come with their scales and go, as
// they are, to a target of the same coding, or as the numbers they stand for to a plain one. Scales
// are valid: the reader of the file has checked them.
struct PackWeight {
  TensorView source;  // [rows, columns], in host memory, perhaps unaligned
  TensorView scale;   // [rows, groups] BF16, beside integers only
  WeightStack target;
  int64_t matrix_idx = 0;
  int64_t row_begin = 0;
  PackOrder order = PackOrder::as_stored;
};
void pack_weight(const Context& context, const PackWeight& args);

// Element-wise conversion between any two of F64, F32, BF16, F16 (source only); same shape; host
// memory.
void convert_elements(const TensorView& source, const TensorView& target);

}  // namespace dsmoe::kernels

// The grouped bf16 product: out[row] = W[expert of row] x[token of row], for all experts of up to
// two families in one launch.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/context.h"
#include "kernels/cuda/rows/rope_store.h"
#include "kernels/layout.h"
#include "kernels/rows.h"

namespace dsmoe::kernels::cuda {

// What happens to the fp32 sums.
enum class Epilogue : uint8_t {
  swiglu,           // weight rows are gate and up interleaved: round(silu(gate) * up), bf16
  round,            // round(sum), bf16
  dense,            // sum (+ bias) stored or added to fp32
  swiglu_backward,  // the sum is the gradient of an activation before its gate: through SwiGLU
  rope,  // weight rows are the halves of heads interleaved: rotated, rounded, to q and KV
};

// What swiglu_backward reads and writes beside the sums, [rows, n] bf16 (fp32 in the portable
// kernel) unless said otherwise; in and out may be the same memory.
struct SwigluBackward {
  const float* gate_of_row;  // [rows], or null: 1, and no scaled activation, no partial sums
  const void* activation;
  const void* gate_product;
  const void* up_product;
  void* scaled_activation;
  void* d_gate_product;
  void* d_up_product;
  float* partial_sums;  // [ceil(n / 16), rows]: sum * activation, over 16 outputs each
};

// One stack of experts. Row r of expert e, offsets[e] <= r < offsets[e + 1].
struct ProductFamily {
  CUtensorMap weight;
  CUtensorMap x;              // rows as they lie, a few to a copy; unused when gathered
  CUtensorMap x_tile;         // the same, all rows of a tile to a copy
  CUtensorMap second_weight;  // round, transposed: the chain goes on with these and [rows, k]
  CUtensorMap second_x;
  CUtensorMap second_x_tile;
  CUtensorMap out_map;          // out in boxes of 32 x 32 (dense, stored) or 64 x 64 (round)
  const void* x_rows;           // [*, k] bf16, row-major
  const int32_t* offsets;       // [count + 1]; null: one expert with all `rows`
  const int32_t* token_of_row;  // null: row r of x
  void* out;                    // [rows, n] bf16, or fp32 for dense
  const float* base;            // dense, added: what to
  void* gate_out;               // swiglu: round(gate) and round(up), [rows, n] bf16, or null
  void* up_out;
  const float* bias;  // dense and rope, or null
  SwigluBackward swiglu;
  RopeStore rope;    // head_dim a multiple of 64
  int32_t segments;  // 2: with second_weight and second_x
  int32_t count;
  int32_t rows;
  int32_t n;             // outputs per row
  int32_t first_output;  // of the weights' rows
  int32_t k;
  int32_t in_blocks;  // transposed: the weights' map is [count, n / 64, k, 64], not [count, k, n]
  int32_t weight_tiles;
  int32_t rows_inside;  // consecutive tiles are of the same weights, not of the same rows
  int32_t up_first;     // swiglu: the up matrices lie below the gate matrices in memory, and come
                        // first in the interleaving
};

struct ProductParameters {
  ProductFamily family[2];
  int32_t num_families;
  int32_t accumulate;     // dense: add to out
  int32_t offsets_final;  // their writer had finished before the kernel ahead started
  int32_t* counters;      // two ints, zero before and after
};

// What a caller fills in; tensor maps, tiles and variant are chosen by launch_product.
struct ProductGroup {
  WeightStack weight;  // column-major: input gradients (round, dense, swiglu_backward)
  WeightStack second;  // swiglu: the up matrices beside the gate matrices; round, column-major: the
                       // chain goes on
  Rows x;
  TensorView second_x;  // round with second: [rows, k]; x is not gathered then
  TensorView offsets;
  TensorView bias;
  TensorView out;       // [rows, outputs]
  TensorView base;      // dense, optional: added to instead of out
  TensorView gate_out;  // swiglu, optional: the products before it
  TensorView up_out;
  SwigluBackward swiglu = {};
  RopeStore rope = {};
  int64_t first_output = 0;  // round: the weights' row that makes out's first column
};
struct Product {
  Epilogue epilogue = Epilogue::round;
  bool accumulate = false;
  int num_groups = 0;
  ProductGroup group[2] = {};
};

// True on 9.0 when the copy engine can read every operand: bf16, 16-byte aligned, n and k multiples
// of 8.
bool product_fits_hopper(const Context& context, const Product& product);
void launch_product(const Context& context, const Product& product);
// Whether the rope epilogue takes this product, which fits: many rows.
bool rope_fits(const Context& context, const Product& product);

// An up product and the down product of its results in one launch; false, having done nothing,
// where rows are too many for that.
bool launch_experts(const Context& context, const Product& up, const Product& down);

// One pass that lays out the rows of a gathered product in order.
struct GatherRows {
  Rows rows;               // [rows, k] bf16, k a multiple of 8, ascending within an expert
  TensorView offsets;      // [experts + 1] I32
  TensorView row_of_slot;  // [tokens, top_k] I32, or absent: the same from the tokens' side
  ColumnRange columns;     // of k
  TensorView out;          // [rows, columns] bf16
};
void gather_rows(const Context& context, const GatherRows& args);

// Any shape, any operand type; the same sums. Slow.
void launch_product_portable(const Context& context, const Product& product);

// Two ints, zero, for a kernel that hands out its tiles by a counter and leaves both at zero.
int32_t* next_counters(const Context& context);

struct VariantLaunch {
  int variant = 0;
  Epilogue epilogue = Epilogue::round;
  bool gathered = false;
  bool transposed = false;
};

// Tests: on this stream, forces a tile variant (0 .. num_product_variants() - 1), the portable
// kernel or, with kBySize, the choice by size.
constexpr int kPortableVariant = -2;
constexpr int kBySize = -1;
void force_product_variant(const Context& context, int variant);
int num_product_variants();

}  // namespace dsmoe::kernels::cuda

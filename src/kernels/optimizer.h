// AdamW and the norm of gradients.
#pragma once

#include "kernels/context.h"
#include "kernels/layout.h"

namespace dsmoe::kernels {

// sum of x^2 in double. x is cut into at most kMaxSquareParts parts of square_part_size elements,
// which depends on its size alone; a part is 16 lanes, its element i in lane i mod 16, joined
// 8-4-2-1; parts are added ascending.
constexpr int64_t kMaxSquareParts = 64;
constexpr int64_t square_part_size(int64_t size) {
  constexpr int64_t kSmallest = 1 << 14;  // below it a thread is not worth waking
  const int64_t part = round_up((size + kMaxSquareParts - 1) / kMaxSquareParts, 16);
  return part > kSmallest ? part : kSmallest;
}

struct SumOfSquares {
  TensorView x;    // any shape, F32 (F64)
  TensorView out;  // [1] F64, written
};
void sum_of_squares(const Context& context, const SumOfSquares& args);

// g = gradient * gradient_scale (the clip); m = fma(beta1, m, (1 - beta1) * g); v = fma(beta2, v,
// ((1 - beta2) * g) * g); w = w - lr * ((m / correction1) / (sqrt(v / correction2) + eps) +
// weight_decay * w), rounded as written.
struct AdamwStep {
  TensorView weight;         // F32 (F64), updated
  TensorView gradient;       // same shape
  TensorView first_moment;   // same shape, updated
  TensorView second_moment;  // same shape, updated
  float gradient_scale = 1;
  float lr = 0;
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float eps = 1e-8f;
  float weight_decay = 0;
  float correction1 = 1;  // 1 - beta1^step
  float correction2 = 1;  // 1 - beta2^step
  // On the CPU, in the same pass:
  bool clear_gradient = false;  // leaves the gradient zero
  TensorView rounded;           // BF16, or absent: what round_values makes of the new weight
};
void adamw_step(const Context& context, const AdamwStep& args);

// All tensors of a step in one launch each for the norm and for the update, on devices that have it
// (their table says so): master and moments are updated as adamw_step says, the gradient is left
// zero where that is asked for, and the rounded values go to their places in the model.
struct OptimizerPlace {
  void* data = nullptr;      // as many elements as the tensor, in the same order; null: no place
  DType dtype = DType::F32;  // BF16 or F32
};

// Plain data: an array of these lies in device memory. A matrix is [rows, columns], anything else
// [1, size].
struct OptimizerTensor {
  float* weight = nullptr;
  float* gradient = nullptr;
  float* second_gradient = nullptr;  // added to the first (a tied embedding's head), or null
  float* first_moment = nullptr;
  float* second_moment = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t first_tile = 0;  // of its kOptimizerTile-sided tiles in the list of all
  int64_t num_tiles = 0;
  float weight_decay = 0;
  DType stored = DType::F32;   // what values are rounded to before they are placed
  bool clear_gradient = true;  // the next gradient is added to it
  OptimizerPlace places[2];    // absent ones without data
};
constexpr int64_t kOptimizerTile = 64;

struct OptimizerStep {
  TensorView tensors;         // [count, sizeof(OptimizerTensor)] bytes, on the device
  TensorView tensor_of_tile;  // [tiles] I32
  TensorView square_sums;     // [count] F64, written by gradient_square_sums
  AdamwStep rule;             // its numbers alone; weight_decay is the tensors' own
};
void gradient_square_sums(const Context& context, const OptimizerStep& args);
void optimizer_step(const Context& context, const OptimizerStep& args);

}  // namespace dsmoe::kernels

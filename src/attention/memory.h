// The memory of an attention part's passes, in three types: what the forward pass leaves behind,
// what only a running pass needs, and the gradients on their way.
#pragma once

#include "attention/shape.h"
#include "attention/weights.h"
#include "kernels/passes.h"
#include "tensor/arena.h"

namespace dsmoe::attention {

// What the forward pass leaves for the backward pass, besides keys and values in their pages.
struct Tape {
  TensorView q;         // [tokens, heads, key_width], operand type
  TensorView out;       // [tokens, heads, value_width], operand type
  TensorView log_sums;  // [tokens, heads] F32; in training only
};

// What only a running pass needs.
struct Workspace {
  TensorView qkv;  // [tokens, q + k + v] F32
};

// The gradients between those of the part's output and of its input; absent without a backward
// pass.
struct RowGradients {
  TensorView d_out;          // [tokens, heads * value_width] F32
  TensorView d_out_rounded;  // [tokens, heads, value_width], operand type
  TensorView d_qkv;          // [tokens, q + k + v] F32
  TensorView d_qkv_rounded;  // [tokens, q + k + v], operand type
};

struct Memory {
  Tape tape;
  Workspace workspace;
  RowGradients gradients;
};

struct Size {
  Shape shape;
  int64_t max_tokens = 0;
  kernels::Passes passes = kernels::Passes::forward;
};

// `common`: a part of this size that runs before or after this one, whose workspace and gradients
// this one uses too.
Memory allocate_memory(const Size& size, tensor::Arena& arena, const Memory* common = nullptr);

// What a call on `tokens` tokens uses.
Memory used_part(const Memory& memory, int64_t tokens);

}  // namespace dsmoe::attention

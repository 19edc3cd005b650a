// The parameters of a layer, their transposes, and their gradients.
#pragma once

#include "kernels/layout.h"

namespace dsmoe::moe {

using kernels::DType;
using kernels::TensorView;
using kernels::WeightStack;

// SwiGLU experts of one shape: FFN(x) = down(silu(gate x) * up x).
struct ExpertWeights {
  WeightStack gate;  // count x [width, hidden]
  WeightStack up;    // count x [width, hidden]
  WeightStack down;  // count x [hidden, width]

  explicit operator bool() const { return static_cast<bool>(gate); }
};

// A dense feed-forward layer is a layer without routed experts: all of its width is shared.
struct LayerWeights {
  WeightStack centroids;      // one matrix [experts, hidden], e_i; absent in a dense layer
  TensorView selection_bias;  // [experts], or absent
  ExpertWeights routed;       // absent in a dense layer
  ExpertWeights shared;       // the Ks shared experts as one of width Ks * w; absent when Ks = 0
  WeightStack shared_gate;    // one matrix [1, hidden]: sigmoid(w . x) of what they add, or absent
};

// The same matrices transposed, for the products of the backward pass: copies, or the same memory
// where the table takes transposes.
struct LayerTransposed {
  WeightStack centroids;  // one matrix [hidden, experts]
  ExpertWeights routed;   // gate and up: count x [hidden, width]; down: count x [width, hidden]
  ExpertWeights shared;
  WeightStack shared_gate;  // one matrix [hidden, 1]
};

inline ExpertWeights transpose_of(const ExpertWeights& weights) {
  return {.gate = kernels::transpose_of(weights.gate),
          .up = kernels::transpose_of(weights.up),
          .down = kernels::transpose_of(weights.down)};
}

// F32 (F64), row-major. A stack may hold fewer matrices than there are experts: slot_of_expert says
// where each one is, -1 for those that are not trained. Absent tensors are not computed.
struct ExpertGradients {
  TensorView gate;            // [slots, width, hidden]
  TensorView up;              // [slots, width, hidden]
  TensorView down;            // [slots, hidden, width]
  TensorView slot_of_expert;  // [count] I32; absent: expert e in slot e
};

struct LayerGradients {
  TensorView centroids;  // [1, experts, hidden]
  ExpertGradients routed;
  ExpertGradients shared;
  TensorView shared_gate;  // [1, 1, hidden]
};

}  // namespace dsmoe::moe

// The DeepSeekMoE layer: h = u + sum_shared FFN(x) + sum_routed g FFN(x), x = RMSNorm(u), as in the
// paper, equations 3 to 11.
#pragma once

#include <cstdint>

#include "kernels/experts.h"
#include "kernels/plan.h"
#include "kernels/router.h"
#include "tensor/arena.h"

namespace dsmoe::moe {

using kernels::Context;
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
};

// What the forward pass leaves behind, for the backward pass and for whoever wants to look. Sized
// for `max_tokens`.
struct LayerState {
  TensorView affinity;   // s [tokens, experts]
  TensorView index;      // [tokens, top_k], by descending selection score, -1 absent
  TensorView gate;       // g [tokens, top_k]
  TensorView bad_token;  // [1]
  kernels::DispatchPlan plan;
  TensorView routed_activation;  // [tokens * top_k, width]
  TensorView routed_out;         // [tokens * top_k, hidden]
  TensorView shared_activation;  // [tokens, shared width]
  TensorView shared_out;         // [tokens, hidden]
};

struct LayerSize {
  int64_t max_tokens = 0;
  int64_t max_sequences = 0;
  int64_t hidden = 0;
  int64_t num_experts = 0;  // routed; 0: dense
  int64_t top_k = 0;
  int64_t routed_width = 0;
  int64_t shared_width = 0;  // 0: none
  DType operand = DType::F32;
};
LayerState allocate_state(const LayerSize& size, tensor::Arena& arena);

// The part of a state that a call on `tokens` tokens of `sequences` sequences uses.
LayerState used_part(const LayerState& state, int64_t tokens, int64_t sequences, int64_t top_k);

struct LayerForward {
  int layer_idx = 0;         // for messages
  kernels::RouterRule rule;  // top_k slots per token
  LayerWeights weights;
  LayerState state;             // the used part; written
  TensorView x;                 // [tokens, hidden], operand type: the normalised stream
  TensorView token_range;       // [2] I32 = {0, tokens}
  TensorView sequence_starts;   // [sequences + 1] I32
  TensorView experts_of_token;  // [tokens] I32, or absent: rule.top_k each
  TensorView replayed_index;    // [tokens, top_k] I32, or absent
  TensorView residual;          // [tokens, hidden] F32: u, becomes h
};

// Throws Error(input) naming layer and token when a score is not finite.
void layer_forward(const Context& context, const LayerForward& args);

}  // namespace dsmoe::moe

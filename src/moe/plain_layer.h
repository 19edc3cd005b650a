// A layer by itself over plain row-major arrays, for callers who own weights and tokens: PyTorch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/router_rule.h"
#include "moe/layer.h"
#include "moe/memory.h"
#include "tensor/arena.h"

namespace dsmoe::moe {

struct PlainSize {
  int64_t hidden = 0;
  int64_t num_experts = 0;
  int64_t routed_width = 0;
  int64_t shared_width = 0;  // 0: no shared experts
  DType operand = DType::F32;
  kernels::RouterRule rule;
};

// Row-major, operand type, in host memory.
struct PlainWeights {
  TensorView centroids;       // [experts, hidden]; absent: who calls chooses experts and gates
  TensorView selection_bias;  // [experts] F32 (F64), or absent
  TensorView gate_up;         // [experts, 2 width, hidden]: of each expert gate, then up
  TensorView down;            // [experts, hidden, width]
  TensorView shared_gate_up;  // [2 shared width, hidden], or absent with the next
  TensorView shared_down;     // [hidden, shared width]
};

// Tokens and their routing. Row-major, in host memory.
struct PlainTokens {
  TensorView x;      // [tokens, hidden], operand type
  TensorView index;  // [tokens, top_k] I32: written with centroids, else read
  TensorView gate;   // [tokens, top_k] F32 (F64): likewise
};

struct PlainBackward {
  PlainTokens tokens;  // index and gate are read
  TensorView d_out;    // [tokens, hidden], operand type
  TensorView d_x;      // [tokens, hidden] F32 (F64), written
  TensorView d_gate;   // [tokens, top_k] F32 (F64), written; without centroids only
  // Of the shapes of PlainWeights, F32 (F64), written; absent ones are not computed, gate_up and
  // down and the shared ones only together.
  PlainWeights weights;
};

// Memory of passes, grown to the largest call; layers of one size may share it, one at a time.
class PlainMemory {
 public:
  PlainMemory(const Context& context, const PlainSize& size);

  // Gradients of gate and up, apart as products write them; F32 (F64).
  struct Apart {
    TensorView gate, up;  // [experts, width, hidden]
  };
  struct Views {
    LayerMemory memory;
    TensorView range;      // [2] I32 = {0, tokens}
    TensorView residual;   // [tokens, hidden] F32 (F64)
    Apart routed, shared;  // for the backward pass only
  };
  Views of(int64_t tokens, Passes passes);

 private:
  const Context& context_;
  PlainSize size_;
  int64_t max_tokens_ = 0;
  Passes passes_ = Passes::forward;
  tensor::Arena arena_;
  Views views_;
};

// The weights, packed for the products. The forward pass has the bits of layer_forward, the
// backward pass runs it again, for all it needs but x, and has those of layer_backward.
class PlainLayer {
 public:
  // `context` must outlive it.
  PlainLayer(const Context& context, const PlainSize& size);

  // Copies; the transposes for the backward pass at its first call behind this one.
  void set_weights(const PlainWeights& weights);
  // What the copies take.
  std::size_t num_bytes() const;
  const PlainSize& size() const { return size_; }

  // out [tokens, hidden] F32 (F64), written. Throws Error(input) where a token's scores are not
  // finite.
  void forward(PlainMemory& memory, const PlainTokens& tokens, const TensorView& out) const;
  // `weights`: those that were set.
  void backward(PlainMemory& memory, const PlainWeights& weights, const PlainBackward& args);

 private:
  void run(const PlainMemory::Views& views, const PlainTokens& tokens, const TensorView& out) const;

  const Context& context_;
  PlainSize size_;
  tensor::Arena arena_, transposed_arena_;
  LayerWeights weights_;
  LayerTransposed transposed_;  // empty: not made yet
};

}  // namespace dsmoe::moe

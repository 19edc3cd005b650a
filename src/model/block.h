// One block: u += attention(norm(u)); u += ffn(norm(u)). Forward, and the same in reverse.
#pragma once

#include "attention/layer.h"
#include "model/batch.h"
#include "model/config.h"
#include "model/parameters.h"
#include "moe/layer.h"

namespace dsmoe::model {

// What a block's forward pass leaves behind between its parts. Inference shares one between all
// blocks; training keeps one per block, or one in all and runs blocks again.
struct BlockTape {
  TensorView attention_input;   // u [tokens, hidden] F32; in training only, and then the stream
  TensorView attention_normed;  // [tokens, hidden], operand type
  TensorView ffn_input;         // u [tokens, hidden] F32; in training only, likewise
  TensorView ffn_normed;        // [tokens, hidden], operand type
};

// Gradients of the stream on their way between the parts; absent without a backward pass.
struct BlockRowGradients {
  TensorView d_after_ffn;        // [tokens, hidden], operand type: the stream's gradient, rounded
  TensorView d_after_attention;  // [tokens, hidden], operand type: the same where attention ends
  TensorView d_normed;           // [tokens, hidden] F32: of what a part behind a norm reads
};

struct BlockMemory {
  BlockTape tape;
  BlockRowGradients gradients;
  attention::Memory attention;
  moe::LayerMemory ffn;
};

struct BlockSize {
  int64_t max_tokens = 0;
  int64_t max_sequences = 0;
  int64_t top_k = 0;
  DType operand = DType::F32;
  moe::Passes passes = moe::Passes::forward;
  int64_t parts = 1;  // of the experts' outputs (moe::LayerSize)
  moe::GradientWork work = moe::GradientWork::in_turn;
  attention::LatentForm form = attention::LatentForm::expanded;
  int64_t rank = 0;  // of those that share the routed experts
  int64_t ranks = 1;
};

moe::LayerSize layer_size(const ModelConfig& config, bool is_moe, const BlockSize& size);

// Everything but the layer's. `common`: a block that runs before or after this one, with which it
// has in common what they need only while they run.
BlockMemory allocate_block_memory(const ModelConfig& config, const BlockSize& size,
                                  tensor::Arena& arena, const BlockMemory* common = nullptr);
BlockMemory used_part(const BlockMemory& memory, int64_t tokens, int64_t sequences, int64_t top_k);

// The router's rule that a config describes, for `top_k` experts per token.
kernels::RouterRule router_rule(const ModelConfig& config, int64_t top_k);

// What the paper's specialisation tests take away from a model; the default takes nothing.
enum class SharedExperts : uint8_t { used, left_out };
struct Ablation {
  int64_t skip_best = 0;  // routed experts of highest score that every token must do without
  SharedExperts shared = SharedExperts::used;
  friend bool operator==(const Ablation&, const Ablation&) = default;
};

struct BlockForward {
  const ModelConfig& config;
  DType operand = DType::F32;  // the compute type
  attention::LatentForm form = attention::LatentForm::expanded;
  int64_t top_k = 0;
  Ablation ablation;
  const BlockWeights& weights;
  const attention::RopeTable& rope;
  kernels::KvPages kv;
  const BatchViews& batch;
  const BlockMemory& memory;  // the used part; written
  TensorView replayed_index;  // [tokens, top_k] I32, or absent (kernels/router.h)
  TensorView u;               // [tokens, hidden] F32: the residual stream
  TensorView out;             // [tokens, hidden] F32: where it goes on; absent: in u. With a tape
                              // for the backward pass u stays, and between attention and layer the
                              // stream is the tape's ffn_input
  int64_t sequences_per_unit = 1;  // that stay together on one rank (moe/exchange.h)
};
void block_forward(const Context& context, const BlockForward& args);

// Gradients of the parameters, F32 (F64), accumulated; absent ones are not computed.
struct BlockGradients {
  TensorView attention_norm;  // [hidden]
  attention::Gradients attention;
  TensorView ffn_norm;  // [hidden]
  moe::LayerGradients ffn;
};

// Weight gradients beside what follows, which may be unfinished.
struct BlockWork {
  moe::LayerWork ffn;
  kernels::BesideWork attention;
};
void wait_for(const Context& context, const BlockWork& work);

struct BlockBackward {
  const ModelConfig& config;
  DType operand = DType::F32;
  int64_t top_k = 0;
  const BlockWeights& weights;
  const BlockTransposed& transposed;
  const attention::RopeTable& rope;
  kernels::KvPages kv;
  const BatchViews& batch;
  const BlockMemory& memory;
  const BlockGradients& gradients;
  std::span<const moe::ExpertGradients> routed_of_unit;                // moe/layer.h
  kernels::GradientStart start = kernels::GradientStart::from_buffer;  // of weight matrices
  moe::BalanceRule balance;
  moe::BalanceLosses losses;
  TensorView d_u;  // [tokens, hidden] F32: the residual stream's gradient, updated;
                   // memory.gradients.d_after_ffn holds it rounded, before and after
  moe::GradientWork work = moe::GradientWork::in_turn;  // not beside where the tape is used again
  BlockWork before;                                     // of the block that ran before
};
BlockWork block_backward(const Context& context, const BlockBackward& args);

}  // namespace dsmoe::model

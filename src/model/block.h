// One block: u += attention(norm(u)); u += ffn(norm(u)). Forward, and the same in reverse.
#pragma once

#include "model/config.h"
#include "model/parameters.h"
#include "model/rope_table.h"
#include "moe/layer.h"

namespace dsmoe::model {

// What the ops need to know about one batch, on the device. Sequences are the units of routing and
// of gradient sums (packed rows in training), documents those of attention; in inference they are
// the same.
struct BatchViews {
  TensorView tokens;            // [tokens] I32
  TensorView position;          // [tokens] I32, from the start of the document
  TensorView kv_slot;           // [tokens] I32
  TensorView experts_of_token;  // [tokens] I32, or absent
  TensorView is_counted;        // [tokens] I32, in training only: the token's target counts
  TensorView sequence_starts;   // [sequences + 1] I32
  TensorView document_starts;   // [documents + 1] I32
  TensorView page_table;        // [documents, max_pages] I32
  TensorView token_range;       // [2] I32
};

// Everything the forward pass of one block leaves behind. Inference shares one tape between all
// blocks; training keeps one per block, or one in all and runs blocks again.
struct BlockTape {
  TensorView attention_input;   // u [tokens, hidden] F32; in training only, and then the stream
  TensorView attention_normed;  // [tokens, hidden], operand type
  TensorView qkv;               // [tokens, q + 2 kv] F32
  TensorView q;                 // [tokens, heads, head_dim], operand type
  TensorView attention_out;     // [tokens, heads, head_dim], operand type
  TensorView log_sums;          // [tokens, heads] F32; in training only
  TensorView ffn_input;         // u [tokens, hidden] F32; likewise
  TensorView ffn_normed;        // [tokens, hidden], operand type
  moe::LayerState ffn;
};

struct TapeSize {
  int64_t max_tokens = 0;
  int64_t max_sequences = 0;
  int64_t top_k = 0;
  DType operand = DType::F32;
  moe::Passes passes = moe::Passes::forward;
  int64_t parts = 1;  // of the experts' outputs (moe::LayerSize)
  moe::GradientWork work = moe::GradientWork::in_turn;
};

moe::LayerSize layer_size(const ModelConfig& config, bool is_moe, const TapeSize& size);

// Everything but the ffn state. `lender`: a tape whose qkv this one shall use too: nobody needs it
// after the block's forward pass.
BlockTape allocate_attention_tape(const ModelConfig& config, const TapeSize& size,
                                  tensor::Arena& arena, const BlockTape* lender = nullptr);
BlockTape used_part(const BlockTape& tape, int64_t tokens, int64_t sequences, int64_t top_k);

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
  int64_t top_k = 0;
  Ablation ablation;
  const BlockWeights& weights;
  const RopeTable& rope;
  kernels::KvPages kv;
  const BatchViews& batch;
  const BlockTape& tape;      // the used part; written
  TensorView replayed_index;  // [tokens, top_k] I32, or absent (kernels/router.h)
  TensorView u;               // [tokens, hidden] F32: the residual stream
  TensorView out;             // [tokens, hidden] F32: where it goes on; absent: in u. With a tape
                              // for the backward pass u stays, and between attention and layer the
                              // stream is the tape's ffn_input
};
void block_forward(const Context& context, const BlockForward& args);

// Gradients of the parameters, F32 (F64), accumulated; absent ones are not computed.
struct BlockGradients {
  TensorView attention_norm;  // [hidden]
  TensorView qkv;             // [1, q + 2 kv, hidden]
  TensorView qkv_bias;        // [q + 2 kv]
  TensorView out;             // [1, hidden, q]
  TensorView out_bias;        // [hidden]
  TensorView ffn_norm;        // [hidden]
  moe::LayerGradients ffn;
};

// Working memory of the backward pass, shared by all blocks.
struct BackwardTape {
  TensorView d_ffn_out;        // [tokens, hidden], operand type: the stream's gradient, rounded
  TensorView d_out;            // [tokens, hidden], operand type: the same where attention ends
  TensorView d_x;              // [tokens, hidden] F32
  TensorView d_attention;      // [tokens, q] F32
  TensorView d_attention_out;  // [tokens, heads, head_dim], operand type
  TensorView d_qkv;            // [tokens, q + 2 kv] F32
  TensorView d_qkv_rounded;    // [tokens, q + 2 kv], operand type
  moe::BackwardState moe;
  moe::BackwardState dense;
};
BackwardTape allocate_backward_tape(const ModelConfig& config, const TapeSize& size,
                                    tensor::Arena& arena);
BackwardTape used_part(const BackwardTape& tape, int64_t tokens, int64_t top_k);

struct BlockBackward {
  const ModelConfig& config;
  int64_t layer = 0;
  int64_t top_k = 0;
  const BlockWeights& weights;
  const BlockTransposed& transposed;
  const RopeTable& rope;
  kernels::KvPages kv;
  const BatchViews& batch;
  const BlockTape& tape;
  const BackwardTape& scratch;
  const BlockGradients& gradients;
  kernels::GradientStart start = kernels::GradientStart::from_buffer;  // of weight matrices
  moe::BalanceRule balance;
  moe::BalanceLosses losses;
  TensorView d_u;  // [tokens, hidden] F32: the residual stream's gradient, updated;
                   // scratch.d_ffn_out holds it rounded, before and after
  // Beside: in three pieces, of which the last may be unfinished at the end; not where the tape is
  // used again.
  moe::GradientWork work = moe::GradientWork::in_turn;
};
void block_backward(const Context& context, const BlockBackward& args);

}  // namespace dsmoe::model

// The language model: embedding, blocks of attention and MoE layer, final norm, head. One forward
// pass for prefill, chunked prefill, decoding and training.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "attention/kv_cache.h"
#include "base/function_ref.h"
#include "kernels/recording.h"
#include "model/block.h"
#include "model/parameters.h"
#include "model/rope_table.h"
#include "model/router_flags.h"

namespace dsmoe::model {

// Weights and tables; unchanging once made, shared by any number of forward passes.
struct Model {
  ModelConfig config;
  DType operand = DType::F32;                                    // the compute type
  int64_t context = 0;                                           // positions the rope table covers
  attention::LatentForm form = attention::LatentForm::absorbed;  // by what it was made for
  Share share;  // the experts that are here; all, unless ranks share them
  tensor::Arena weights{"weights"};
  tensor::Arena tables{"tables"};
  ParameterSet parameters;
  attention::RopeTable rope;

  attention::KvLayers kv_layers() const {
    return {.shape = config.attention_shape(operand, form).kv, .count = config.num_hidden_layers};
  }
};

// Throws Error(usage) where the model has fewer positions and no rope_scaling.
void check_context(const ModelConfig& config, int64_t context);

struct ModelOptions {
  DType operand = DType::F32;
  int64_t context = 0;  // 0: max_position_embeddings; more is refused unless rope_scaling is set
  moe::Passes passes = moe::Passes::forward;
  int64_t rank = 0;  // of those that share the routed experts
  int64_t ranks = 1;
};
std::unique_ptr<Model> make_model(const Context& context, const ModelConfig& config,
                                  ParameterSource& source, const ModelOptions& options);

// The same from weights that were packed before: `packed` holds what `weights.blocks()` of a model
// of the same configuration, options and kernel layout held. Throws Error(input) when it cannot.
std::unique_ptr<Model> make_packed_model(const Context& context, const ModelConfig& config,
                                         tensor::Arena::Filled packed, const ModelOptions& options);

// `num_tokens` new tokens at the end of one sequence.
struct Segment {
  attention::KvSequence* sequence = nullptr;
  int64_t num_tokens = 0;
};

// Called after each block: the layer's routing (its views are empty in a dense layer) and the
// residual stream.
using BlockObserver =
    FunctionRef<void(int64_t layer, const moe::LayerTape& tape, const TensorView& residual)>;

struct ForwardInput {
  std::span<const int32_t> tokens;  // of all segments, one after the other
  std::span<const Segment> segments;
  int64_t top_k = 0;                          // experts per token; 0: the model's
  std::span<const int32_t> experts_of_token;  // per token, each at most top_k; empty: top_k for all
  // [MoE layers, tokens, top_k]: experts to take, as in kernels/router.h; empty: all choose. Only
  // when the pass keeps routing.
  std::span<const int32_t> replayed_index;
  Ablation ablation;
  BlockObserver* observer = nullptr;
};

enum class KeepRouting : uint8_t { no, yes };

// The working memory of forward passes over at most `max_tokens` tokens of at most `max_sequences`
// sequences.
class ForwardPass {
 public:
  struct Limits {
    int64_t max_tokens = 0;
    int64_t max_sequences = 0;
    int64_t max_top_k = 0;  // 0: the model's
    KeepRouting keep_routing = KeepRouting::no;
  };
  ForwardPass(const Context& context, const Model& model, attention::KvCache& cache,
              const Limits& limits);

  // Appends the tokens to their sequences. Returns the normalised final hidden states [tokens,
  // hidden], valid until the next call; whether they can be used, read() says. On an error the
  // sequences are as before, unless it is one of the run before. A pass that gives every sequence
  // one token, without an observer, is recorded where the device can record, once per number of
  // sequences, and replayed from then on: the same ops, the same bits.
  TensorView run(const ForwardInput& input);

  // Brings what follows from the last run to the host; the ids and routing().index in one download.
  // Throws BadScores, an Error(input) that names layer and token, when a router's scores were not
  // finite: the token as its position in its sequence. The next run() asks where nobody did. An
  // observer may ask for the layers so far.
  void read(const TensorView& source, void* host);
  // The last run counts for nothing: what its routers met concerns nobody.
  void forget();

  // [2, max_sequences] I32, for ids that are chosen after a run, without KeepRouting::yes.
  TensorView ids() const;

  // logits[r] = head . hidden[r]; any rows of what run() returned.
  void logits(const TensorView& hidden, const TensorView& out) const;
  // The same, and the id of the largest logit of each row (kernels/log_prob.h, ArgmaxForward).
  void most_likely(const TensorView& hidden, const TensorView& logits,
                   const TensorView& index) const;

  // What the last run() chose, with KeepRouting::yes, for read(). An observer that reads costs
  // waits for each layer.
  struct Routing {
    TensorView index;  // [MoE layers, tokens, top_k] I32
    TensorView gate;   // [MoE layers, tokens, top_k] F32 (F64)
  };
  const Routing& routing() const { return routing_; }

  const tensor::Arena& arena() const { return arena_; }
  const Limits& limits() const { return limits_; }

 private:
  void check(const ForwardInput& input) const;
  BatchViews upload_batch(const ForwardInput& input);
  int64_t top_k_of(const ForwardInput& input) const {
    return input.top_k > 0 ? input.top_k : limits_.max_top_k;
  }
  void lay_out_routing(const ForwardInput& input);
  void run_ops(const ForwardInput& input, const BatchViews& batch);
  void run_blocks(const ForwardInput& input, const BatchViews& batch);

  Context context_;
  const Model& model_;
  attention::KvCache& cache_;
  Limits limits_;
  tensor::Arena arena_;
  TensorView residual_;  // [max_tokens, hidden]
  BlockMemory memory_;   // shared by all blocks; its layer's is one of the next two
  moe::LayerMemory moe_memory_;
  moe::LayerMemory dense_memory_;
  TensorView final_normed_;  // [max_tokens, hidden], where the blocks' normed streams were
  RouterFlags flags_;
  bool is_unread_ = false;  // nobody has looked at the flags of the last run
  // Per segment of the last run: its first row, and that row's position in its sequence.
  std::vector<std::pair<int64_t, int64_t>> places_;
  TensorView kept_index_, kept_gate_, replayed_;  // [MoE layers, max_tokens, max_top_k], or absent
  Routing routing_;                               // of the last run: the first part of what is kept
  TensorView replay_;                             // likewise of replayed_, or absent
  BatchBuffer batch_;
  std::vector<BatchBuffer::Document> documents_;  // of the last run, on their way to batch_
  // By sequences, top_k and whether tokens have expert counts of their own: what the addresses and
  // sizes of a one-token pass follow from.
  std::map<std::tuple<int64_t, int64_t, bool>, kernels::Recording> recordings_;
};

}  // namespace dsmoe::model

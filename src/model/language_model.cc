// The forward pass. run_blocks() is the model; everything else prepares its inputs.
#include "model/language_model.h"

#include <cmath>
#include <vector>

#include "kernels/attention.h"
#include "kernels/checks.h"
#include "kernels/embedding.h"
#include "kernels/matmul.h"
#include "kernels/memory.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"

namespace dsmoe::model {

std::unique_ptr<Model> make_model(const Context& context, const ModelConfig& config,
                                  TensorSource& source, const ModelOptions& options) {
  auto model = std::make_unique<Model>();
  model->config = config;
  model->operand = options.operand;
  model->context = options.context > 0 ? options.context : config.max_position_embeddings;
  if (model->context > config.max_position_embeddings && config.rope_kind == RopeKind::plain) {
    fail(ErrorKind::usage,
         "a context of {} positions was asked for, the model has max_position_embeddings {}; a "
         "longer context needs "
         "rope_scaling in config.json",
         model->context, config.max_position_embeddings);
  }
  model->weights = tensor::Arena("weights", context.table->allocator);
  model->parameters = load_parameters(context, config, options.operand, source, model->weights);

  tensor::Arena host("rope");
  const RopeTable table = make_rope_table(config, model->context, host);
  const auto to_device = [&](const TensorView& values) {
    const TensorView target = model->weights.tensor("rope", values.dtype, values.shape);
    kernels::upload(context, values.data, target);
    return target;
  };
  model->rope = {.cos = to_device(table.cos), .sin = to_device(table.sin)};
  return model;
}

kernels::RouterRule router_rule(const ModelConfig& config, int64_t top_k) {
  const bool v3 = config.topk_method == TopkMethod::noaux_tc;
  const bool grouped = config.topk_method != TopkMethod::greedy;
  return {.score = config.scoring_func == ScoringFunc::sigmoid ? kernels::ScoreFunction::sigmoid
                                                               : kernels::ScoreFunction::softmax,
          .top_k = static_cast<int>(top_k),
          .num_groups = grouped ? static_cast<int>(config.n_group) : 1,
          .top_groups = grouped ? static_cast<int>(config.topk_group) : 1,
          .group_score = v3 ? kernels::GroupScore::sum_of_best_two : kernels::GroupScore::max,
          .normalise = config.norm_topk_prob,
          .scale = static_cast<float>(config.routed_scaling_factor),
          .scale_gates = v3 ? kernels::ScaleGates::always : kernels::ScaleGates::unless_normalised};
}

ForwardPass::ForwardPass(const Context& context, const Model& model, KvCache& cache,
                         const Limits& limits)
    : context_(context),
      model_(model),
      cache_(cache),
      limits_(limits),
      arena_("workspace", context.table->allocator) {
  const ModelConfig& config = model.config;
  const DType scalar = kernels::scalar_type(model.operand);
  const int64_t tokens = limits.max_tokens;
  const int64_t heads = config.num_attention_heads;
  if (limits_.max_top_k == 0) limits_.max_top_k = config.num_experts_per_tok;
  residual_ = arena_.tensor("residual stream", scalar, {tokens, config.hidden_size});
  normed_ = arena_.tensor("normed", model.operand, {tokens, config.hidden_size});
  qkv_ = arena_.tensor("attention", scalar, {tokens, config.q_width() + 2 * config.kv_width()});
  q_ = arena_.tensor("attention", model.operand, {tokens, heads, config.head_dim});
  attention_out_ = arena_.tensor("attention", model.operand, {tokens, heads, config.head_dim});

  const int64_t num_moe_layers = config.num_moe_layers();
  moe::LayerSize size{.max_tokens = tokens,
                      .max_sequences = limits.max_sequences,
                      .hidden = config.hidden_size,
                      .operand = model.operand};
  if (num_moe_layers < config.num_hidden_layers) {
    size.shared_width = config.intermediate_size;
    dense_state_ = moe::allocate_state(size, arena_);
  }
  if (num_moe_layers > 0) {
    size.num_experts = config.n_routed_experts;
    size.top_k = limits_.max_top_k;
    size.routed_width = config.moe_intermediate_size;
    size.shared_width = config.shared_width();
    moe_state_ = moe::allocate_state(size, arena_);
  }

  const int64_t max_pages = KvCache::pages_for(model.context);
  batch_ = {.tokens = arena_.tensor("batch", DType::I32, {tokens}),
            .position = arena_.tensor("batch", DType::I32, {tokens}),
            .kv_slot = arena_.tensor("batch", DType::I32, {tokens}),
            .experts_of_token = arena_.tensor("batch", DType::I32, {tokens}),
            .sequence_starts = arena_.tensor("batch", DType::I32, {limits.max_sequences + 1}),
            .page_table = arena_.tensor("batch", DType::I32, {limits.max_sequences, max_pages}),
            .token_range = arena_.tensor("batch", DType::I32, {2})};
}

void ForwardPass::check(const ForwardInput& input) const {
  const auto num_tokens = static_cast<int64_t>(input.tokens.size());
  DSMOE_CHECK(0 < num_tokens && num_tokens <= limits_.max_tokens,
              "{} tokens, the pass was made for {}", num_tokens, limits_.max_tokens);
  DSMOE_CHECK(static_cast<int64_t>(input.segments.size()) <= limits_.max_sequences,
              "{} sequences, the pass was made for {}", input.segments.size(),
              limits_.max_sequences);
  int64_t sum = 0;
  for (const Segment& segment : input.segments) {
    sum += segment.num_tokens;
    if (segment.sequence->length + segment.num_tokens > model_.context) {
      fail(ErrorKind::input, "{} tokens do not fit into the context of {}",
           segment.sequence->length + segment.num_tokens, model_.context);
    }
  }
  DSMOE_CHECK(sum == num_tokens, "segments hold {} tokens, {} were given", sum, num_tokens);
  for (const int32_t token : input.tokens) {
    if (token < 0 || token >= model_.config.vocab_size) {
      fail(ErrorKind::input, "token id {} is outside the vocabulary of {}", token,
           model_.config.vocab_size);
    }
  }
  if (input.top_k < 0 || input.top_k > limits_.max_top_k) {
    fail(ErrorKind::input, "{} experts per token were asked for; 1 to {} are possible here",
         input.top_k, limits_.max_top_k);
  }
  DSMOE_CHECK(input.experts_of_token.empty() ||
                  static_cast<int64_t>(input.experts_of_token.size()) == num_tokens,
              "{} expert counts for {} tokens", input.experts_of_token.size(), num_tokens);
  const int64_t top_k = input.top_k > 0 ? input.top_k : limits_.max_top_k;
  for (const int32_t count : input.experts_of_token) {
    if (count < 0 || count > top_k) {
      fail(ErrorKind::input, "{} experts were asked for one token; 0 to {} are possible here",
           count, top_k);
    }
  }
}

ForwardPass::BatchViews ForwardPass::upload_batch(const ForwardInput& input) {
  const auto num_tokens = static_cast<int64_t>(input.tokens.size());
  const auto num_sequences = static_cast<int64_t>(input.segments.size());
  const int64_t max_pages = batch_.page_table.dim(1);
  std::vector<int32_t> position, kv_slot, starts{0};
  std::vector<int32_t> page_table(num_sequences * max_pages, 0);
  for (int64_t s = 0; s < num_sequences; ++s) {
    const KvSequence& sequence = *input.segments[s].sequence;
    for (int64_t i = 0; i < input.segments[s].num_tokens; ++i) {
      const int64_t place = sequence.length + i;
      position.push_back(static_cast<int32_t>(place));
      kv_slot.push_back(
          static_cast<int32_t>(sequence.pages[place / kernels::kKeyBlock] * kernels::kKeyBlock +
                               place % kernels::kKeyBlock));
    }
    starts.push_back(static_cast<int32_t>(position.size()));
    std::copy(sequence.pages.begin(), sequence.pages.end(), page_table.begin() + s * max_pages);
  }
  const auto put = [&](TensorView view, std::span<const int32_t> values,
                       const kernels::Shape& shape) {
    view.shape = shape;
    kernels::upload(context_, values.data(), view);
    return view;
  };
  const int32_t range[2] = {0, static_cast<int32_t>(num_tokens)};
  BatchViews views;
  views.tokens = put(batch_.tokens, input.tokens, {num_tokens});
  views.position = put(batch_.position, position, {num_tokens});
  views.kv_slot = put(batch_.kv_slot, kv_slot, {num_tokens});
  views.sequence_starts = put(batch_.sequence_starts, starts, {num_sequences + 1});
  views.page_table = put(batch_.page_table, page_table, {num_sequences, max_pages});
  views.token_range = put(batch_.token_range, range, {2});
  if (!input.experts_of_token.empty()) {
    views.experts_of_token = put(batch_.experts_of_token, input.experts_of_token, {num_tokens});
  }
  return views;
}

TensorView ForwardPass::run(const ForwardInput& input) {
  check(input);
  const auto restore = [&](std::size_t num_segments) {
    for (std::size_t s = 0; s < num_segments; ++s) {
      KvSequence& sequence = *input.segments[s].sequence;
      cache_.truncate(sequence, sequence.length);
    }
  };
  try {
    for (const Segment& segment : input.segments) {
      cache_.reserve(*segment.sequence, segment.sequence->length + segment.num_tokens);
    }
    run_blocks(input, upload_batch(input));
  } catch (...) {
    restore(input.segments.size());
    throw;
  }
  for (const Segment& segment : input.segments) segment.sequence->length += segment.num_tokens;
  return normed_.rows(0, static_cast<int64_t>(input.tokens.size()));
}

void ForwardPass::run_blocks(const ForwardInput& input, const BatchViews& batch) {
  const auto tokens = static_cast<int64_t>(input.tokens.size());
  const Parameters& parameters = model_.parameters;
  const TensorView u = residual_.rows(0, tokens);
  const TensorView x = normed_.rows(0, tokens);
  const double eps = model_.config.rms_norm_eps;
  const int64_t top_k = input.top_k > 0 ? input.top_k : limits_.max_top_k;

  kernels::embedding_forward(context_,
                             {.ids = batch.tokens, .table = parameters.embedding, .out = u});
  for (int64_t layer = 0; layer < model_.config.num_hidden_layers; ++layer) {
    const BlockWeights& block = parameters.blocks[layer];
    kernels::rms_norm_forward(context_,
                              {.x = u, .weight = block.attention_norm, .eps = eps, .out = x});
    attention(block, layer, batch, tokens);
    kernels::rms_norm_forward(context_, {.x = u, .weight = block.ffn_norm, .eps = eps, .out = x});
    const bool is_moe = model_.config.is_moe_layer(layer);
    const moe::LayerState state =
        moe::used_part(is_moe ? moe_state_ : dense_state_, tokens,
                       static_cast<int64_t>(input.segments.size()), top_k);
    moe::layer_forward(context_, {.layer_idx = static_cast<int>(layer),
                                  .rule = router_rule(model_.config, top_k),
                                  .weights = block.ffn,
                                  .state = state,
                                  .x = x,
                                  .token_range = batch.token_range,
                                  .sequence_starts = batch.sequence_starts,
                                  .experts_of_token = batch.experts_of_token,
                                  .residual = u});
    if (input.observer != nullptr) (*input.observer)(layer, state, u);
  }
  kernels::rms_norm_forward(context_,
                            {.x = u, .weight = parameters.final_norm, .eps = eps, .out = x});
}

// u = u + W_o attention(rope(W_qkv x)).
void ForwardPass::attention(const BlockWeights& block, int64_t layer, const BatchViews& batch,
                            int64_t tokens) {
  const AttentionWeights& weights = block.attention;
  const TensorView qkv = qkv_.rows(0, tokens);
  const TensorView q = q_.rows(0, tokens);
  TensorView out = attention_out_.rows(0, tokens);
  const auto scale =
      static_cast<float>(1.0 / std::sqrt(static_cast<double>(model_.config.head_dim)));
  kernels::matmul_forward(
      context_,
      {.x = normed_.rows(0, tokens), .weight = weights.qkv, .bias = weights.qkv_bias, .out = qkv});
  kernels::rope_forward(context_, {.qkv = qkv,
                                   .cos = model_.rope.cos,
                                   .sin = model_.rope.sin,
                                   .position = batch.position,
                                   .kv_slot = batch.kv_slot,
                                   .q = q,
                                   .kv = cache_.layer(layer)});
  kernels::attention_forward(context_, {.q = q,
                                        .kv = cache_.layer(layer),
                                        .q_starts = batch.sequence_starts,
                                        .position = batch.position,
                                        .page_table = batch.page_table,
                                        .scale = scale,
                                        .out = out});
  out.shape = {tokens, model_.config.q_width()};
  kernels::matmul_forward(context_, {.x = out,
                                     .weight = weights.out,
                                     .bias = weights.out_bias,
                                     .out = residual_.rows(0, tokens),
                                     .store = kernels::Store::accumulate});
}

void ForwardPass::logits(const TensorView& hidden, const TensorView& out) const {
  kernels::matmul_forward(context_, {.x = hidden, .weight = model_.parameters.head, .out = out});
}

}  // namespace dsmoe::model

// The forward pass. run_blocks() is the model; everything else prepares its inputs.
#include "model/language_model.h"

#include <vector>

#include "kernels/checks.h"
#include "kernels/embedding.h"
#include "kernels/matmul.h"
#include "kernels/memory.h"
#include "kernels/rms_norm.h"

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
  model->parameters =
      allocate_parameters(context, config, options.operand, options.passes, model->weights);
  load_parameters(context, model->parameters, source);

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

namespace {

// [layers, max_tokens, max_top_k] -> one layer's part, whose shape used_part() sets.
TensorView slots_of_layer(TensorView all, int64_t moe_layer) {
  const int64_t slots = all.dim(1) * all.dim(2);
  all.data = static_cast<char*>(all.data) +
             static_cast<std::size_t>(moe_layer * slots) * tensor::size_of(all.dtype);
  all.shape = {all.dim(1), all.dim(2)};
  return all;
}

}  // namespace

ForwardPass::ForwardPass(const Context& context, const Model& model, KvCache& cache,
                         const Limits& limits)
    : context_(context),
      model_(model),
      cache_(cache),
      limits_(limits),
      arena_("workspace", context.table->allocator) {
  const ModelConfig& config = model.config;
  const int64_t tokens = limits.max_tokens;
  if (limits_.max_top_k == 0) limits_.max_top_k = config.num_experts_per_tok;
  residual_ = arena_.tensor("residual stream", kernels::scalar_type(model.operand),
                            {tokens, config.hidden_size});
  const TapeSize size{.max_tokens = tokens,
                      .max_sequences = limits.max_sequences,
                      .top_k = limits_.max_top_k,
                      .operand = model.operand};
  tape_ = allocate_attention_tape(config, size, arena_);
  const int64_t num_moe_layers = config.num_moe_layers();
  if (num_moe_layers < config.num_hidden_layers) {
    dense_state_ = moe::allocate_state(layer_size(config, false, size), arena_);
  }
  if (num_moe_layers > 0) moe_state_ = moe::allocate_state(layer_size(config, true, size), arena_);
  if (num_moe_layers > 0 && limits.keep_routing == KeepRouting::yes) {
    const kernels::Shape shape{num_moe_layers, tokens, limits_.max_top_k};
    kept_index_ = arena_.tensor("kept routing", DType::I32, shape);
    kept_gate_ = arena_.tensor("kept routing", kernels::scalar_type(model.operand), shape);
    replayed_ = arena_.tensor("replayed routing", DType::I32, shape);
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
  DSMOE_CHECK(input.replayed_index.empty() ||
                  (kept_index_ && static_cast<int64_t>(input.replayed_index.size()) ==
                                      kept_index_.dim(0) * num_tokens * top_k),
              "{} replayed slots for {} tokens", input.replayed_index.size(), num_tokens);
  for (const int32_t count : input.experts_of_token) {
    if (count < 0 || count > top_k) {
      fail(ErrorKind::input, "{} experts were asked for one token; 0 to {} are possible here",
           count, top_k);
    }
  }
}

BatchViews ForwardPass::upload_batch(const ForwardInput& input) {
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
  views.document_starts = views.sequence_starts;
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
  return tape_.ffn_normed.rows(0, static_cast<int64_t>(input.tokens.size()));
}

TensorView ForwardPass::upload_replay(const ForwardInput& input, int64_t moe_layer, int64_t top_k) {
  const auto tokens = static_cast<int64_t>(input.tokens.size());
  TensorView view = slots_of_layer(replayed_, moe_layer);
  view.shape = {tokens, top_k};
  kernels::upload(context_, input.replayed_index.data() + moe_layer * tokens * top_k, view);
  return view;
}

void ForwardPass::run_blocks(const ForwardInput& input, const BatchViews& batch) {
  const auto tokens = static_cast<int64_t>(input.tokens.size());
  const auto sequences = static_cast<int64_t>(input.segments.size());
  const int64_t top_k = input.top_k > 0 ? input.top_k : limits_.max_top_k;
  const Parameters& parameters = model_.parameters.forward;
  const TensorView u = residual_.rows(0, tokens);
  kernels::embedding_forward(context_,
                             {.ids = batch.tokens, .table = parameters.embedding, .out = u});
  routing_.clear();
  for (int64_t layer = 0; layer < model_.config.num_hidden_layers; ++layer) {
    const bool is_moe = model_.config.is_moe_layer(layer);
    tape_.ffn = is_moe ? moe_state_ : dense_state_;
    TensorView replayed;
    if (is_moe && kept_index_) {
      const auto moe_layer = static_cast<int64_t>(routing_.size());
      tape_.ffn.index = slots_of_layer(kept_index_, moe_layer);
      tape_.ffn.gate = slots_of_layer(kept_gate_, moe_layer);
      if (!input.replayed_index.empty()) replayed = upload_replay(input, moe_layer, top_k);
    }
    const BlockTape tape = used_part(tape_, tokens, sequences, top_k);
    block_forward(context_, {.config = model_.config,
                             .layer = layer,
                             .top_k = top_k,
                             .ablation = input.ablation,
                             .weights = parameters.blocks[layer],
                             .rope = model_.rope,
                             .kv = cache_.layer(layer),
                             .batch = batch,
                             .tape = tape,
                             .replayed_index = replayed,
                             .u = u});
    if (is_moe && kept_index_) routing_.push_back({.index = tape.ffn.index, .gate = tape.ffn.gate});
    if (input.observer != nullptr) (*input.observer)(layer, tape.ffn, u);
  }
  kernels::rms_norm_forward(context_, {.x = u,
                                       .weight = parameters.final_norm,
                                       .eps = model_.config.rms_norm_eps,
                                       .out = tape_.ffn_normed.rows(0, tokens)});
}

void ForwardPass::logits(const TensorView& hidden, const TensorView& out) const {
  kernels::matmul_forward(context_,
                          {.x = hidden, .weight = model_.parameters.forward.head, .out = out});
}

}  // namespace dsmoe::model

// The forward pass. run_blocks() is the model; everything else prepares its inputs.
#include "model/language_model.h"

#include <algorithm>

#include "base/system_memory.h"
#include "kernels/checks.h"
#include "kernels/composed.h"
#include "kernels/embedding.h"
#include "kernels/matmul.h"
#include "kernels/memory.h"
#include "kernels/rms_norm.h"

namespace dsmoe::model {

namespace {

constexpr std::size_t kMaxRecordings = 256;  // a few hundred kilobytes each

}  // namespace

namespace {

// What no CUDA kernel computes yet is refused before memory is taken.
void check_device(const Context& context, const ModelConfig& config) {
  if (context.table->device == kernels::Device::cpu) return;
  if (config.attention_shape().is_plain() && !config.shared_expert_gate) return;
  fail(
      ErrorKind::input,
      "model_type \"{}\" runs on the CPU only yet: CUDA has no kernels for latent attention, norms "
      "of heads, partial rotation or a gate of the shared experts; leave out --device cuda",
      config.model_type());
}

// All but the contents of the weights, for which `memory` holds the place.
std::unique_ptr<Model> allocate_model(const Context& context, const ModelConfig& config,
                                      const ModelOptions& options, tensor::Arena memory) {
  auto model = std::make_unique<Model>();
  model->config = config;
  model->operand = options.operand;
  model->form = attention::latent_form(options.passes);
  check_device(context, config);
  model->context = options.context > 0 ? options.context : config.max_position_embeddings;
  check_context(config, model->context);
  model->share = share_of(config, options.rank, options.ranks);
  model->weights = std::move(memory);
  model->parameters = allocate_parameters(context, config, model->share, options.operand,
                                          options.passes, model->weights);

  model->tables = tensor::Arena("tables", context.table->allocator);
  tensor::Arena host("rope");
  const attention::RopeTable table = make_rope_table(config, model->context, host);
  const auto to_device = [&](const TensorView& values) {
    const TensorView target = model->tables.tensor("rope", values.dtype, values.shape);
    kernels::upload(context, values.data, target);
    return target;
  };
  model->rope = {.cos = to_device(table.cos), .sin = to_device(table.sin)};
  return model;
}

}  // namespace

void check_context(const ModelConfig& config, int64_t context) {
  if (context > config.max_position_embeddings && config.rope_kind == RopeKind::plain) {
    fail(ErrorKind::usage,
         "a context of {} positions was asked for, the model has max_position_embeddings {}; a "
         "longer context needs rope_scaling in config.json",
         context, config.max_position_embeddings);
  }
}

std::unique_ptr<Model> make_model(const Context& context, const ModelConfig& config,
                                  ParameterSource& source, const ModelOptions& options) {
  auto model =
      allocate_model(context, config, options, tensor::Arena("weights", context.table->allocator));
  if (model->weights.device() == tensor::Device::cpu) {  // nothing is filled yet
    expect_memory("the weights", static_cast<int64_t>(model->weights.total_bytes()));
  }
  load_parameters(context, model->parameters, source);
  return model;
}

std::unique_ptr<Model> make_packed_model(const Context& context, const ModelConfig& config,
                                         tensor::Arena::Filled packed,
                                         const ModelOptions& options) {
  DSMOE_CHECK(context.table->device == kernels::Device::cpu, "packed weights lie in host memory");
  const std::size_t num_blocks = packed.blocks.size();
  auto model =
      allocate_model(context, config, options, tensor::Arena("weights", std::move(packed)));
  if (model->weights.blocks().size() != num_blocks) {
    fail(ErrorKind::input, "{} blocks of weights, the model has {}", num_blocks,
         model->weights.blocks().size());
  }
  return model;
}

namespace {

// [layers, tokens, top_k] -> one layer's part.
TensorView slots_of_layer(const TensorView& all, int64_t moe_layer) {
  TensorView part = all.rows(moe_layer, moe_layer + 1);
  part.shape = {all.dim(1), all.dim(2)};
  return part;
}

// The kept routing's index, or two ids of each sequence.
int64_t room_of_flags(const ModelConfig& config, const ForwardPass::Limits& limits) {
  if (limits.keep_routing == KeepRouting::no) return 2 * limits.max_sequences;
  const int64_t top_k = limits.max_top_k > 0 ? limits.max_top_k : config.num_experts_per_tok;
  return config.num_moe_layers() * limits.max_tokens * top_k;
}

}  // namespace

ForwardPass::ForwardPass(const Context& context, const Model& model, attention::KvCache& cache,
                         const Limits& limits)
    : context_(context),
      model_(model),
      cache_(cache),
      limits_(limits),
      arena_("workspace", context.table->allocator),
      flags_(context, model.config, room_of_flags(model.config, limits), arena_),
      batch_(context,
             {.max_tokens = limits.max_tokens,
              .max_documents = limits.max_sequences,
              .max_pages = attention::KvCache::pages_for(model.context)},
             arena_) {
  const ModelConfig& config = model.config;
  const int64_t tokens = limits.max_tokens;
  if (limits_.max_top_k == 0) limits_.max_top_k = config.num_experts_per_tok;
  residual_ = arena_.tensor("residual stream", kernels::scalar_type(model.operand),
                            {tokens, config.hidden_size});
  const BlockSize size{.max_tokens = tokens,
                       .max_sequences = limits.max_sequences,
                       .top_k = limits_.max_top_k,
                       .operand = model.operand,
                       .form = model.form};
  memory_ = allocate_block_memory(config, size, arena_);
  final_normed_ = memory_.tape.ffn_normed;  // which nobody reads after the last block
  const int64_t num_moe_layers = config.num_moe_layers();
  moe::LayerMemory common;
  const auto layer_memory = [&](bool is_moe) {
    return moe::allocate_memory(layer_size(config, is_moe, size), arena_, &common);
  };
  if (num_moe_layers < config.num_hidden_layers) dense_memory_ = layer_memory(false);
  if (num_moe_layers > 0) moe_memory_ = layer_memory(true);
  if (num_moe_layers > 0 && limits.keep_routing == KeepRouting::yes) {
    const kernels::Shape shape{num_moe_layers, tokens, limits_.max_top_k};
    kept_index_ = flags_.room();
    kept_index_.shape = shape;
    kept_gate_ = arena_.tensor("kept routing", kernels::scalar_type(model.operand), shape);
    replayed_ = arena_.tensor("replayed routing", DType::I32, shape);
  }
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
  documents_.clear();
  places_.clear();
  int64_t row = 0;
  for (const Segment& segment : input.segments) {
    const attention::KvSequence& sequence = *segment.sequence;
    documents_.push_back(
        {.pages = sequence.pages, .begin = sequence.length, .num_tokens = segment.num_tokens});
    places_.emplace_back(row, sequence.length);
    row += segment.num_tokens;
  }
  return batch_.upload({.tokens = input.tokens,
                        .documents = documents_,
                        .experts_of_token = input.experts_of_token});
}

TensorView ForwardPass::run(const ForwardInput& input) {
  check(input);
  if (is_unread_) read({}, nullptr);
  const auto restore = [&](std::size_t num_segments) {
    for (std::size_t s = 0; s < num_segments; ++s) {
      attention::KvSequence& sequence = *input.segments[s].sequence;
      cache_.truncate(sequence, sequence.length);
    }
  };
  try {
    for (const Segment& segment : input.segments) {
      cache_.reserve(*segment.sequence, segment.sequence->length + segment.num_tokens);
    }
    lay_out_routing(input);
    const BatchViews batch = upload_batch(input);
    is_unread_ = true;
    run_ops(input, batch);
  } catch (...) {
    restore(input.segments.size());
    forget();
    throw;
  }
  for (const Segment& segment : input.segments) segment.sequence->length += segment.num_tokens;
  return final_normed_.rows(0, static_cast<int64_t>(input.tokens.size()));
}

TensorView ForwardPass::ids() const {
  DSMOE_CHECK(!kept_index_, "the pass keeps routing where ids would be");
  TensorView ids = flags_.room();
  ids.shape = {2, limits_.max_sequences};
  return ids;
}

void ForwardPass::read(const TensorView& source, void* host) {
  is_unread_ = false;
  std::optional<BadToken> bad = flags_.read(context_, source, host);
  if (!bad) return;
  const auto behind = std::partition_point(
      places_.begin(), places_.end(), [&](const auto& place) { return place.first <= bad->token; });
  const auto& [first_row, first_position] = *std::prev(behind);
  bad->token += first_position - first_row;
  throw BadScores(*bad, static_cast<std::size_t>(std::prev(behind) - places_.begin()));
}

void ForwardPass::forget() {
  if (std::exchange(is_unread_, false)) flags_.forget(context_);
}

void ForwardPass::lay_out_routing(const ForwardInput& input) {
  if (!kept_index_) return;
  const kernels::Shape shape{kept_index_.dim(0), static_cast<int64_t>(input.tokens.size()),
                             top_k_of(input)};
  routing_ = {.index = kept_index_, .gate = kept_gate_};
  replay_ = input.replayed_index.empty() ? TensorView() : replayed_;
  routing_.index.shape = routing_.gate.shape = replay_.shape = shape;
  if (replay_) kernels::upload(context_, input.replayed_index.data(), replay_);
}

void ForwardPass::run_ops(const ForwardInput& input, const BatchViews& batch) {
  const std::tuple key(static_cast<int64_t>(input.segments.size()), input.top_k,
                       !input.experts_of_token.empty());
  const bool one_each = input.tokens.size() == input.segments.size();
  // What a caller looks into or changes on the way is not recorded.
  const bool plain =
      input.observer == nullptr && input.replayed_index.empty() && input.ablation == Ablation{};
  auto found = recordings_.find(key);
  if (!one_each || !plain || !kernels::Recording::possible(context_) ||
      (found == recordings_.end() && recordings_.size() >= kMaxRecordings)) {
    return run_blocks(input, batch);
  }
  if (found == recordings_.end()) {
    const auto body = [&] { run_blocks(input, batch); };
    found = recordings_.try_emplace(key, context_, FunctionRef<void()>(body)).first;
  }
  found->second.replay();
}

void ForwardPass::run_blocks(const ForwardInput& input, const BatchViews& batch) {
  const auto tokens = static_cast<int64_t>(input.tokens.size());
  const auto sequences = static_cast<int64_t>(input.segments.size());
  const int64_t top_k = top_k_of(input);
  const Parameters& parameters = model_.parameters.forward;
  const TensorView u = residual_.rows(0, tokens);
  kernels::embedding_forward(context_,
                             {.ids = batch.tokens, .table = parameters.embedding, .out = u});
  int64_t moe_layer = 0;
  for (int64_t layer = 0; layer < model_.config.num_hidden_layers; ++layer) {
    const bool is_moe = model_.config.is_moe_layer(layer);
    memory_.ffn = is_moe ? moe_memory_ : dense_memory_;
    if (is_moe) memory_.ffn.tape.bad_token = flags_.of(moe_layer);
    TensorView replayed;
    if (is_moe && kept_index_) {
      memory_.ffn.tape.index = slots_of_layer(routing_.index, moe_layer);
      memory_.ffn.tape.gate = slots_of_layer(routing_.gate, moe_layer);
      if (replay_) replayed = slots_of_layer(replay_, moe_layer);
    }
    const BlockMemory memory = used_part(memory_, tokens, sequences, top_k);
    block_forward(context_, {.config = model_.config,
                             .operand = model_.operand,
                             .form = model_.form,
                             .top_k = top_k,
                             .ablation = input.ablation,
                             .weights = parameters.blocks[layer],
                             .rope = model_.rope,
                             .kv = cache_.layer(layer),
                             .batch = batch,
                             .memory = memory,
                             .replayed_index = replayed,
                             .u = u});
    moe_layer += is_moe ? 1 : 0;
    if (input.observer != nullptr) (*input.observer)(layer, memory.ffn.tape, u);
  }
  kernels::rms_norm_forward(context_, {.x = u,
                                       .weight = parameters.final_norm,
                                       .eps = model_.config.rms_norm_eps,
                                       .out = final_normed_.rows(0, tokens)});
}

void ForwardPass::logits(const TensorView& hidden, const TensorView& out) const {
  kernels::matmul_forward(context_, {.operand = model_.operand,
                                     .x = hidden,
                                     .weight = model_.parameters.forward.head,
                                     .out = out});
}

void ForwardPass::most_likely(const TensorView& hidden, const TensorView& out,
                              const TensorView& index) const {
  kernels::most_likely(
      context_,
      {.x = hidden, .weight = model_.parameters.forward.head, .logits = out, .index = index});
}

}  // namespace dsmoe::model

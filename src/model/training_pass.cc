// One micro-batch: embed, blocks, head and loss in chunks; then everything in reverse.
#include "model/training_pass.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "kernels/beside.h"
#include "kernels/checks.h"
#include "kernels/elements.h"
#include "kernels/embedding.h"
#include "kernels/log_prob.h"
#include "kernels/matmul.h"
#include "kernels/memory.h"
#include "kernels/rms_norm.h"
#include "model/head_chunks.h"
#include "model/router_flags.h"

namespace dsmoe::model {
namespace {

// A weight gradient's blocks restart at each row's beginning, so a row may only be cut at multiples
// of the longest block: 256 (the fp32 rule), which the 32 of the bf16 rule divides.
constexpr int64_t kChunkAlignment = 256;

// Who recomputes wants memory: the experts' outputs in parts cost a little time each.
constexpr int64_t kPartsToSaveMemory = 3;

// The KV cache is made for so many documents in a micro-batch besides the first of each row, and
// anew where there are more: one for every token would be 64 times the memory of long documents.
int64_t expected_documents(const TrainingPass::Limits& limits) {
  return std::min(limits.max_documents,
                  limits.max_rows + std::max<int64_t>(64, limits.max_tokens / 32));
}

// What a step's results are on their way from the device. Memory of the largest batch is taken at
// once, so that a step allocates nothing.
struct HostResults {
  std::vector<int32_t> expert_offsets;  // as on the device
  std::vector<std::byte> log_prob;      // [tokens]
};

// The widest row that any op of a step works on.
int64_t widest_row(const ModelConfig& config) {
  const attention::Shape shape =
      config.attention_shape(DType::F32, attention::LatentForm::expanded);
  return std::max({config.hidden_size, shape.qkv_width(), shape.projected_width(),
                   config.intermediate_size, config.moe_intermediate_size, config.shared_width()});
}

}  // namespace

struct TrainingPass::Impl {
  Impl(const Context& ctx, const Model& m, const Gradients& g, const LossRule& r, const Limits& l,
       Recompute recompute);

  void check(const MicroBatch& batch) const;
  void reserve_memory();
  int64_t most_pages(int64_t num_documents) const;
  void make_cache(int64_t num_pages);
  void place_documents(std::span<const int32_t> lengths);
  BatchViews upload(const MicroBatch& batch);
  BatchViews start(const MicroBatch& batch);
  void forward(const BatchViews& batch);
  void head(const MicroBatch& batch, const StepScale* scale);
  void collect();
  double host_log_prob(int64_t token) const;
  void check_loss() const;
  void backward(const BatchViews& batch, const StepScale& scale, const MicroBatch& micro);
  std::span<const moe::ExpertGradients> routed_of_unit(const MicroBatch& micro, int64_t layer);
  BlockForward block(int64_t layer, const BatchViews& batch, const BlockMemory& memory,
                     const TensorView& out) const;
  BlockMemory memory_of(int64_t layer) const;
  TensorView stream_before(int64_t layer) const;

  Context context;
  const Model& model;
  Gradients gradients;
  LossRule rule;
  Limits limits;
  Recompute recompute;
  moe::GradientWork work = moe::GradientWork::in_turn;
  tensor::Arena arena;
  std::optional<attention::KvCache>
      cache;  // made anew for a micro-batch of more documents than expected
  attention::KvSequence
      documents;  // of the current micro-batch: the pages of one follow those of the other
  std::vector<int32_t> document_lengths;  // those that `documents` has pages for
  std::vector<BatchBuffer::Document> document_places;
  HostResults host;
  HeadChunks chunks;
  PassLosses losses;
  std::vector<moe::ExpertGradients> unit_gradients;  // of one layer, by rank
  int64_t tokens = 0;                                // of the current micro-batch
  int64_t sequences = 0;                             // its rows
  TensorView u;                                      // [max_tokens, hidden]
  TensorView d_u;                                    // [max_tokens, hidden]
  TensorView final_normed;
  std::vector<TensorView> block_inputs;       // per layer, with Recompute::blocks
  std::vector<BlockMemory> blocks;            // per layer; one (its layer's set per kind) with
                                              // Recompute::blocks
  moe::LayerMemory moe_memory, dense_memory;  // with Recompute::blocks
  BatchBuffer batches;
  RouterFlags flags;
  TensorView expert_offsets;  // [moe layers, experts + 1]: of the plans of all layers, to be read
                              // at once
  int64_t chunk_tokens = 0;
  TensorView logits, d_logits, log_prob, chunk_target, chunk_rows;
  TensorView balance_losses, z_loss;
};

TrainingPass::Impl::Impl(const Context& ctx, const Model& m, const Gradients& g, const LossRule& r,
                         const Limits& l, Recompute recompute_mode)
    : context(ctx),
      model(m),
      gradients(g),
      rule(r),
      limits(l),
      recompute(recompute_mode),
      arena("training", ctx.table->allocator),
      batches(context,
              {.max_tokens = limits.max_tokens,
               .max_sequences = limits.max_rows,
               .max_documents = limits.max_documents,
               .max_pages = attention::KvCache::pages_for(model.context)},
              arena),
      flags(context, model.config, m.config.num_moe_layers() * (m.config.n_routed_experts + 1),
            arena) {
  const ModelConfig& config = model.config;
  const DType scalar = kernels::scalar_type(model.operand);
  BlockSize size{.max_tokens = limits.max_tokens,
                 .max_sequences = limits.max_rows,
                 .top_k = config.num_experts_per_tok,
                 .operand = model.operand,
                 .passes = moe::Passes::forward_and_backward,
                 .form = model.form,
                 .rank = model.share.rank,
                 .ranks = model.share.ranks};
  if (recompute == Recompute::blocks && size.ranks == 1 && config.num_moe_layers() > 0)
    size.parts = moe::parts_that_fit(context, layer_size(config, true, size), kPartsToSaveMemory);
  if (recompute == Recompute::nothing && kernels::runs_beside(context))
    size.work = work = moe::GradientWork::beside;
  const kernels::Shape stream{limits.max_tokens, config.hidden_size};
  u = arena.tensor("residual stream", scalar, stream);
  d_u = arena.tensor("residual stream", scalar, stream);
  final_normed = arena.tensor("normed", model.operand, stream);
  moe::LayerMemory common;  // what all layers share
  const auto layer_memory = [&](bool is_moe) {
    return moe::allocate_memory(layer_size(config, is_moe, size), arena, &common);
  };
  if (recompute == Recompute::blocks) {
    blocks.push_back(allocate_block_memory(config, size, arena));
    if (config.num_moe_layers() > 0) moe_memory = layer_memory(true);
    if (config.num_moe_layers() < config.num_hidden_layers) dense_memory = layer_memory(false);
  }
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (recompute == Recompute::blocks) {
      block_inputs.push_back(layer == 0 ? blocks[0].tape.attention_input
                                        : arena.tensor("block inputs", scalar, stream));
      continue;
    }
    blocks.push_back(allocate_block_memory(config, size, arena, layer > 0 ? &blocks[0] : nullptr));
    blocks.back().ffn = layer_memory(config.is_moe_layer(layer));
  }
  if (config.num_moe_layers() > 0) {
    expert_offsets = flags.room();
    expert_offsets.shape = {config.num_moe_layers(), config.n_routed_experts + 1};
  }

  // Logits of about 64 MiB at a time; on a device, enough to fill it.
  const int64_t budget = ctx.table->device == kernels::Device::cpu ? 64 : 512;
  const int64_t wanted = (budget << 20) / (config.vocab_size * 4);
  chunk_tokens = std::max<int64_t>(1, wanted / kChunkAlignment) * kChunkAlignment;
  const int64_t chunk_capacity = std::min(chunk_tokens, limits.max_tokens);
  logits = arena.tensor("head", scalar, {chunk_capacity, config.vocab_size});
  d_logits = arena.tensor("head", model.operand, {chunk_capacity, config.vocab_size});
  log_prob = arena.tensor("head", scalar, {limits.max_tokens});
  chunk_target = arena.tensor("head", DType::I32, {chunk_capacity});
  chunk_rows = arena.tensor("head", DType::I32, {limits.max_rows + 1});
  balance_losses = arena.tensor("losses", DType::F64, {2});
  z_loss = arena.tensor("losses", DType::F64, {1});
  reserve_memory();
}

void TrainingPass::Impl::reserve_memory() {
  const ModelConfig& config = model.config;
  make_cache(most_pages(expected_documents(limits)));
  document_lengths.reserve(static_cast<std::size_t>(limits.max_documents));
  document_places.reserve(static_cast<std::size_t>(limits.max_documents));
  if (expert_offsets)
    host.expert_offsets.resize(static_cast<std::size_t>(expert_offsets.num_elements()));
  host.log_prob.resize(log_prob.num_bytes());
  losses.document_nats.reserve(static_cast<std::size_t>(limits.max_documents));
  documents.pages.reserve(static_cast<std::size_t>(most_pages(limits.max_documents)));
  chunks.row_offsets.reserve(static_cast<std::size_t>(limits.max_rows) + 1);
  losses.load.assign(static_cast<std::size_t>(config.num_moe_layers()),
                     std::vector<int64_t>(static_cast<std::size_t>(config.n_routed_experts), 0));
  const attention::Shape shape = config.attention_shape(model.operand, model.form);
  // Norms of heads have a row for each.
  const int64_t rows = limits.max_tokens * (shape.has_qk_norm ? shape.heads : 1);
  kernels::reserve_scratch(context, {.tokens = rows,
                                     .context = model.context,
                                     .widest_row = widest_row(config),
                                     .key_width = shape.kv.key_width,
                                     .value_width = shape.kv.value_width,
                                     .experts = config.n_routed_experts});
}

void TrainingPass::Impl::check(const MicroBatch& batch) const {
  const auto count = static_cast<int64_t>(batch.tokens.size());
  const auto sum = [](std::span<const int32_t> lengths) {
    return std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  };
  const bool may_be_empty = model.share.ranks > 1;
  DSMOE_CHECK((0 < count || may_be_empty) && count <= limits.max_tokens,
              "{} tokens, the pass was made for {}", count, limits.max_tokens);
  DSMOE_CHECK(batch.targets.size() == batch.tokens.size(), "{} targets for {} tokens",
              batch.targets.size(), count);
  DSMOE_CHECK(static_cast<int64_t>(batch.row_lengths.size()) <= limits.max_rows,
              "{} rows, the pass was made for {}", batch.row_lengths.size(), limits.max_rows);
  DSMOE_CHECK(static_cast<int64_t>(batch.document_lengths.size()) <= limits.max_documents,
              "{} documents, the pass was made for {}", batch.document_lengths.size(),
              limits.max_documents);
  DSMOE_CHECK(sum(batch.row_lengths) == count && sum(batch.document_lengths) == count,
              "rows hold {} tokens, documents {}, the batch {}", sum(batch.row_lengths),
              sum(batch.document_lengths), count);
  DSMOE_CHECK(std::all_of(batch.document_lengths.begin(), batch.document_lengths.end(),
                          [&](int32_t length) { return 0 < length && length <= model.context; }),
              "a document has no token, or more than the {} of the context", model.context);
  auto document = batch.document_lengths.begin();
  for (const int32_t row : batch.row_lengths) {
    int64_t left = row;
    while (left > 0) left -= *document++;
    DSMOE_CHECK(left == 0, "a document crosses a row's end");
  }
  for (std::size_t t = 0; t < batch.tokens.size(); ++t) {
    DSMOE_CHECK(0 <= batch.tokens[t] && batch.tokens[t] < model.config.vocab_size &&
                    -1 <= batch.targets[t] && batch.targets[t] < model.config.vocab_size,
                "token {} or target {} is outside the vocabulary of {}", batch.tokens[t],
                batch.targets[t], model.config.vocab_size);
  }
}

// For every micro-batch of so many documents, however they share its tokens.
int64_t TrainingPass::Impl::most_pages(int64_t num_documents) const {
  return num_documents + limits.max_tokens / kernels::kKeyBlock;
}

void TrainingPass::Impl::make_cache(int64_t num_pages) {
  documents.pages.clear();
  cache.emplace(context, model.kv_layers(), num_pages);
}

// A document has whole pages of its own.
void TrainingPass::Impl::place_documents(std::span<const int32_t> lengths) {
  // Documents as long as those before write over all of their keys and values.
  if (std::ranges::equal(lengths, document_lengths)) return;
  document_lengths.clear();  // should there be no memory
  int64_t pages = 0;
  for (const int32_t length : lengths) pages += attention::KvCache::pages_for(length);
  if (pages > cache->num_pages()) {
    make_cache(std::min(most_pages(limits.max_documents), 2 * pages));
  }
  cache->truncate(documents, 0);
  cache->reserve(documents, pages * kernels::kKeyBlock);
  document_places.clear();
  std::span<const int32_t> rest = documents.pages;
  for (const int32_t length : lengths) {
    const auto own_pages = static_cast<std::size_t>(attention::KvCache::pages_for(length));
    document_places.push_back({.pages = rest.first(own_pages), .num_tokens = length});
    rest = rest.subspan(own_pages);
  }
  document_lengths.assign(lengths.begin(), lengths.end());
}

BatchViews TrainingPass::Impl::upload(const MicroBatch& batch) {
  tokens = static_cast<int64_t>(batch.tokens.size());
  sequences = static_cast<int64_t>(batch.row_lengths.size());
  place_documents(batch.document_lengths);
  return batches.upload({.tokens = batch.tokens,
                         .documents = document_places,
                         .sequence_lengths = batch.row_lengths,
                         .targets = batch.targets});
}

BatchViews TrainingPass::Impl::start(const MicroBatch& batch) {
  check(batch);
  losses.nats = losses.balance = losses.device_balance = losses.z = 0;
  return upload(batch);
}

BlockMemory TrainingPass::Impl::memory_of(int64_t layer) const {
  BlockMemory memory = recompute == Recompute::blocks ? blocks[0] : blocks[layer];
  if (recompute == Recompute::blocks) {
    memory.tape.attention_input = block_inputs[layer];
    memory.ffn = model.config.is_moe_layer(layer) ? moe_memory : dense_memory;
  }
  if (model.config.is_moe_layer(layer)) {
    int64_t before = 0;
    for (int64_t other = 0; other < layer; ++other) before += model.config.is_moe_layer(other);
    TensorView& offsets = memory.ffn.tape.plan.expert_offsets;
    offsets = expert_offsets.rows(before, before + 1);
    offsets.shape = {offsets.dim(1)};
    memory.ffn.tape.bad_token = flags.of(before);
  }
  return used_part(memory, tokens, sequences, model.config.num_experts_per_tok);
}

// The stream before a block, or after the last: each block's stays for the backward pass.
TensorView TrainingPass::Impl::stream_before(int64_t layer) const {
  return layer < model.config.num_hidden_layers ? memory_of(layer).tape.attention_input
                                                : u.rows(0, tokens);
}

BlockForward TrainingPass::Impl::block(int64_t layer, const BatchViews& batch,
                                       const BlockMemory& memory, const TensorView& out) const {
  return {.config = model.config,
          .operand = model.operand,
          .form = model.form,
          .top_k = model.config.num_experts_per_tok,
          .weights = model.parameters.forward.blocks[layer],
          .rope = model.rope,
          .kv = cache->layer(layer),
          .batch = batch,
          .memory = memory,
          .u = memory.tape.attention_input,
          .out = out,
          .sequences_per_unit = rule.rows_per_balance_group};
}

void TrainingPass::Impl::forward(const BatchViews& batch) {
  const Parameters& parameters = model.parameters.forward;
  kernels::embedding_forward(
      context, {.ids = batch.tokens, .table = parameters.embedding, .out = stream_before(0)});
  for (int64_t layer = 0; layer < model.config.num_hidden_layers; ++layer) {
    const BlockMemory memory = memory_of(layer);
    block_forward(context, block(layer, batch, memory, stream_before(layer + 1)));
  }
  kernels::rms_norm_forward(context, {.x = u.rows(0, tokens),
                                      .weight = parameters.final_norm,
                                      .eps = model.config.rms_norm_eps,
                                      .out = final_normed.rows(0, tokens)});
}

// Loss, and with a scale its gradient: d_normed takes the gradient of the final normed stream, the
// head's weight its own.
void TrainingPass::Impl::head(const MicroBatch& batch, const StepScale* scale) {
  const TensorView& d_head = (batch.gradients != nullptr ? *batch.gradients : gradients).head;
  const Parameters& parameters = model.parameters.forward;
  for (chunks.start(batch.row_lengths, chunk_tokens); chunks.next();) {
    const int64_t count = chunks.end - chunks.begin;
    const TensorView hidden = final_normed.rows(chunks.begin, chunks.end);
    const TensorView chunk_logits = logits.rows(0, count);
    const TensorView target = chunk_target.rows(0, count);
    const TensorView chunk_log_prob = log_prob.rows(chunks.begin, chunks.end);
    kernels::upload(context, batch.targets.data() + chunks.begin, target);
    kernels::matmul_forward(
        context,
        {.operand = model.operand, .x = hidden, .weight = parameters.head, .out = chunk_logits});
    if (scale == nullptr) {
      kernels::log_prob_forward(
          context, {.logits = chunk_logits, .target = target, .log_prob = chunk_log_prob});
    } else {
      const TensorView d_chunk = d_logits.rows(0, count);
      kernels::cross_entropy_backward(context,
                                      {.logits = chunk_logits,
                                       .target = target,
                                       .scale = 1.0 / static_cast<double>(scale->counted_targets),
                                       .log_prob = chunk_log_prob,
                                       .d_logits = d_chunk});
      kernels::matmul_forward(context,
                              {.operand = model.operand,
                               .x = d_chunk,
                               .weight = model.parameters.backward.head,
                               .out = blocks[0].gradients.d_normed.rows(chunks.begin, chunks.end)});
      if (d_head) {
        TensorView rows = chunk_rows;
        rows.shape = {1, static_cast<int64_t>(chunks.row_offsets.size())};
        kernels::upload(context, chunks.row_offsets.data(), rows);
        kernels::weight_gradient(
            context,
            {.dy = {d_chunk},
             .x = {hidden},
             .sequence_offsets = rows,
             .d_weight = d_head,
             .start = chunks.begin == 0 ? batch.start : kernels::GradientStart::from_buffer});
      }
    }
  }
}

// What the host wants to know, after all work is under way: a download waits for the device.
void TrainingPass::Impl::collect() {
  if (const auto bad = flags.read(context, expert_offsets, host.expert_offsets.data()))
    throw BadScores(*bad);
  const int32_t* offset = host.expert_offsets.data();
  for (std::vector<int64_t>& load : losses.load) {
    for (int64_t& rows : load) {
      rows = offset[1] - offset[0];
      ++offset;
    }
    ++offset;
  }
  // Summed in double, tokens ascending: the reported loss does not depend on the chunks.
  kernels::download(context, log_prob.rows(0, tokens), host.log_prob.data());
  for (int64_t t = 0; t < tokens; ++t) losses.nats -= host_log_prob(t);
  losses.document_nats.clear();
  int64_t t = 0;
  for (const BatchBuffer::Document& document : document_places) {
    double nats = 0;
    for (const int64_t end = t + document.num_tokens; t < end; ++t) nats -= host_log_prob(t);
    losses.document_nats.push_back(nats);
  }
}

double TrainingPass::Impl::host_log_prob(int64_t token) const {
  return kernels::read_element(host.log_prob.data(), log_prob.dtype, token);
}

// In training the gradients' norm tells of it, as one of divergence.
void TrainingPass::Impl::check_loss() const {
  for (int64_t t = 0; t < tokens; ++t) {
    if (std::isfinite(host_log_prob(t))) continue;
    fail(ErrorKind::input,
         "the log-probability of token {} is not finite; the weights or the activations are broken "
         "(NaN or infinity)",
         t);
  }
}

std::span<const moe::ExpertGradients> TrainingPass::Impl::routed_of_unit(const MicroBatch& micro,
                                                                         int64_t layer) {
  unit_gradients.clear();
  for (const Gradients* of_unit : micro.gradients_of_unit) {
    unit_gradients.push_back(of_unit->blocks[static_cast<std::size_t>(layer)].ffn.routed);
  }
  return unit_gradients;
}

void TrainingPass::Impl::backward(const BatchViews& batch, const StepScale& scale,
                                  const MicroBatch& micro) {
  const Gradients& into = micro.gradients != nullptr ? *micro.gradients : gradients;
  const TensorView stream = u.rows(0, tokens);
  const TensorView d_stream = d_u.rows(0, tokens);
  const BlockRowGradients rows = memory_of(0).gradients;
  kernels::zero(context, d_stream.data, d_stream.num_bytes());
  kernels::zero(context, balance_losses.data, balance_losses.num_bytes());
  kernels::zero(context, z_loss.data, z_loss.num_bytes());
  kernels::rms_norm_backward(context, {.x = stream,
                                       .weight = model.parameters.forward.final_norm,
                                       .eps = model.config.rms_norm_eps,
                                       .d_out = rows.d_normed,
                                       .sequence_starts = batch.sequence_starts,
                                       .d_x = d_stream,
                                       .d_weight = into.final_norm,
                                       .rounded = rows.d_after_ffn});
  const moe::BalanceRule balance{
      .alpha = rule.balance_alpha,
      .device_alpha = rule.device_alpha,
      .z_alpha = rule.z_alpha,
      .num_devices = rule.num_devices,
      .sequences_per_group = rule.rows_per_balance_group,
      .group_weight = 1.0 / static_cast<double>(scale.num_balance_groups),
      .token_weight = 1.0 / static_cast<double>(scale.counted_targets)};
  BlockWork unfinished;
  for (int64_t layer = model.config.num_hidden_layers - 1; layer >= 0; --layer) {
    const BlockMemory memory = memory_of(layer);
    // Once more, for what lies between; the stream after the last block is free now.
    if (recompute == Recompute::blocks) block_forward(context, block(layer, batch, memory, stream));
    unfinished = block_backward(context, {.config = model.config,
                                          .operand = model.operand,
                                          .top_k = model.config.num_experts_per_tok,
                                          .weights = model.parameters.forward.blocks[layer],
                                          .transposed = model.parameters.backward.blocks[layer],
                                          .rope = model.rope,
                                          .kv = cache->layer(layer),
                                          .batch = batch,
                                          .memory = memory,
                                          .gradients = into.blocks[layer],
                                          .routed_of_unit = routed_of_unit(micro, layer),
                                          .start = micro.start,
                                          .balance = balance,
                                          .losses = {.balance = balance_losses, .z = z_loss},
                                          .d_u = d_stream,
                                          .work = work,
                                          .before = unfinished});
  }
  if (into.embedding) {
    kernels::embedding_backward(
        context, {.ids = batch.tokens, .d_out = d_stream, .d_table = into.embedding});
  }
  wait_for(context, unfinished);
  double sums[2];
  kernels::download(context, balance_losses, sums);
  kernels::download(context, z_loss, &losses.z);
  losses.balance = sums[0];
  losses.device_balance = sums[1];
}

TrainingPass::TrainingPass(const Context& context, const Model& model, const Gradients& gradients,
                           const LossRule& rule, const Limits& limits, Recompute recompute)
    : impl_(std::make_unique<Impl>(context, model, gradients, rule, limits, recompute)) {}

TrainingPass::~TrainingPass() = default;

const PassLosses& TrainingPass::run(const MicroBatch& batch, const StepScale& scale) {
  const BatchViews views = impl_->start(batch);
  impl_->forward(views);
  impl_->head(batch, &scale);
  impl_->backward(views, scale, batch);
  impl_->collect();
  return impl_->losses;
}

const PassLosses& TrainingPass::evaluate(const MicroBatch& batch) {
  impl_->forward(impl_->start(batch));
  impl_->head(batch, nullptr);
  impl_->collect();
  impl_->check_loss();
  return impl_->losses;
}

const tensor::Arena& TrainingPass::arena() const { return impl_->arena; }
const tensor::Arena& TrainingPass::kv_arena() const { return impl_->cache->arena(); }

}  // namespace dsmoe::model

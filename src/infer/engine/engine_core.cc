// Steps of the engine, and what happens to a sequence besides.
#include "infer/engine/engine_core.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <new>

namespace dsmoe::infer {
namespace {

constexpr const char* kNoMemory = "out of memory";

EngineSequence& sequence_of(Scheduled& scheduled) {
  return static_cast<EngineSequence&>(scheduled);
}

std::vector<EnginePart> parts_of(std::span<const Scheduler::Part> planned) {
  std::vector<EnginePart> parts;
  for (const Scheduler::Part& part : planned) {
    EngineSequence& sequence = sequence_of(*part.sequence);
    parts.push_back(
        {.sequence = &sequence, .begin = sequence.kv.length, .num_tokens = part.num_tokens});
  }
  return parts;
}

EngineOptions complete(const model::Model& model, EngineOptions options) {
  if (options.max_top_k == 0) options.max_top_k = default_max_top_k(model.config);
  options.chunk_tokens = std::max(options.chunk_tokens, options.max_batch);
  const int64_t one_context = attention::KvCache::pages_for(model.context);
  if (options.num_pages == 0) {
    options.num_pages = default_num_pages(model, options.max_batch);
  }
  if (options.num_pages < one_context) {
    fail(ErrorKind::usage,
         "a KV cache of {} pages does not hold one context of {} tokens, which needs {} pages of "
         "{}; give it more memory, or take a shorter context",
         options.num_pages, model.context, one_context, kernels::kKeyBlock);
  }
  return options;
}

}  // namespace

Limits limits_of(const model::Model& model, const EngineOptions& options) {
  const model::ModelConfig& config = model.config;
  return {.context = model.context,
          .vocabulary = config.vocab_size,
          .num_moe_layers = config.num_moe_layers(),
          .num_experts = config.n_routed_experts,
          .usual_top_k = config.num_experts_per_tok,
          .max_top_k = options.max_top_k > 0 ? options.max_top_k : default_max_top_k(config),
          .max_answers = options.max_batch + options.max_queue};
}

int64_t kv_page_bytes(const model::Model& model) {
  attention::KvLayers layers = model.kv_layers();
  layers.shape.layout = model.parameters.forward.head.layout;
  return layers.count * layers.shape.page_bytes();
}

int64_t default_num_pages(const model::Model& model, int64_t max_batch) {
  constexpr int64_t kMostBytes = int64_t{4} << 30;
  const int64_t one_context = attention::KvCache::pages_for(model.context);
  return std::max(one_context,
                  std::min(max_batch * one_context, kMostBytes / kv_page_bytes(model)));
}

EngineCore::EngineCore(const kernels::Context& context, const model::Model& model,
                       const EngineOptions& options, ExpertLoad& load, std::function<void()> beat)
    : model_(model),
      options_(complete(model, options)),
      load_(load),
      beat_(std::move(beat)),
      pool_(context, model, options_.num_pages),
      step_(context, model, pool_.cache(),
            {.max_tokens = options_.chunk_tokens,
             .max_sequences = options_.max_batch,
             .max_top_k = options_.max_top_k,
             .keep_routing = model::KeepRouting::yes},
            [this] { beat_(); }),
      scheduler_({.max_batch = options_.max_batch,
                  .chunk_tokens = options_.chunk_tokens,
                  .page_tokens = kernels::kKeyBlock,
                  .patience_seconds = options_.patience_seconds,
                  .patience_steps = options_.patience_steps}) {}

EngineCore::~EngineCore() = default;

EngineCore::Sequences EngineCore::prepare(const model::Model& model, Id id, Id submission,
                                          EngineRequest request) {
  Sequences one;
  one.push_back(std::make_unique<EngineSequence>(model, id, submission, std::move(request)));
  return one;
}

void EngineCore::add(Sequences newcomers) { scheduler_.add(std::move(newcomers)); }

void EngineCore::reserve(Scheduled& sequence, int64_t length) {
  pool_.reserve(sequence_of(sequence), length);
}

// What goes wrong with what concerns it alone ends a sequence, and nothing else: no memory, a
// constraint that is too ambiguous for the token that was taken.
template <class F>
void EngineCore::guarded(EngineSequence& sequence, F&& f) {
  try {
    f();
  } catch (const std::bad_alloc&) {
    fail(sequence, ErrorKind::internal, kNoMemory);
  } catch (const Error& e) {
    fail(sequence, e.kind(), e.what());
  }
}

void EngineCore::begin(Scheduled& scheduled) {
  EngineSequence& sequence = sequence_of(scheduled);
  guarded(sequence, [&] {
    if (!sequence.sampler) {
      sequence.sampler =
          std::make_unique<Sampler>(sequence.request.sampler, model_.config.vocab_size);
    }
    if (!sequence.was_preempted) stats_.prompt_tokens += sequence.num_prompt;
    const int64_t reused = pool_.attach(sequence);
    if (sequence.was_preempted) return;
    sequence.num_reused = reused;
    stats_.reused_tokens += reused;
  });
}

void EngineCore::give_up(Scheduled& scheduled) {
  EngineSequence& sequence = sequence_of(scheduled);
  sequence.request.sink->flush();
  pool_.truncate(sequence, 0);
  sequence.open.clear();
  sequence.pooled.clear();
}

bool EngineCore::step() {
  beat_();
  for (const auto& sequence : scheduler_.running()) sequence_of(*sequence).refresh();
  std::vector<Scheduler::Part> planned;
  std::vector<EnginePart> parts;
  try {
    planned = scheduler_.next_step(*this);
    parts = parts_of(planned);
  } catch (const std::bad_alloc&) {
    // Who came last makes room, and the others are planned again.
    const ScheduledList& running = scheduler_.running();
    if (!running.empty()) fail(sequence_of(*running.back()), ErrorKind::internal, kNoMemory);
  }
  if (parts.empty()) return !scheduler_.running().empty() || !scheduler_.waiting().empty();
  if (std::any_of(parts.begin(), parts.end(),
                  [](const EnginePart& part) { return part.num_tokens > 1; })) {
    for (const auto& sequence : scheduler_.running()) sequence_of(*sequence).request.sink->flush();
  }
  ++stats_.steps;
  const auto start = std::chrono::steady_clock::now();
  run(parts);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  stats_.longest_step_seconds = std::max(stats_.longest_step_seconds, taken.count());
  scheduler_.learn(planned, taken.count());
  return true;
}

// A sequence whose numbers break, or for which there is no memory, must not take the others with
// it: they run again without it, to the same bits. What else fails behind the pass is no sequence's
// fault, and nothing can run again: its tokens count as forwarded.
void EngineCore::run(std::span<const EnginePart> parts) {
  const EngineStep::Result* result = nullptr;
  try {
    result = &step_.run(parts);
  } catch (const model::BadScores& e) {
    count_forwarded(parts);
    return run_without(parts, e);
  } catch (const std::bad_alloc&) {
    count_forwarded(parts);
    return run_one_by_one(parts, ErrorKind::internal, kNoMemory);
  } catch (const Error& e) {
    if (step_.was_forwarded()) throw;
    return run_one_by_one(parts, e.kind(), e.what());
  }
  count_forwarded(parts);
  hand_out(parts, *result);
}

void EngineCore::count_forwarded(std::span<const EnginePart> parts) {
  if (!step_.was_forwarded()) return;
  for (const EnginePart& part : parts) stats_.forwarded_tokens += part.num_tokens;
}

// The step again, as if it had not been, without the sequence whose router failed.
void EngineCore::run_without(std::span<const EnginePart> parts, const model::BadScores& error) {
  take_back(parts);
  const std::size_t bad = error.segment();
  fail(*parts[bad].sequence, ErrorKind::internal, error.what());
  for (const auto others : {parts.first(bad), parts.subspan(bad + 1)}) {
    beat_();
    if (!others.empty()) run(others);
  }
}

// The same where it is not known which sequence failed: the one that fails alone.
void EngineCore::run_one_by_one(std::span<const EnginePart> parts, ErrorKind kind,
                                const char* message) {
  take_back(parts);
  if (parts.size() == 1) return fail(*parts[0].sequence, kind, message);
  for (const EnginePart& part : parts) run({&part, 1});
}

void EngineCore::take_back(std::span<const EnginePart> parts) {
  step_.forget();
  for (const EnginePart& part : parts) pool_.truncate(*part.sequence, part.begin);
}

// What a step has given: its routes, what others may reuse of it, scores and tokens.
void EngineCore::hand_out(std::span<const EnginePart> parts, const EngineStep::Result& result) {
  count_load(result);
  int64_t row = 0;
  for (const EnginePart& part : parts) {
    guarded(*part.sequence, [&] {
      take_routes(part, result.routes.tokens(row, row + part.num_tokens));
      if (part.sequence->writes_prefix) pool_.keep_blocks(*part.sequence, part.begin);
      if (part.sequence->request.pooling != Pooling::none) pool_hidden(part, result, row);
    });
    row += part.num_tokens;
  }
  for (const EngineStep::Row& of_row : result.rows) {
    if (!scheduler_.is_running(*of_row.sequence)) continue;  // ended before
    guarded(*of_row.sequence, [&] { deliver(of_row); });
  }
  for (const EnginePart& part : parts) {
    if (scheduler_.is_running(*part.sequence) && part.sequence->num_pending() == 0) {
      finish(*part.sequence, FinishReason::length);  // max_tokens 0
    }
  }
}

void EngineCore::count_load(const EngineStep::Result& result) {
  if (result.routes.num_layers == 0) return;
  try {
    load_.add(result.tokens, result.routes.index, result.routes.top_k);
  } catch (const std::bad_alloc&) {
    // The rest of this step is missing in what the counters show.
  }
}

void EngineCore::take_routes(const EnginePart& part, const RoutesView& routes) {
  Routes& open = part.sequence->open;
  if (open.num_layers == 0) return;
  const int64_t before = open.num_tokens();
  open.append(routes);
  part.sequence->add_routes(part.begin, open.tokens(before, before + part.num_tokens));
  if (!part.sequence->writes_prefix) open.clear();
}

// Sums of doubles, tokens ascending.
void EngineCore::pool_hidden(const EnginePart& part, const EngineStep::Result& result,
                             int64_t first_row) {
  EngineSequence& sequence = *part.sequence;
  const auto width = static_cast<std::size_t>(model_.config.hidden_size);
  const bool is_mean = sequence.request.pooling == Pooling::mean;
  for (int64_t row = first_row; row < first_row + part.num_tokens; ++row) {
    if (!is_mean || sequence.pooled.empty()) sequence.pooled.assign(width, 0.0);
    for (std::size_t i = 0; i < width; ++i)
      sequence.pooled[i] += result.hidden_value(row, i, width);
  }
  if (sequence.num_pending() > 0) return;
  const double count = is_mean ? static_cast<double>(sequence.num_prompt) : 1.0;
  std::vector<float> embedding;
  for (const double sum : sequence.pooled) {
    if (!std::isfinite(sum)) {
      dsmoe::fail(ErrorKind::internal,
                  "value {} of the embedding is not finite; the weights or the activations are "
                  "broken (NaN or infinity)",
                  embedding.size());
    }
    embedding.push_back(static_cast<float>(sum / count));
  }
  sequence.request.sink->on_embedding(embedding);
}

void EngineCore::deliver(const EngineStep::Row& row) {
  EngineSequence& sequence = *row.sequence;
  if (!row.error.empty()) return fail(sequence, ErrorKind::internal, row.error.c_str());
  if (row.scored_position >= 0) {
    sequence.request.sink->on_prompt_score(row.scored_position, row.score);
    sequence.prompt_scored = row.scored_position + 1;
    return;
  }
  if (row.is_over && sequence.request.constraint && !sequence.guide->may_end()) {
    return fail(sequence, ErrorKind::input,
                "the constraint asks for a token that is one of stop_token_ids");
  }
  if (row.is_over) return finish(sequence, FinishReason::complete);
  take_token(sequence, row.token, sequence.request.num_top_scores >= 0 ? &row.score : nullptr);
}

void EngineCore::take_token(EngineSequence& sequence, int32_t token, const TokenScore* score) {
  const EngineRequest& request = sequence.request;
  if (std::find(request.stop_ids.begin(), request.stop_ids.end(), token) !=
      request.stop_ids.end()) {
    return finish(sequence, FinishReason::stop_token);
  }
  sequence.tokens.push_back(token);
  ++stats_.answer_tokens;
  if (sequence.guide) sequence.guide->take(token);
  if (request.sink->on_token(token, score) == Next::stop) {
    return finish(sequence, FinishReason::stopped);
  }
  const bool is_last = sequence.num_answer() == request.max_tokens;
  if (sequence.guide && sequence.guide->must_end()) {
    return finish(sequence, FinishReason::complete);
  }
  if (is_last && sequence.guide && sequence.guide->may_end()) {
    return finish(sequence, FinishReason::closed);
  }
  if (is_last) return finish(sequence, FinishReason::length);
  if (sequence.kv.length == model_.context) return finish(sequence, FinishReason::context);
}

void EngineCore::cancel(Id id) {
  Scheduled* sequence = scheduler_.find(id);
  if (sequence != nullptr) finish(sequence_of(*sequence), FinishReason::cancelled);
}

// Its pages and its place; it is gone when this returns.
void EngineCore::remove(EngineSequence& sequence) {
  pool_.truncate(sequence, 0);
  scheduler_.remove(sequence);
}

void EngineCore::finish(EngineSequence& sequence, FinishReason reason) {
  const std::shared_ptr<RequestSink> sink = sequence.request.sink;
  const bool is_whole = reason == FinishReason::complete || reason == FinishReason::stop_token;
  if (is_whole && sequence.guide && sequence.guide->was_narrowed()) reason = FinishReason::closed;
  const Finish finish{.reason = reason, .reused_tokens = sequence.num_reused};
  remove(sequence);
  sink->on_finish(finish);
}

void EngineCore::fail(EngineSequence& sequence, ErrorKind kind, const char* message) {
  const std::shared_ptr<RequestSink> sink = sequence.request.sink;
  std::string text = kNoMemory;  // short enough to need none
  try {
    text = message;
  } catch (const std::bad_alloc&) {
    // Then that is all there is to say.
  }
  remove(sequence);
  sink->on_error(kind, text);
}

void EngineCore::fail_all(ErrorKind kind, const std::string& message) {
  for (const ScheduledList* list : {&scheduler_.running(), &scheduler_.waiting()}) {
    for (const auto& sequence : *list) {
      sequence_of(*sequence).request.sink->on_error(kind, message);
    }
  }
  scheduler_.clear();
}

EngineStats EngineCore::stats() const {
  EngineStats stats = stats_;
  stats.preemptions = scheduler_.num_preemptions();
  stats.running = static_cast<int64_t>(scheduler_.running().size());
  stats.waiting = static_cast<int64_t>(scheduler_.waiting().size());
  stats.pages = pool_.num_pages();
  stats.free_pages = pool_.num_free();
  stats.cached_pages = pool_.num_cached();
  return stats;
}

}  // namespace dsmoe::infer

// Scheduling: who runs, on which pages; decoding goes first, prompts share what a step has left.
#include "infer/engine_core.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <tuple>

#include "infer/engine_sequence.h"
#include "infer/load_model.h"
#include "infer/workspace.h"
#include "kernels/table.h"

namespace dsmoe::infer {
namespace {

constexpr int64_t kMostTopK = 32;  // slots per token that every table's router can choose
// Of prompts, while others decode. Fewer would mostly read weights again.
constexpr int64_t kLeastBeside = 32;

EngineOptions complete(const model::Model& model, EngineOptions options) {
  if (options.max_top_k == 0) options.max_top_k = default_max_top_k(model.config);
  options.chunk_tokens = std::max(options.chunk_tokens, options.max_batch);
  const int64_t one_context = model::KvCache::pages_for(model.context);
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

int64_t default_max_top_k(const model::ModelConfig& config) {
  if (config.num_moe_layers() == 0) return config.num_experts_per_tok;
  const int64_t wanted = std::max<int64_t>(2 * config.num_experts_per_tok, 16);
  return std::max(config.num_experts_per_tok,
                  std::min({wanted, config.num_selectable_experts(), kMostTopK}));
}

int64_t kv_page_bytes(const model::Model& model) {
  const model::ModelConfig& config = model.config;
  return 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim *
         kernels::kKeyBlock * static_cast<int64_t>(tensor::size_of(model.operand));
}

int64_t default_num_pages(const model::Model& model, int64_t max_batch) {
  constexpr int64_t kMostBytes = int64_t{4} << 30;
  const int64_t one_context = model::KvCache::pages_for(model.context);
  return std::max(one_context,
                  std::min(max_batch * one_context, kMostBytes / kv_page_bytes(model)));
}

EngineCore::EngineCore(const kernels::Context& context, const model::Model& model,
                       const EngineOptions& options, ExpertLoad& load, std::function<void()> beat)
    : context_(context),
      model_(model),
      options_(complete(model, options)),
      load_(load),
      beat_(std::move(beat)),
      num_moe_layers_(model.config.num_moe_layers()),
      cache_(context, model.config, model.operand, options_.num_pages),
      prefix_(cache_),
      pass_(context, model, cache_,
            {.max_tokens = options_.chunk_tokens,
             .max_sequences = options_.max_batch,
             .max_top_k = options_.max_top_k,
             .keep_routing = model::KeepRouting::yes}),
      arena_("logits", context.table->allocator),
      logit_rows_(logit_rows(model.config.vocab_size, options_.chunk_tokens)),
      device_logits_(
          arena_.tensor("logits", tensor::DType::F32, {logit_rows_, model.config.vocab_size})),
      device_best_(arena_.tensor("logits", tensor::DType::I32, {logit_rows_})),
      device_choice_(arena_.tensor("logits", tensor::DType::I32, {logit_rows_})),
      host_logits_(static_cast<std::size_t>(logit_rows_ * model.config.vocab_size)),
      host_choice_(static_cast<std::size_t>(logit_rows_)),
      tokens_beside_(std::min(kLeastBeside, options_.chunk_tokens)) {}

EngineCore::~EngineCore() = default;

void EngineCore::check(const model::Model& model, const EngineOptions& options,
                       const EngineRequest& request) {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  check_tokens(model.config, request.prompt, "prompt");
  if (prompt == 0) dsmoe::fail(ErrorKind::input, "the prompt has no tokens");
  // The last token of an answer is never forwarded.
  if (prompt > model.context || request.max_tokens > model.context + 1 - prompt) {
    dsmoe::fail(ErrorKind::input,
                "a prompt of {} tokens and an answer of {} do not fit into the context of {}",
                prompt, request.max_tokens, model.context);
  }
  infer::check(request.sampler, model.config.vocab_size);
  const int64_t most = options.max_top_k > 0 ? options.max_top_k : default_max_top_k(model.config);
  const int64_t top_k = checked_top_k(model.config, request.experts_per_token);
  if (top_k > most) {
    dsmoe::fail(ErrorKind::input,
                "num_experts_per_tok is {}; 1 to {} experts per token are possible here", top_k,
                most);
  }
  if (!request.is_replayed()) return;
  const int64_t row = model.config.num_moe_layers() * top_k;
  DSMOE_CHECK(row > 0 && static_cast<int64_t>(request.replayed->size()) % row == 0,
              "{} replayed slots in rows of {}", request.replayed->size(), row);
}

void EngineCore::add(Id id, Id submission, EngineRequest request) {
  waiting_.push_back(std::make_unique<Sequence>(model_, id, submission, std::move(request)));
  waiting_.back()->owner_turn = waiting_.back()->submission_turn = num_admissions_;
}

// Sequences that already ran; then the owner with the fewest running sequences, of several the one
// whose turn is longest ago; of its submissions the same; then the order of arrival. A turn ages
// while others have theirs, so nobody waits for ever.
std::deque<EngineCore::SequencePtr>::iterator EngineCore::next_waiting() {
  if (waiting_.front()->was_preempted) return waiting_.begin();
  std::map<uint64_t, int64_t> running_of_owner, running_of_submission;
  for (const SequencePtr& sequence : running_) {
    ++running_of_owner[sequence->request.owner];
    ++running_of_submission[sequence->submission];
  }
  const auto rank = [&](const SequencePtr& s) {
    return std::tuple(running_of_owner[s->request.owner], s->owner_turn,
                      running_of_submission[s->submission], s->submission_turn);
  };
  return std::min_element(
      waiting_.begin(), waiting_.end(),
      [&](const SequencePtr& a, const SequencePtr& b) { return rank(a) < rank(b); });
}

void EngineCore::take_turn(const Sequence& admitted) {
  ++num_admissions_;
  for (const SequencePtr& waiting : waiting_) {
    if (waiting->request.owner == admitted.request.owner) waiting->owner_turn = num_admissions_;
    if (waiting->submission == admitted.submission) waiting->submission_turn = num_admissions_;
  }
}

// Pages for all that is known of the sequence, beyond what running ones still need for theirs.
bool EngineCore::fits(const Sequence& sequence) const {
  int64_t promised = 0;
  const auto missing = [](const Sequence& s) {
    return model::KvCache::pages_for(static_cast<int64_t>(s.tokens.size()) + 1) -
           static_cast<int64_t>(s.kv.pages.size());
  };
  for (const SequencePtr& other : running_) promised += std::max<int64_t>(0, missing(*other));
  return cache_.num_free_pages() + prefix_.num_evictable() - promised >= missing(sequence);
}

void EngineCore::admit() {
  while (!waiting_.empty() && static_cast<int64_t>(running_.size()) < options_.max_batch) {
    const auto next = next_waiting();
    if (!running_.empty() && !fits(**next)) return;
    running_.push_back(std::move(*next));
    waiting_.erase(next);
    Sequence& sequence = *running_.back();
    take_turn(sequence);
    if (!sequence.sampler) {
      sequence.sampler =
          std::make_unique<Sampler>(sequence.request.sampler, model_.config.vocab_size);
    }
    if (!sequence.was_preempted) stats_.prompt_tokens += sequence.num_prompt();
    attach_prefix(sequence);
  }
}

void EngineCore::attach_prefix(Sequence& sequence) {
  sequence.node = PrefixCache::kRoot;
  sequence.writes_prefix = !sequence.request.is_replayed();
  if (!sequence.writes_prefix || sequence.request.scores_prompt) return;
  constexpr int64_t kBlock = kernels::kKeyBlock;
  // The last token is always computed: its logits are wanted.
  const auto usable = static_cast<int64_t>(sequence.tokens.size()) - 1;
  int64_t reused = 0;
  while (reused + kBlock <= usable) {
    const auto node =
        prefix_.find(sequence.scope(), sequence.node,
                     std::span(sequence.tokens).subspan(static_cast<std::size_t>(reused), kBlock));
    if (node == PrefixCache::kRoot) break;
    const PrefixCache::Block& block = prefix_.block(node);
    cache_.share(block.page);
    sequence.kv.pages.push_back(block.page);
    sequence.node = node;
    sequence.add_routes(reused, block.index, block.gate);
    reused += kBlock;
    sequence.kv.length = reused;
  }
  if (sequence.was_preempted) return;
  sequence.num_reused = reused;
  stats_.reused_tokens += reused;
}

void EngineCore::preempt(Sequence& sequence) {
  sequence.request.sink->flush();
  cache_.truncate(sequence.kv, 0);
  sequence.open_index.clear();
  sequence.open_gate.clear();
  sequence.was_preempted = true;
  ++stats_.preemptions;
  const auto at = std::find_if(running_.begin(), running_.end(),
                               [&](const SequencePtr& s) { return s.get() == &sequence; });
  waiting_.push_front(std::move(*at));
  running_.erase(at);
}

// Pages up to `length`: free ones, then what only the prefix cache holds, then those of the
// sequences admitted last, which start again later (to the same bits). The first admitted never
// waits, and the pool holds one context: so there is always progress. False: this one had to go.
bool EngineCore::secure(Sequence& sequence, int64_t length) {
  const int64_t missing =
      model::KvCache::pages_for(length) - static_cast<int64_t>(sequence.kv.pages.size());
  while (cache_.num_free_pages() < missing) {
    if (prefix_.evict_one()) continue;
    Sequence& last = *running_.back();
    preempt(last);
    if (&last == &sequence) return false;
  }
  cache_.reserve(sequence.kv, length);
  return true;
}

bool EngineCore::is_running(const Sequence& sequence) const {
  return std::any_of(running_.begin(), running_.end(),
                     [&](const SequencePtr& s) { return s.get() == &sequence; });
}

// One token of every sequence that decodes, and prompts.
std::vector<EngineCore::Part> EngineCore::plan() {
  std::vector<Sequence*> decoding, prefilling;
  for (const SequencePtr& sequence : running_) {
    (sequence->num_pending() == 1 ? decoding : prefilling).push_back(sequence.get());
  }
  std::vector<Part> parts;
  // Rows of one token each come first: their logits are one product.
  for (Sequence* sequence : decoding) {
    if (!is_running(*sequence) || !secure(*sequence, sequence->kv.length + 1)) continue;
    parts.push_back({sequence, 1});
  }
  // Whoever will decode after this step waits for all of it, like those who do.
  const bool someone_waits =
      !parts.empty() || std::any_of(prefilling.begin(), prefilling.end(), [&](const Sequence* s) {
        return s->num_pending() <= tokens_beside_ && s->request.max_tokens > 1;
      });
  const int64_t left = options_.chunk_tokens - static_cast<int64_t>(parts.size());
  share_among_prompts(prefilling, someone_waits ? std::min(left, tokens_beside_) : left, parts);
  std::erase_if(parts, [&](const Part& part) { return !is_running(*part.sequence); });
  return parts;
}

// The oldest gets a quarter, so that nobody waits for ever; the rest goes to those who need least,
// so that a short prompt behind a long one is soon read.
void EngineCore::share_among_prompts(std::span<Sequence* const> prefilling, int64_t budget,
                                     std::vector<Part>& parts) {
  if (prefilling.empty()) return;
  std::vector<Part> shares;
  for (Sequence* sequence : prefilling) shares.push_back({sequence, 0});
  const auto give = [&](Part& share, int64_t most) {
    const int64_t given =
        std::min({share.sequence->num_pending() - share.num_tokens, most, budget});
    share.num_tokens += given;
    budget -= given;
  };
  give(shares.front(), std::max<int64_t>(1, budget / 4));
  std::stable_sort(shares.begin(), shares.end(), [](const Part& a, const Part& b) {
    return a.sequence->num_pending() < b.sequence->num_pending();
  });
  for (Part& share : shares) give(share, budget);
  for (const Part& share : shares) {
    if (share.num_tokens == 0 || !is_running(*share.sequence)) continue;
    if (secure(*share.sequence, share.sequence->kv.length + share.num_tokens)) {
      parts.push_back(share);
    }
  }
}

// How much of prompts a step may hold beside those who decode, from what this one took. How a
// prompt is cut changes no bits.
void EngineCore::learn_patience(std::span<const Part> parts, double seconds) {
  int64_t num_prompt = 0, num_decoding = 0;
  for (const Part& part : parts) {
    (part.num_tokens > 1 ? num_prompt : num_decoding) += part.num_tokens;
  }
  // One that was held up says nothing about the next: up slowly, down at once.
  if (num_prompt == 0) {
    decoding_seconds_ =
        decoding_seconds_ > 0 ? std::min(seconds, 1.05 * decoding_seconds_) : seconds;
  }
  if (num_decoding == 0 || 2 * num_prompt < tokens_beside_) return;  // says little
  const double patience =
      std::max(options_.patience_seconds, options_.patience_steps * decoding_seconds_);
  const double fitting = static_cast<double>(num_prompt) * patience / std::max(seconds, 1e-6);
  const int64_t most = options_.chunk_tokens;
  tokens_beside_ = static_cast<int64_t>(std::clamp(
      fitting, static_cast<double>(std::min(kLeastBeside, most)), static_cast<double>(most)));
}

bool EngineCore::step() {
  beat_();
  admit();
  const std::vector<Part> parts = plan();
  if (parts.empty()) return !waiting_.empty();
  if (std::any_of(parts.begin(), parts.end(), [](const Part& p) { return p.num_tokens > 1; })) {
    for (const SequencePtr& sequence : running_) sequence->request.sink->flush();
  }
  ++stats_.steps;
  const auto start = std::chrono::steady_clock::now();
  run(parts);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  stats_.longest_step_seconds = std::max(stats_.longest_step_seconds, taken.count());
  learn_patience(parts, taken.count());
  return true;
}

void EngineCore::cancel(Id id) {
  for (const SequencePtr& sequence : running_) {
    if (sequence->id == id) return finish(*sequence, FinishReason::cancelled);
  }
  for (const SequencePtr& sequence : waiting_) {
    if (sequence->id == id) return finish(*sequence, FinishReason::cancelled);
  }
}

void EngineCore::remove(Sequence& sequence) {
  cache_.truncate(sequence.kv, 0);
  const auto is_it = [&](const SequencePtr& s) { return s.get() == &sequence; };
  running_.remove_if(is_it);
  std::erase_if(waiting_, is_it);
}

void EngineCore::finish(Sequence& sequence, FinishReason reason) {
  const std::shared_ptr<RequestSink> sink = sequence.request.sink;
  const Finish finish{.reason = reason, .reused_tokens = sequence.num_reused};
  remove(sequence);
  sink->on_finish(finish);
}

void EngineCore::fail(Sequence& sequence, ErrorKind kind, const std::string& message) {
  const std::shared_ptr<RequestSink> sink = sequence.request.sink;
  remove(sequence);
  sink->on_error(kind, message);
}

void EngineCore::fail_all(ErrorKind kind, const std::string& message) {
  const auto end = [&](auto& sequences) {
    for (const SequencePtr& sequence : sequences) sequence->request.sink->on_error(kind, message);
    sequences.clear();
  };
  end(running_);
  end(waiting_);
}

EngineStats EngineCore::stats() const {
  EngineStats stats = stats_;
  stats.running = static_cast<int64_t>(running_.size());
  stats.waiting = static_cast<int64_t>(waiting_.size());
  stats.pages = cache_.num_pages();
  stats.free_pages = cache_.num_free_pages();
  stats.cached_pages = prefix_.num_pages();
  return stats;
}

}  // namespace dsmoe::infer

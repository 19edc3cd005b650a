// Prefill in chunks, decode by one, reuse by common prefix.
#include "infer/sequence/session.h"

#include <algorithm>

#include "infer/load_model.h"
#include "infer/sequence/workspace.h"
#include "kernels/memory.h"
#include "kernels/table.h"

namespace dsmoe::infer {
namespace {

int64_t positions_of(const model::Model& model, int64_t asked) {
  return asked > 0 ? std::min(asked, model.context) : model.context;
}

}  // namespace

Session::Session(const kernels::Context& context, const model::Model& model, const Options& options)
    : context_(context),
      model_(model),
      max_positions_(positions_of(model, options.max_positions)),
      chunk_tokens_(
          std::min(max_positions_, options.chunk_tokens > 0 ? options.chunk_tokens : kChunkTokens)),
      record_routing_(options.record_routing),
      cache_(context, model.kv_layers(), attention::KvCache::pages_for(max_positions_)),
      pass_(context, model, cache_,
            {.max_tokens = chunk_tokens_,
             .max_sequences = 1,
             .max_top_k = checked_top_k(model.config, options.experts_per_token),
             .keep_routing =
                 options.record_routing ? model::KeepRouting::yes : model::KeepRouting::no}),
      next_(context, model, pass_, 1) {
  routes_ = {.num_layers = model.config.num_moe_layers(), .top_k = pass_.limits().max_top_k};
}

Outcome Session::assign(std::span<const int32_t> tokens, const std::atomic<bool>* cancelled) {
  check_tokens(model_.config, tokens, "prompt");
  if (tokens.empty()) fail(ErrorKind::input, "the prompt has no tokens");
  if (static_cast<int64_t>(tokens.size()) > max_positions_) {
    fail(ErrorKind::input, "a prompt of {} tokens does not fit into the context of {}",
         tokens.size(), max_positions_);
  }
  const auto [ours, theirs] =
      std::mismatch(tokens_.begin(), tokens_.end(), tokens.begin(), tokens.end());
  const auto common = static_cast<int64_t>(ours - tokens_.begin());
  // The last token is always computed: its logits are wanted.
  num_reused_ = std::min(common, static_cast<int64_t>(tokens.size()) - 1);
  truncate(num_reused_);
  has_logits_ = false;
  for (auto rest = tokens.subspan(static_cast<std::size_t>(num_reused_)); !rest.empty();) {
    if (cancelled != nullptr && cancelled->load()) return Outcome::cancelled;
    const std::size_t count = std::min(rest.size(), static_cast<std::size_t>(chunk_tokens_));
    run(rest.first(count));
    rest = rest.subspan(count);
  }
  compute_logits();
  return Outcome::done;
}

void Session::append(int32_t token) {
  if (static_cast<int64_t>(tokens_.size()) >= max_positions_) {
    fail(ErrorKind::input, "the context of {} tokens is full", max_positions_);
  }
  has_logits_ = false;
  run({&token, 1});
  compute_logits();
}

// f, after which nothing is left of what a router failed at.
template <class F>
void Session::keep_sound(F&& f) {
  try {
    f();
  } catch (const model::BadScores&) {
    has_logits_ = false;
    truncate(num_sound_);
    throw;
  }
  num_sound_ = static_cast<int64_t>(tokens_.size());
}

void Session::run(std::span<const int32_t> tokens) {
  const model::Segment segment{.sequence = &sequence_,
                               .num_tokens = static_cast<int64_t>(tokens.size())};
  tensor::TensorView hidden;
  keep_sound([&] {
    hidden = pass_.run({.tokens = tokens, .segments = {&segment, 1}});
    if (record_routing_) {
      read_routes(context_, pass_, new_routes_);
      routes_.append(new_routes_.view());
    }
  });
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  last_hidden_ = hidden.rows(segment.num_tokens - 1, segment.num_tokens);
}

void Session::compute_logits() {
  next_.compute(last_hidden_);
  logits_.clear();
  has_logits_ = true;
}

std::span<const float> Session::logits() {
  if (!has_logits_) return {};
  if (logits_.empty()) {
    keep_sound([&] {
      const std::span<const float> row = next_.logits();
      logits_.assign(row.begin(), row.end());
    });
  }
  return logits_;
}

int32_t Session::choose(const kernels::SampleRule& rule) {
  DSMOE_CHECK(has_logits_, "nothing to choose from");
  int32_t token = -1;
  keep_sound([&] { token = next_.choose({&rule, 1}).front(); });
  return token;
}

void Session::truncate(int64_t length) {
  cache_.truncate(sequence_, length);
  tokens_.resize(static_cast<std::size_t>(length));
  num_sound_ = std::min(num_sound_, length);
  if (record_routing_) routes_.truncate(std::min(length, routes_.num_tokens()));
}

}  // namespace dsmoe::infer

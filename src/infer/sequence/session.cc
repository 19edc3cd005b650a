// Prefill in chunks, decode by one, reuse by common prefix.
#include "infer/session.h"

#include <algorithm>

#include "infer/load_model.h"
#include "infer/workspace.h"
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
      cache_(context, model.config, model.operand, model::KvCache::pages_for(max_positions_)),
      pass_(context, model, cache_,
            {.max_tokens = chunk_tokens_,
             .max_sequences = 1,
             .max_top_k = checked_top_k(model.config, options.experts_per_token)}),
      arena_("logits", context.table->allocator),
      device_logits_(arena_.tensor("logits", tensor::DType::F32, {1, model.config.vocab_size})),
      device_best_(pass_.ids().rows(0, 1)),
      device_choice_(pass_.ids().rows(1, 2)) {
  device_best_.shape = device_choice_.shape = {1};
  for (int64_t layer = 0; layer < model.config.num_hidden_layers; ++layer) {
    if (model.config.is_moe_layer(layer)) routing_.layers.push_back(layer);
  }
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

void Session::read(const tensor::TensorView& source, void* host) {
  keep_sound([&] { pass_.read(source, host); });
}

void Session::run(std::span<const int32_t> tokens) {
  const std::size_t first = tokens_.size();
  if (record_routing_) {
    routing_.slots.resize(first);  // a pass that threw may have left more
    routing_.slots.resize(first + tokens.size());
  }
  const auto observe = [&](int64_t, const moe::LayerState& state, const tensor::TensorView&) {
    if (!record_routing_ || !state.index) return;
    std::vector<int32_t> index(static_cast<std::size_t>(state.index.num_elements()));
    std::vector<float> gate(index.size());
    pass_.read(state.index, index.data());
    kernels::download(context_, state.gate, gate.data());
    const auto top_k = static_cast<std::ptrdiff_t>(state.index.dim(1));
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      const auto at = static_cast<std::ptrdiff_t>(t) * top_k;
      routing_.slots[first + t].push_back({{index.begin() + at, index.begin() + at + top_k},
                                           {gate.begin() + at, gate.begin() + at + top_k}});
    }
  };
  model::BlockObserver observer(observe);
  const model::Segment segment{.sequence = &sequence_,
                               .num_tokens = static_cast<int64_t>(tokens.size())};
  tensor::TensorView hidden;
  keep_sound([&] {
    hidden = pass_.run({.tokens = tokens,
                        .segments = {&segment, 1},
                        .observer = record_routing_ ? &observer : nullptr});
  });
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  last_hidden_ = hidden.rows(segment.num_tokens - 1, segment.num_tokens);
}

void Session::compute_logits() {
  pass_.most_likely(last_hidden_, device_logits_, device_best_);
  logits_.clear();
  has_logits_ = true;
}

std::span<const float> Session::logits() {
  if (!has_logits_) return {};
  if (logits_.empty()) {
    std::vector<float> logits(static_cast<std::size_t>(model_.config.vocab_size));
    read(device_logits_, logits.data());
    logits_ = std::move(logits);
  }
  return logits_;
}

int32_t Session::choose(const kernels::SampleRule& rule) {
  DSMOE_CHECK(has_logits_, "nothing to choose from");
  if (!rule.takes_best()) {
    kernels::sample_forward(context_, {.logits = device_logits_,
                                       .best = device_best_,
                                       .rule = {&rule, 1},
                                       .index = device_choice_});
  }
  int32_t token = -1;
  read(rule.takes_best() ? device_best_ : device_choice_, &token);
  return token;
}

void Session::truncate(int64_t length) {
  cache_.truncate(sequence_, length);
  tokens_.resize(static_cast<std::size_t>(length));
  num_sound_ = std::min(num_sound_, length);
  if (record_routing_) routing_.slots.resize(static_cast<std::size_t>(length));
}

}  // namespace dsmoe::infer

// Forward, the head's rows, and choices on the device or on all threads.
#include "infer/engine/engine_step.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/thread_pool.h"
#include "infer/sequence/token_score.h"
#include "kernels/memory.h"
#include "kernels/recording.h"
#include "kernels/router.h"

namespace dsmoe::infer {

EngineStep::EngineStep(const kernels::Context& context, const model::Model& model,
                       attention::KvCache& cache, const model::ForwardPass::Limits& limits,
                       std::function<void()> beat)
    : context_(context),
      beat_(std::move(beat)),
      vocabulary_(model.config.vocab_size),
      num_moe_layers_(model.config.num_moe_layers()),
      pass_(context, model, cache, limits),
      next_(context, model, pass_, limits.max_tokens) {}

EngineStep::Result& EngineStep::run(std::span<const EnginePart> parts) {
  int64_t top_k = 0;
  for (const EnginePart& part : parts) top_k = std::max(top_k, part.sequence->top_k);
  was_forwarded_ = false;
  const tensor::TensorView hidden = forward(parts, top_k);
  was_forwarded_ = true;
  // The head is under way before anything is waited for.
  result_.rows = wanted_rows(parts);
  compute_rows(hidden);
  read_routes(context_, pass_, result_.routes);
  read_hidden(hidden, parts);
  return result_;
}

void EngineStep::read_hidden(const tensor::TensorView& hidden, std::span<const EnginePart> parts) {
  const auto pools = [](const EnginePart& part) {
    return part.sequence->request.pooling != Pooling::none;
  };
  if (std::none_of(parts.begin(), parts.end(), pools)) return;
  result_.hidden.resize(hidden.num_bytes());
  result_.hidden_type = hidden.dtype;
  kernels::download(context_, hidden, result_.hidden.data());
}

DrawKey EngineStep::draw_key(const Row& row) {
  const EngineSequence& sequence = *row.sequence;
  return {.seed = sequence.request.seed,
          .choice = sequence.request.choice,
          .position = static_cast<int64_t>(sequence.tokens.size())};
}

tensor::TensorView EngineStep::forward(std::span<const EnginePart> parts, int64_t top_k) {
  std::vector<model::Segment> segments;
  result_.tokens.clear();
  for (const EnginePart& part : parts) {
    const auto begin = part.sequence->tokens.begin() + part.sequence->kv.length;
    result_.tokens.insert(result_.tokens.end(), begin, begin + part.num_tokens);
    segments.push_back({.sequence = &part.sequence->kv, .num_tokens = part.num_tokens});
  }
  const RoutingInput routing = routing_input(parts, top_k);
  // Passes that are watched are not recorded. Where they can be (a GPU) a step takes milliseconds,
  // and whoever runs it gives the sign of life.
  const auto observe = [&](int64_t, const moe::LayerTape&, const tensor::TensorView&) { beat_(); };
  model::BlockObserver observer(observe);
  const bool is_recorded = kernels::Recording::possible(context_);
  return pass_.run({.tokens = result_.tokens,
                    .segments = segments,
                    .top_k = top_k,
                    .experts_of_token = routing.experts_of_token,
                    .replayed_index = routing.replayed,
                    .observer = is_recorded ? nullptr : &observer});
}

// What the tokens of a step differ in: how many experts they choose, and whether they choose at
// all.
EngineStep::RoutingInput EngineStep::routing_input(std::span<const EnginePart> parts,
                                                   int64_t top_k) const {
  RoutingInput input;
  if (num_moe_layers_ == 0) return input;
  const auto num_tokens = static_cast<int64_t>(result_.tokens.size());
  bool any_replay = false, all_equal = true;
  for (const EnginePart& part : parts) {
    input.experts_of_token.insert(input.experts_of_token.end(),
                                  static_cast<std::size_t>(part.num_tokens),
                                  static_cast<int32_t>(part.sequence->top_k));
    any_replay = any_replay || part.sequence->request.is_replayed();
    all_equal = all_equal && part.sequence->top_k == top_k;
  }
  if (all_equal) input.experts_of_token.clear();
  if (!any_replay) return input;
  input.replayed.assign(static_cast<std::size_t>(num_moe_layers_ * num_tokens * top_k), -1);
  int64_t row = 0;
  for (const EnginePart& part : parts) {
    const EngineSequence& sequence = *part.sequence;
    const std::span<const int32_t> given =
        sequence.request.replayed ? *sequence.request.replayed : std::span<const int32_t>();
    for (int64_t i = 0; i < part.num_tokens; ++i, ++row) {
      const auto from =
          static_cast<std::size_t>(sequence.kv.length + i) * sequence.open.slots_per_token();
      for (int64_t layer = 0; layer < num_moe_layers_; ++layer) {
        int32_t* slots = input.replayed.data() + (layer * num_tokens + row) * top_k;
        if (from < given.size()) {
          std::copy_n(given.begin() + static_cast<std::ptrdiff_t>(from) + layer * sequence.top_k,
                      sequence.top_k, slots);
        } else {
          slots[0] = kernels::kChooseFreely;
        }
      }
    }
  }
  return input;
}

std::vector<EngineStep::Row> EngineStep::wanted_rows(std::span<const EnginePart> parts) {
  std::vector<Row> rows;
  int64_t first = 0;
  for (const EnginePart& part : parts) {
    EngineSequence& sequence = *part.sequence;
    if (sequence.request.scores_prompt) {
      const int64_t end = std::min(sequence.kv.length, sequence.num_prompt - 1);
      for (int64_t p = std::max(part.begin, sequence.prompt_scored - 1); p < end; ++p) {
        rows.push_back({.sequence = &sequence,
                        .hidden_row = first + p - part.begin,
                        .scored_position = p + 1});
      }
    }
    if (sequence.num_pending() == 0 && sequence.request.max_tokens > 0) {
      rows.push_back({.sequence = &sequence,
                      .hidden_row = first + part.num_tokens - 1,
                      .scored_position = -1});
    }
    first += part.num_tokens;
  }
  return rows;
}

// Logits of neighbouring rows are one product. Where nothing else decides, the device chooses and
// the logits stay there; other choices and scores are made on all threads.
void EngineStep::compute_rows(const tensor::TensorView& hidden) {
  std::vector<Row>& rows = result_.rows;
  for (std::size_t begin = 0; begin < rows.size();) {
    std::size_t end = begin + 1;
    while (end < rows.size() && rows[end].hidden_row == rows[end - 1].hidden_row + 1 &&
           static_cast<int64_t>(end - begin) < next_.max_rows()) {
      ++end;
    }
    const std::span<Row> group = std::span(rows).subspan(begin, end - begin);
    const int64_t first = group.front().hidden_row;
    choose_tokens(hidden.rows(first, first + static_cast<int64_t>(group.size())), group);
    finish_rows(group);
    beat_();
    begin = end;
  }
}

// Of rows for which nothing but the logits decides. A row whose logits are broken is left to
// finish_row(), which says which one is.
void EngineStep::choose_tokens(const tensor::TensorView& hidden, std::span<Row> rows) {
  const auto is_plain = [](const Row& row) {
    const EngineRequest& request = row.sequence->request;
    return row.scored_position < 0 && request.num_top_scores < 0 && !row.sequence->guide &&
           row.sequence->num_answer() >= request.min_tokens && needs_logits_alone(request.sampler);
  };
  if (std::none_of(rows.begin(), rows.end(), is_plain)) {
    return next_.compute(hidden, NextTokens::Wanted::logits);
  }
  next_.compute(hidden);
  std::vector<kernels::SampleRule> rules;
  for (const Row& row : rows) {
    rules.push_back(is_plain(row) ? sample_rule(row.sequence->request.sampler, draw_key(row))
                                  : kernels::SampleRule{.top_k = 1});
  }
  const std::span<const int32_t> chosen = next_.choose(rules);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (is_plain(rows[i])) rows[i].token = chosen[i];
  }
}

void EngineStep::finish_rows(std::span<Row> rows) {
  const auto is_chosen = [](const Row& row) { return row.token >= 0; };
  if (std::all_of(rows.begin(), rows.end(), is_chosen)) return;
  const auto vocabulary = static_cast<std::size_t>(vocabulary_);
  const std::span<float> logits = next_.logits();
  const auto count = static_cast<int64_t>(rows.size());
  parallel_for(*context_.pool, count, 1, [&](int64_t first, int64_t last) {
    for (auto i = static_cast<std::size_t>(first); i < static_cast<std::size_t>(last); ++i) {
      if (!is_chosen(rows[i])) finish_row(rows[i], logits.subspan(i * vocabulary, vocabulary));
    }
  });
}

void EngineStep::finish_row(Row& row, std::span<float> logits) const {
  EngineSequence& sequence = *row.sequence;
  const EngineRequest& request = sequence.request;
  try {
    if (row.scored_position >= 0) {
      const int32_t target = sequence.tokens[static_cast<std::size_t>(row.scored_position)];
      row.score = LogProbs(logits).score(target, request.num_top_scores);
      return;
    }
    std::optional<LogProbs> log_probs;
    if (request.num_top_scores >= 0) log_probs.emplace(logits);
    std::span<const uint64_t> allowed;
    if (sequence.guide) {
      const bool may_stop = sequence.num_answer() >= request.min_tokens;
      allowed = sequence.guide->allowed(request.max_tokens - sequence.num_answer(),
                                        may_stop ? Guide::MayStop::yes : Guide::MayStop::no);
      row.is_over = allowed.empty();
      if (row.is_over) return;
    }
    std::vector<std::pair<int32_t, float>> hidden_stops;
    if (sequence.num_answer() < request.min_tokens) {
      for (const int32_t stop : request.stop_ids) {
        float& logit = logits[static_cast<std::size_t>(stop)];
        if (!std::isfinite(logit)) continue;  // the sampler refuses it
        hidden_stops.emplace_back(stop, std::exchange(logit, kNeverChosen));
      }
    }
    row.token = sequence.sampler->sample({.logits = logits,
                                          .prompt = sequence.prompt(),
                                          .answer = sequence.answer(),
                                          .key = draw_key(row),
                                          .allowed = allowed});
    for (auto stop = hidden_stops.rbegin(); stop != hidden_stops.rend(); ++stop) {
      logits[static_cast<std::size_t>(stop->first)] = stop->second;
    }
    if (log_probs) row.score = log_probs->score(row.token, request.num_top_scores);
  } catch (const Error& e) {
    row.error = e.what();
  }
}

}  // namespace dsmoe::infer

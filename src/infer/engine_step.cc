// One forward pass over the planned parts, and what it gives each sequence: routes, scores, a
// token.
#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/thread_pool.h"
#include "infer/engine_core.h"
#include "infer/engine_sequence.h"
#include "infer/token_score.h"
#include "kernels/memory.h"
#include "kernels/recording.h"
#include "kernels/router.h"
#include "kernels/sample.h"

namespace dsmoe::infer {

// A row of hidden states whose logits are wanted: to choose a token, or to score the one that
// followed.
struct EngineCore::Row {
  Sequence* sequence;
  int64_t hidden_row;
  int64_t scored_position;  // of the prompt; -1: choose a token
  int32_t token = -1;       // chosen
  TokenScore score;
  std::string error;
};

DrawKey EngineCore::draw_key(const Row& row) {
  const Sequence& sequence = *row.sequence;
  return {.seed = sequence.request.seed,
          .choice = sequence.request.choice,
          .position = static_cast<int64_t>(sequence.tokens.size())};
}

// A sequence whose numbers break must not take the others with it: they run again without it, to
// the same bits. What else fails behind the pass is no sequence's fault, and nothing can run again:
// its tokens count as forwarded.
void EngineCore::run(std::span<const Part> parts) {
  int64_t top_k = 0;
  for (const Part& part : parts) top_k = std::max(top_k, part.sequence->top_k);
  tensor::TensorView hidden;
  try {
    hidden = forward(parts, top_k);
  } catch (const Error& e) {
    if (parts.size() == 1) return fail(*parts[0].sequence, e.kind(), e.what());
    for (const Part& part : parts) run({&part, 1});
    return;
  }
  stats_.forwarded_tokens += static_cast<int64_t>(step_tokens_.size());
  // The head is under way before anything is waited for.
  std::vector<Row> rows = wanted_rows(parts);
  compute_rows(hidden, rows);
  try {
    read_routing(parts, top_k);
  } catch (const model::BadScores& e) {
    return run_without(parts, e);
  }
  deliver(parts, rows);
}

// The step again, as if it had not been, without the sequence whose router failed.
void EngineCore::run_without(std::span<const Part> parts, const model::BadScores& error) {
  std::vector<Part> others;
  for (const Part& part : parts) {
    cache_.truncate(part.sequence->kv, part.sequence->kv.length - part.num_tokens);
    if (&part != &parts[error.segment()]) others.push_back(part);
  }
  fail(*parts[error.segment()].sequence, ErrorKind::internal, error.what());
  beat_();
  if (!others.empty()) run(others);
}

tensor::TensorView EngineCore::forward(std::span<const Part> parts, int64_t top_k) {
  std::vector<model::Segment> segments;
  step_tokens_.clear();
  for (const Part& part : parts) {
    const auto begin = part.sequence->tokens.begin() + part.sequence->kv.length;
    step_tokens_.insert(step_tokens_.end(), begin, begin + part.num_tokens);
    segments.push_back({.sequence = &part.sequence->kv, .num_tokens = part.num_tokens});
  }
  const RoutingInput routing = routing_input(parts, top_k);
  // Passes that are watched are not recorded. Where they can be (a GPU) a step takes milliseconds,
  // and step() gives the sign of life.
  const auto observe = [&](int64_t, const moe::LayerState&, const tensor::TensorView&) { beat_(); };
  model::BlockObserver observer(observe);
  const bool is_recorded = kernels::Recording::possible(context_);
  return pass_.run({.tokens = step_tokens_,
                    .segments = segments,
                    .top_k = top_k,
                    .experts_of_token = routing.experts_of_token,
                    .replayed_index = routing.replayed,
                    .observer = is_recorded ? nullptr : &observer});
}

// What the tokens of a step differ in: how many experts they choose, and whether they choose at
// all.
EngineCore::RoutingInput EngineCore::routing_input(std::span<const Part> parts,
                                                   int64_t top_k) const {
  RoutingInput input;
  if (num_moe_layers_ == 0) return input;
  const auto num_tokens = static_cast<int64_t>(step_tokens_.size());
  bool any_replay = false, all_equal = true;
  for (const Part& part : parts) {
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
  for (const Part& part : parts) {
    const Sequence& sequence = *part.sequence;
    const std::span<const int32_t> given =
        sequence.request.replayed ? *sequence.request.replayed : std::span<const int32_t>();
    for (int64_t i = 0; i < part.num_tokens; ++i, ++row) {
      const auto from = static_cast<std::size_t>(sequence.kv.length + i) * sequence.route_size;
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

// Brings the step's routing to [tokens, MoE layers, top_k], counts it, and gives each sequence its
// part.
void EngineCore::read_routing(std::span<const Part> parts, int64_t top_k) {
  const auto tokens = static_cast<int64_t>(step_tokens_.size());
  std::vector<int32_t> index(static_cast<std::size_t>(num_moe_layers_ * tokens * top_k));
  std::vector<float> gate(index.size());
  step_index_.resize(index.size());
  step_gate_.resize(index.size());
  if (num_moe_layers_ > 0) {
    pass_.read(pass_.routing().index, index.data());
    kernels::download(context_, pass_.routing().gate, gate.data());
  }
  for (int64_t layer = 0; layer < num_moe_layers_; ++layer) {
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t from = (layer * tokens + t) * top_k;
      const int64_t to = (t * num_moe_layers_ + layer) * top_k;
      std::copy_n(index.begin() + from, top_k, step_index_.begin() + to);
      std::copy_n(gate.begin() + from, top_k, step_gate_.begin() + to);
    }
  }
  if (num_moe_layers_ > 0) load_.add(step_tokens_, step_index_, top_k);
  int64_t row = 0;
  for (const Part& part : parts) {
    if (num_moe_layers_ > 0) take_routes(part, row, top_k);
    if (part.sequence->writes_prefix) keep_blocks(*part.sequence, part.num_tokens);
    row += part.num_tokens;
  }
}

void EngineCore::take_routes(const Part& part, int64_t first_row, int64_t top_k) {
  Sequence& sequence = *part.sequence;
  std::vector<int32_t>& index = sequence.open_index;
  std::vector<float>& gate = sequence.open_gate;
  const std::size_t before = index.size();
  for (int64_t row = first_row * num_moe_layers_;
       row < (first_row + part.num_tokens) * num_moe_layers_; ++row) {
    const auto from = static_cast<std::ptrdiff_t>(row * top_k);
    index.insert(index.end(), step_index_.begin() + from,
                 step_index_.begin() + from + sequence.top_k);
    gate.insert(gate.end(), step_gate_.begin() + from, step_gate_.begin() + from + sequence.top_k);
  }
  sequence.add_routes(sequence.kv.length - part.num_tokens, std::span(index).subspan(before),
                      std::span(gate).subspan(before));
  if (!sequence.writes_prefix) {
    index.clear();
    gate.clear();
  }
}

// Blocks that the step completed become findable.
void EngineCore::keep_blocks(Sequence& sequence, int64_t num_new) {
  constexpr int64_t kBlock = kernels::kKeyBlock;
  const std::size_t slots = kBlock * sequence.route_size;
  const int64_t before = sequence.kv.length - num_new;
  for (int64_t b = before / kBlock; (b + 1) * kBlock <= sequence.kv.length; ++b) {
    const auto end = static_cast<std::ptrdiff_t>(slots);
    std::vector<int32_t>& index = sequence.open_index;
    std::vector<float>& gate = sequence.open_gate;
    PrefixCache::Block block{.page = sequence.kv.pages[static_cast<std::size_t>(b)],
                             .index = {index.begin(), index.begin() + end},
                             .gate = {gate.begin(), gate.begin() + end}};
    index.erase(index.begin(), index.begin() + end);
    gate.erase(gate.begin(), gate.begin() + end);
    sequence.node = prefix_.insert(
        sequence.scope(), sequence.node,
        std::span(sequence.tokens).subspan(static_cast<std::size_t>(b * kBlock), kBlock),
        std::move(block));
    if (sequence.node != PrefixCache::kRoot) {
      take_kept_page(sequence, static_cast<std::size_t>(b));
      continue;
    }
    sequence.writes_prefix = false;
    index.clear();
    gate.clear();
    return;
  }
}

// Another sequence's page of the same block holds the same bits. Two of them would make the cache's
// one impossible to evict while this sequence holds what follows it, and the pool may have no room
// for both.
void EngineCore::take_kept_page(Sequence& sequence, std::size_t block_idx) {
  int32_t& page = sequence.kv.pages[block_idx];
  const int32_t kept = prefix_.block(sequence.node).page;
  if (page == kept) return;
  cache_.share(kept);
  cache_.release(std::exchange(page, kept));
}

std::vector<EngineCore::Row> EngineCore::wanted_rows(std::span<const Part> parts) const {
  std::vector<Row> rows;
  int64_t first = 0;
  for (const Part& part : parts) {
    Sequence& sequence = *part.sequence;
    const int64_t before = sequence.kv.length - part.num_tokens;
    if (sequence.request.scores_prompt) {
      const int64_t end = std::min(sequence.kv.length, sequence.num_prompt() - 1);
      for (int64_t p = std::max(before, sequence.prompt_scored - 1); p < end; ++p) {
        rows.push_back(
            {.sequence = &sequence, .hidden_row = first + p - before, .scored_position = p + 1});
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
void EngineCore::compute_rows(const tensor::TensorView& hidden, std::vector<Row>& rows) {
  for (std::size_t begin = 0; begin < rows.size();) {
    std::size_t end = begin + 1;
    while (end < rows.size() && rows[end].hidden_row == rows[end - 1].hidden_row + 1 &&
           static_cast<int64_t>(end - begin) < logit_rows_) {
      ++end;
    }
    const auto count = static_cast<int64_t>(end - begin);
    const tensor::TensorView logits = device_logits_.rows(0, count);
    const std::span<Row> group = std::span(rows).subspan(begin, end - begin);
    compute_logits(hidden.rows(group.front().hidden_row, group.front().hidden_row + count), logits,
                   group);
    finish_rows(logits, group);
    beat_();
    begin = end;
  }
}

// Also the tokens of rows for which nothing but the logits decides. A row whose logits are broken
// is left to finish_row(), which says which one is.
void EngineCore::compute_logits(const tensor::TensorView& hidden, const tensor::TensorView& logits,
                                std::span<Row> rows) {
  const auto is_plain = [](const Row& row) {
    const EngineRequest& request = row.sequence->request;
    return row.scored_position < 0 && request.num_top_scores < 0 &&
           row.sequence->num_answer() >= request.min_tokens && needs_logits_alone(request.sampler);
  };
  if (std::none_of(rows.begin(), rows.end(), is_plain)) return pass_.logits(hidden, logits);
  const tensor::TensorView best = device_best_.rows(0, logits.dim(0));
  pass_.most_likely(hidden, logits, best);
  std::vector<kernels::SampleRule> rules;
  for (const Row& row : rows) {
    rules.push_back(is_plain(row) ? sample_rule(row.sequence->request.sampler, draw_key(row))
                                  : kernels::SampleRule{.top_k = 1});
  }
  tensor::TensorView choice = best;
  if (!std::all_of(rules.begin(), rules.end(),
                   [](const auto& rule) { return rule.takes_best(); })) {
    choice = device_choice_.rows(0, logits.dim(0));
    kernels::sample_forward(context_,
                            {.logits = logits, .best = best, .rule = rules, .index = choice});
  }
  kernels::download(context_, choice, host_choice_.data());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (is_plain(rows[i])) rows[i].token = host_choice_[i];
  }
}

void EngineCore::finish_rows(const tensor::TensorView& logits, std::span<Row> rows) {
  const auto is_chosen = [](const Row& row) { return row.token >= 0; };
  if (std::all_of(rows.begin(), rows.end(), is_chosen)) return;
  const auto vocabulary = static_cast<std::size_t>(model_.config.vocab_size);
  kernels::download(context_, logits, host_logits_.data());
  parallel_for(*context_.pool, logits.dim(0), 1, [&](int64_t first, int64_t last) {
    for (auto i = static_cast<std::size_t>(first); i < static_cast<std::size_t>(last); ++i) {
      if (is_chosen(rows[i])) continue;
      finish_row(rows[i], std::span(host_logits_).subspan(i * vocabulary, vocabulary));
    }
  });
}

void EngineCore::finish_row(Row& row, std::span<float> logits) const {
  const Sequence& sequence = *row.sequence;
  const EngineRequest& request = sequence.request;
  try {
    if (row.scored_position >= 0) {
      const int32_t target = sequence.tokens[static_cast<std::size_t>(row.scored_position)];
      row.score = LogProbs(logits).score(target, request.num_top_scores);
      return;
    }
    std::optional<LogProbs> log_probs;
    if (request.num_top_scores >= 0) log_probs.emplace(logits);
    std::vector<std::pair<int32_t, float>> hidden_stops;
    if (sequence.num_answer() < request.min_tokens) {
      for (const int32_t stop : request.stop_ids) {
        float& logit = logits[static_cast<std::size_t>(stop)];
        if (!std::isfinite(logit)) continue;  // the sampler refuses it
        hidden_stops.emplace_back(stop, std::exchange(logit, kNeverChosen));
      }
    }
    row.token = sequence.sampler->sample(
        {.logits = logits,
         .prompt = request.prompt,
         .answer = std::span(sequence.tokens).subspan(request.prompt.size()),
         .key = draw_key(row)});
    for (auto stop = hidden_stops.rbegin(); stop != hidden_stops.rend(); ++stop) {
      logits[static_cast<std::size_t>(stop->first)] = stop->second;
    }
    if (log_probs) row.score = log_probs->score(row.token, request.num_top_scores);
  } catch (const Error& e) {
    row.error = e.what();
  }
}

void EngineCore::deliver(std::span<const Part> parts, std::vector<Row>& rows) {
  for (Row& row : rows) {
    if (!is_running(*row.sequence)) continue;  // ended by a row before
    Sequence& sequence = *row.sequence;
    if (!row.error.empty()) {
      fail(sequence, ErrorKind::internal, row.error);
    } else if (row.scored_position >= 0) {
      sequence.request.sink->on_prompt_score(row.scored_position, row.score);
      sequence.prompt_scored = row.scored_position + 1;
    } else {
      take_token(sequence, row.token, sequence.request.num_top_scores >= 0 ? &row.score : nullptr);
    }
  }
  for (const Part& part : parts) {
    if (is_running(*part.sequence) && part.sequence->num_pending() == 0) {
      finish(*part.sequence, FinishReason::length);  // max_tokens 0
    }
  }
}

void EngineCore::take_token(Sequence& sequence, int32_t token, const TokenScore* score) {
  const EngineRequest& request = sequence.request;
  if (std::find(request.stop_ids.begin(), request.stop_ids.end(), token) !=
      request.stop_ids.end()) {
    return finish(sequence, FinishReason::stop_token);
  }
  sequence.tokens.push_back(token);
  ++stats_.answer_tokens;
  if (request.sink->on_token(token, score) == Next::stop) {
    return finish(sequence, FinishReason::stopped);
  }
  if (sequence.num_answer() == request.max_tokens) return finish(sequence, FinishReason::length);
  if (sequence.kv.length == model_.context) return finish(sequence, FinishReason::context);
}

}  // namespace dsmoe::infer

// The loops of a measurement, and the count of what they must read and multiply.
#include "bench/bench_run.h"

#include <algorithm>
#include <chrono>
#include <set>

#include "infer/sequence/workspace.h"
#include "kernels/memory.h"
#include "kernels/table.h"

namespace dsmoe::app {
namespace {

using Clock = std::chrono::steady_clock;

int64_t most(const std::vector<BenchTest>& tests, int64_t (*of)(const BenchTest&)) {
  int64_t largest = 1;
  for (const BenchTest& test : tests) largest = std::max(largest, of(test));
  return largest;
}

int64_t tokens_of_pass(const BenchTest& test) {
  return test.kind == BenchTest::Kind::prompt ? std::min(test.tokens, infer::kChunkTokens)
                                              : test.batch;
}
int64_t pages_of(const BenchTest& test) {
  return test.batch * attention::KvCache::pages_for(test.tokens);
}

double stack_bytes(const kernels::WeightStack& stack) {
  return stack ? static_cast<double>(stack.num_bytes()) : 0;
}
double expert_bytes(const moe::ExpertWeights& weights) {
  return stack_bytes(weights.gate) + stack_bytes(weights.up) + stack_bytes(weights.down);
}

// Everything a pass reads whatever its routing: all but the embedding, of which it looks up rows,
// and the routed experts.
double common_bytes(const model::Model& model) {
  const model::Parameters& parameters = model.parameters.forward;
  double bytes = stack_bytes(parameters.head);
  for (const model::BlockWeights& block : parameters.blocks) {
    bytes += stack_bytes(block.attention.qkv) + stack_bytes(block.attention.out) +
             stack_bytes(block.ffn.centroids) + expert_bytes(block.ffn.shared);
  }
  return bytes;
}

// Of one routed expert.
double routed_expert_bytes(const model::Model& model) {
  for (const model::BlockWeights& block : model.parameters.forward.blocks) {
    if (block.ffn.routed) {
      return expert_bytes(block.ffn.routed) / static_cast<double>(block.ffn.routed.gate.count);
    }
  }
  return 0;
}

}  // namespace

std::string BenchTest::name() const {
  const std::string text = (kind == Kind::prompt ? "pp" : "tg") + std::to_string(tokens);
  return batch == 1 ? text : text + " x " + std::to_string(batch);
}

double weight_bytes(const model::Model& model) {
  double bytes =
      common_bytes(model) + static_cast<double>(model.parameters.forward.embedding.num_bytes());
  for (const model::BlockWeights& block : model.parameters.forward.blocks) {
    bytes += expert_bytes(block.ffn.routed);
  }
  return bytes;
}

BenchRun::BenchRun(const kernels::Context& context, const model::Model& model,
                   const std::vector<BenchTest>& tests)
    : context_(context),
      model_(model),
      vocabulary_(model.config.vocab_size),
      cache_(context, model.kv_layers(), most(tests, pages_of)),
      pass_(context, model, cache_,
            {.max_tokens = most(tests, tokens_of_pass),
             .max_sequences = most(tests, [](const BenchTest& test) { return test.batch; })}),
      arena_("logits", context.table->allocator),
      logits_(arena_.tensor(
          "logits", tensor::DType::F32,
          {most(tests, [](const BenchTest& test) { return test.batch; }), vocabulary_})),
      best_(pass_.ids()),
      chosen_(static_cast<std::size_t>(logits_.dim(0))) {
  best_.shape = {logits_.dim(0)};
}

// `tokens` more of every sequence.
void BenchRun::pass(std::vector<attention::KvSequence>& sequences, int64_t tokens,
                    model::BlockObserver* observer) {
  tokens_.clear();
  std::vector<model::Segment> segments;
  for (attention::KvSequence& sequence : sequences) {
    segments.push_back({.sequence = &sequence, .num_tokens = tokens});
    for (int64_t i = 0; i < tokens; ++i) {
      tokens_.push_back(
          static_cast<int32_t>(rng_.below(drawn_++, static_cast<uint64_t>(vocabulary_))));
    }
  }
  hidden_ = pass_.run({.tokens = tokens_, .segments = segments, .observer = observer});
}

// The most likely ids after the last `rows` rows, on the host.
void BenchRun::finish(int64_t rows) {
  const int64_t all = hidden_.dim(0);
  const tensor::TensorView best = best_.rows(0, rows);
  pass_.most_likely(hidden_.rows(all - rows, all), logits_.rows(0, rows), best);
  pass_.read(best, chosen_.data());
  for (int64_t i = 0; i < rows; ++i) {
    if (chosen_[static_cast<std::size_t>(i)] < 0) {
      fail(ErrorKind::input, "the model's logits are not finite (NaN or infinity)");
    }
  }
}

double BenchRun::run(const BenchTest& test) {
  std::vector<attention::KvSequence> sequences(static_cast<std::size_t>(test.batch));
  kernels::download(context_, best_, chosen_.data());  // waits for what came before
  const Clock::time_point start = Clock::now();
  if (test.kind == BenchTest::Kind::prompt) {
    for (int64_t done = 0; done < test.tokens; done += infer::kChunkTokens) {
      pass(sequences, std::min(infer::kChunkTokens, test.tokens - done), nullptr);
    }
    finish(1);
  } else {
    for (int64_t step = 0; step < test.tokens; ++step) {
      pass(sequences, 1, nullptr);
      finish(test.batch);
    }
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  for (attention::KvSequence& sequence : sequences) cache_.truncate(sequence, 0);
  return seconds;
}

BenchCost BenchRun::cost(const BenchTest& test) {
  const bool prompt = test.kind == BenchTest::Kind::prompt;
  const int64_t passes =
      prompt ? (test.tokens + infer::kChunkTokens - 1) / infer::kChunkTokens : test.tokens;
  double touched = 0;  // experts of all layers
  const auto count = [&](int64_t, const moe::LayerTape& tape, const tensor::TensorView&) {
    if (!tape.index) return;
    std::vector<int32_t> index(static_cast<std::size_t>(tape.index.num_elements()));
    pass_.read(tape.index, index.data());
    const std::set<int32_t> distinct(index.begin(), index.end());
    touched += static_cast<double>(distinct.size() - distinct.count(-1));
  };
  model::BlockObserver observer(count);
  std::vector<attention::KvSequence> sequences(static_cast<std::size_t>(test.batch));
  pass(sequences, prompt ? tokens_of_pass(test) : 1, &observer);
  for (attention::KvSequence& sequence : sequences) cache_.truncate(sequence, 0);

  const model::ModelConfig& config = model_.config;
  const auto tokens = static_cast<double>(test.tokens * test.batch);
  const auto kv = static_cast<double>(config.kv_bytes_per_token(model_.operand));
  BenchCost cost;
  // Keys and values: a prompt reads what earlier chunks left, decoding all earlier positions.
  const double positions =
      prompt ? static_cast<double>(passes * (passes - 1) / 2 * infer::kChunkTokens)
             : static_cast<double>(test.tokens * (test.tokens + 1) / 2 * test.batch);
  cost.bytes =
      static_cast<double>(passes) * (common_bytes(model_) + touched * routed_expert_bytes(model_)) +
      positions * kv;
  cost.flops = tokens * config.forward_flops_per_token((test.tokens + 1) / 2);
  if (prompt) {  // only the last token needs the head
    cost.flops -= (tokens - 1) * 2 * static_cast<double>(vocabulary_ * config.hidden_size);
  }
  const int64_t layers = config.num_moe_layers();
  cost.experts_per_layer = layers > 0 ? touched / static_cast<double>(layers) : 0;
  return cost;
}

}  // namespace dsmoe::app

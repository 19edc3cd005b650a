// One sequence in chunks; logits in smaller pieces of rows.
#include "infer/sequence/trace.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "infer/load_model.h"
#include "infer/sequence/workspace.h"
#include "kernels/memory.h"
#include "kernels/pack.h"
#include "kernels/table.h"

namespace dsmoe::infer {

void check_tokens(const model::ModelConfig& config, std::span<const int32_t> tokens,
                  std::string_view what) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= config.vocab_size) {
      fail(ErrorKind::input,
           "{}: token {} (counted from 0) has id {}, the vocabulary holds 0 to {}", what, i,
           tokens[i], config.vocab_size - 1);
    }
  }
}

int64_t first_non_finite(std::span<const float> values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) return static_cast<int64_t>(i);
  }
  return -1;
}

namespace {

// Layer by layer, as a pass takes them: from what is token by token.
std::vector<int32_t> replay_of_pass(const model::ModelConfig& config, std::span<const int32_t> rows,
                                    int64_t num_tokens, int64_t top_k) {
  const int64_t layers = config.num_moe_layers();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto slots = rows.subspan(i - i % static_cast<std::size_t>(top_k));
    const bool is_again =
        rows[i] >= 0 &&
        std::ranges::count(slots.first(static_cast<std::size_t>(top_k)), rows[i]) > 1;
    if (rows[i] >= -1 && rows[i] < config.n_routed_experts && !is_again) continue;
    fail(ErrorKind::input, "expert {} was given to take{}; expected -1 to {}, each once a token",
         rows[i], is_again ? " twice" : "", config.n_routed_experts - 1);
  }
  std::vector<int32_t> by_layer(rows.size());
  for (int64_t t = 0; t < num_tokens; ++t) {
    for (int64_t l = 0; l < layers; ++l) {
      std::copy_n(rows.data() + (t * layers + l) * top_k, top_k,
                  by_layer.data() + (l * num_tokens + t) * top_k);
    }
  }
  return by_layer;
}

// Host numbers of the operand type, widened.
std::vector<float> widened(model::ForwardPass& pass, const tensor::TensorView& states) {
  std::vector<std::byte> bytes(states.num_bytes());
  pass.read(states, bytes.data());
  tensor::TensorView host = states;
  host.data = bytes.data();
  host.device = tensor::Device::cpu;
  std::vector<float> values(static_cast<std::size_t>(states.num_elements()));
  kernels::convert_elements(
      host, {.data = values.data(), .dtype = tensor::DType::F32, .shape = states.shape});
  return values;
}

}  // namespace

Outcome trace_sequence(const kernels::Context& context, const model::Model& model,
                       std::span<const int32_t> tokens, const TraceOptions& options,
                       const TraceSink& sink) {
  const auto num_tokens = static_cast<int64_t>(tokens.size());
  check_tokens(model.config, tokens, "input");
  if (num_tokens < 1 || num_tokens > model.context) {
    fail(ErrorKind::input, "{} tokens were given, 1 to {} fit into the context", num_tokens,
         model.context);
  }
  const int64_t vocabulary = model.config.vocab_size;
  const int64_t chunk =
      std::min(num_tokens, options.chunk_tokens > 0 ? options.chunk_tokens : kChunkTokens);
  const int64_t rows = logit_rows(vocabulary, chunk);
  const int64_t top_k = checked_top_k(model.config, options.top_k);
  const auto slots = static_cast<std::size_t>(model.config.num_moe_layers() * top_k);
  if (!options.replayed.empty() &&
      options.replayed.size() != static_cast<std::size_t>(num_tokens) * slots) {
    fail(ErrorKind::input,
         "{} experts were given to take; {} tokens of {} MoE layers with {} experts each need {}",
         options.replayed.size(), num_tokens, model.config.num_moe_layers(), top_k,
         static_cast<std::size_t>(num_tokens) * slots);
  }
  attention::KvCache cache(context, model.kv_layers(), attention::KvCache::pages_for(num_tokens));
  model::ForwardPass pass(context, model, cache,
                          {.max_tokens = chunk,
                           .max_sequences = 1,
                           .max_top_k = top_k,
                           .keep_routing = model::KeepRouting::yes});
  tensor::Arena arena("logits", context.table->allocator);
  const tensor::TensorView logits = arena.tensor("logits", tensor::DType::F32, {rows, vocabulary});
  std::vector<float> host(static_cast<std::size_t>(rows * vocabulary));
  Routes routes;
  attention::KvSequence sequence;
  for (int64_t begin = 0; begin < num_tokens; begin += chunk) {
    const int64_t count = std::min(chunk, num_tokens - begin);
    const model::Segment segment{.sequence = &sequence, .num_tokens = count};
    std::vector<int32_t> replayed;
    if (!options.replayed.empty()) {
      replayed = replay_of_pass(
          model.config, options.replayed.subspan(begin * slots, count * slots), count, top_k);
    }
    const tensor::TensorView hidden = pass.run({.tokens = tokens.subspan(begin, count),
                                                .segments = {&segment, 1},
                                                .replayed_index = replayed});
    read_routes(context, pass, routes);
    if (routes.num_layers > 0) sink.routes(routes.view());
    if (sink.hidden != nullptr) (*sink.hidden)(widened(pass, hidden));
    for (int64_t row = 0; row < count; row += rows) {
      if (options.cancelled != nullptr && options.cancelled->load()) return Outcome::cancelled;
      const int64_t n = std::min(rows, count - row);
      pass.logits(hidden.rows(row, row + n), logits.rows(0, n));
      pass.read(logits.rows(0, n), host.data());
      const std::span<const float> values(host.data(), static_cast<std::size_t>(n * vocabulary));
      if (const int64_t bad = first_non_finite(values); bad >= 0) {
        fail(
            ErrorKind::input,
            "the logits of token {} are not finite; the weights or the activations are broken (NaN "
            "or infinity)",
            begin + row + bad / vocabulary);
      }
      sink.logits(values);
    }
  }
  return Outcome::done;
}

}  // namespace dsmoe::infer

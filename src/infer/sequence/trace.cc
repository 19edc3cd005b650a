// One sequence in chunks; logits in smaller pieces of rows.
#include "infer/sequence/trace.h"

#include <cmath>
#include <vector>

#include "infer/load_model.h"
#include "infer/sequence/workspace.h"
#include "kernels/memory.h"
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
  attention::KvCache cache(context, model.kv_layers(), attention::KvCache::pages_for(num_tokens));
  model::ForwardPass pass(context, model, cache,
                          {.max_tokens = chunk,
                           .max_sequences = 1,
                           .max_top_k = checked_top_k(model.config, options.top_k),
                           .keep_routing = model::KeepRouting::yes});
  tensor::Arena arena("logits", context.table->allocator);
  const tensor::TensorView logits = arena.tensor("logits", tensor::DType::F32, {rows, vocabulary});
  std::vector<float> host(static_cast<std::size_t>(rows * vocabulary));
  Routes routes;
  attention::KvSequence sequence;
  for (int64_t begin = 0; begin < num_tokens; begin += chunk) {
    const int64_t count = std::min(chunk, num_tokens - begin);
    const model::Segment segment{.sequence = &sequence, .num_tokens = count};
    const tensor::TensorView hidden =
        pass.run({.tokens = tokens.subspan(begin, count), .segments = {&segment, 1}});
    read_routes(context, pass, routes);
    if (routes.num_layers > 0) sink.routes(routes.view());
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

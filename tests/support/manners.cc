// Documents advance together, each by its next chunk, until all are done.
#include "support/manners.h"

#include <algorithm>

#include "base/rng.h"
#include "kernels/memory.h"
#include "kernels/table.h"

namespace dsmoe::testing {
namespace {

constexpr int kNumPrompts = 50;
constexpr int64_t kMaxLength = 90;  // more than one block of 64 keys

}  // namespace

std::vector<Tokens> random_prompts(int64_t vocabulary) {
  std::vector<Tokens> prompts;
  const Rng rng{7, RngPurpose::test};
  uint64_t draw = 0;
  for (int p = 0; p < kNumPrompts; ++p) {
    Tokens tokens(1 + rng.below(draw++, kMaxLength));
    for (int32_t& token : tokens)
      token = static_cast<int32_t>(rng.below(draw++, static_cast<uint64_t>(vocabulary)));
    prompts.push_back(tokens);
  }
  return prompts;
}

std::vector<float> all_logits(const kernels::Context& context, const model::Model& model,
                              const std::vector<Tokens>& prompts, const Manner& manner) {
  attention::KvCache cache(context, model.kv_layers(),
                           manner.batch * attention::KvCache::pages_for(kMaxLength));
  model::ForwardPass pass(context, model, cache,
                          {.max_tokens = manner.batch * kMaxLength, .max_sequences = manner.batch});
  const int64_t vocabulary = model.config.vocab_size;
  tensor::Arena arena("test", context.table->allocator);
  const tensor::TensorView buffer =
      arena.tensor("logits", tensor::DType::F32, {manner.batch * kMaxLength, vocabulary});

  std::vector<std::vector<float>> logits(prompts.size());
  for (std::size_t first = 0; first < prompts.size(); first += manner.batch) {
    const std::size_t end = std::min(prompts.size(), first + manner.batch);
    std::vector<attention::KvSequence> sequences(end - first);
    for (bool left = true; left;) {
      left = false;
      Tokens tokens;
      std::vector<model::Segment> segments;
      std::vector<std::size_t> owners;
      for (std::size_t p = first; p < end; ++p) {
        attention::KvSequence& sequence = sequences[p - first];
        const auto remaining = static_cast<int64_t>(prompts[p].size()) - sequence.length;
        const int64_t count = manner.chunk > 0 ? std::min(manner.chunk, remaining) : remaining;
        if (count == 0) continue;
        left = true;
        const auto begin = prompts[p].begin() + sequence.length;
        tokens.insert(tokens.end(), begin, begin + count);
        segments.push_back({.sequence = &sequence, .num_tokens = count});
        owners.push_back(p);
      }
      if (!left) break;
      const tensor::TensorView hidden = pass.run({.tokens = tokens, .segments = segments});
      const tensor::TensorView out = buffer.rows(0, static_cast<int64_t>(tokens.size()));
      pass.logits(hidden, out);
      std::vector<float> host(out.num_elements());
      pass.read(out, host.data());
      const float* row = host.data();
      for (std::size_t s = 0; s < segments.size(); ++s) {
        const int64_t size = segments[s].num_tokens * vocabulary;
        logits[owners[s]].insert(logits[owners[s]].end(), row, row + size);
        row += size;
      }
    }
    for (attention::KvSequence& sequence : sequences) cache.truncate(sequence, 0);
  }
  std::vector<float> all;
  for (const std::vector<float>& part : logits) all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace dsmoe::testing

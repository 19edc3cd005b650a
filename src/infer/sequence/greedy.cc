// Prompts of a group are prefilled in one pass; then all that are not finished go on by one token
// each.
#include "infer/sequence/greedy.h"

#include <algorithm>

#include "base/error.h"
#include "infer/sequence/next_tokens.h"

namespace dsmoe::infer {
namespace {

struct Sequence {
  attention::KvSequence cache;
  std::vector<int32_t> next;  // tokens to compute: the prompt, then one at a time
  std::vector<int32_t> answer;
  bool done = false;
};

class Group {
 public:
  struct Sizes {
    int64_t max_tokens = 0;  // of one pass
    int64_t num_pages = 0;
  };
  Group(const kernels::Context& context, const model::Model& model, const GreedyOptions& options,
        const Sizes& sizes)
      : options_(options),
        cache_(context, model.kv_layers(), sizes.num_pages),
        pass_(context, model, cache_,
              {.max_tokens = sizes.max_tokens, .max_sequences = options.max_prompts}),
        next_(context, model, pass_, options.max_prompts) {}

  // One token more for each sequence that is not done. False: all were.
  bool step(std::vector<Sequence>& sequences) {
    std::vector<int32_t> tokens;
    std::vector<model::Segment> segments;
    std::vector<Sequence*> active;
    for (Sequence& sequence : sequences) {
      if (sequence.done) continue;
      tokens.insert(tokens.end(), sequence.next.begin(), sequence.next.end());
      segments.push_back(
          {.sequence = &sequence.cache, .num_tokens = static_cast<int64_t>(sequence.next.size())});
      active.push_back(&sequence);
    }
    if (active.empty()) return false;
    const tensor::TensorView hidden = pass_.run({.tokens = tokens, .segments = segments});
    // One token each: the rows lie one behind the other. Prompts: the last row of each.
    const auto rows = static_cast<int64_t>(active.size());
    if (rows == hidden.dim(0)) {
      take_rows(active, hidden);
      return true;
    }
    int64_t row = 0;
    for (std::size_t i = 0; i < active.size(); ++i) {
      row += static_cast<int64_t>(active[i]->next.size());
      take_rows({&active[i], 1}, hidden.rows(row - 1, row));
    }
    return true;
  }

  void release(std::vector<Sequence>& sequences) {
    for (Sequence& sequence : sequences) cache_.truncate(sequence.cache, 0);
  }

 private:
  // hidden [sequences, hidden]: the state after each one's last token.
  void take_rows(std::span<Sequence* const> sequences, const tensor::TensorView& hidden) {
    for (int64_t begin = 0; begin < hidden.dim(0); begin += next_.max_rows()) {
      const int64_t end = std::min(hidden.dim(0), begin + next_.max_rows());
      next_.compute(hidden.rows(begin, end));
      const std::span<const int32_t> best = next_.most_likely();
      for (int64_t i = begin; i < end; ++i) {
        take(*sequences[static_cast<std::size_t>(i)], best[static_cast<std::size_t>(i - begin)]);
      }
    }
  }

  void take(Sequence& sequence, int32_t token) {
    if (token < 0) {
      fail(ErrorKind::input,
           "logits are not finite; the weights or the activations are broken (NaN or infinity)");
    }
    const auto& stops = options_.stop_ids;
    if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
      sequence.done = true;
      return;
    }
    sequence.answer.push_back(token);
    sequence.next.assign(1, token);
    sequence.done = static_cast<int64_t>(sequence.answer.size()) == options_.max_tokens;
  }

  const GreedyOptions& options_;
  attention::KvCache cache_;
  model::ForwardPass pass_;
  NextTokens next_;
};

int64_t longest_prompt(const model::Model& model, std::span<const std::vector<int32_t>> prompts,
                       int64_t max_tokens) {
  int64_t longest = 0;
  for (const std::vector<int32_t>& prompt : prompts) {
    check_tokens(model.config, prompt, "prompt");
    const auto length = static_cast<int64_t>(prompt.size());
    if (length < 1) fail(ErrorKind::input, "the prompt has no tokens");
    if (length > model.context - max_tokens) {
      fail(ErrorKind::input,
           "a prompt of {} tokens and an answer of {} do not fit into the context of {}", length,
           max_tokens, model.context);
    }
    longest = std::max(longest, length);
  }
  return longest;
}

}  // namespace

Outcome answer_greedily(
    const kernels::Context& context, const model::Model& model,
    std::span<const std::vector<int32_t>> prompts, const GreedyOptions& options,
    FunctionRef<void(int64_t prompt_idx, std::span<const int32_t> answer)> take) {
  DSMOE_CHECK(options.max_tokens >= 1 && options.max_prompts >= 1,
              "answers of {} tokens, {} at once", options.max_tokens, options.max_prompts);
  if (prompts.empty()) return Outcome::done;
  const int64_t longest = longest_prompt(model, prompts, options.max_tokens);
  Group group(context, model, options,
              {.max_tokens = longest * options.max_prompts,
               .num_pages = options.max_prompts *
                            attention::KvCache::pages_for(longest + options.max_tokens)});
  const auto at_once = static_cast<std::size_t>(options.max_prompts);
  for (std::size_t first = 0; first < prompts.size(); first += at_once) {
    const std::size_t count = std::min(at_once, prompts.size() - first);
    std::vector<Sequence> sequences(count);
    for (std::size_t i = 0; i < count; ++i) sequences[i].next = prompts[first + i];
    do {
      if (options.cancelled != nullptr && options.cancelled->load()) return Outcome::cancelled;
    } while (group.step(sequences));
    group.release(sequences);
    for (std::size_t i = 0; i < count; ++i) {
      take(static_cast<int64_t>(first + i), sequences[i].answer);
    }
  }
  return Outcome::done;
}

}  // namespace dsmoe::infer

// Packs documents into forward passes, gathers the rows that have targets, scores them in pieces.
#include "infer/measure/evaluate.h"

#include <algorithm>
#include <limits>

#include "infer/load_model.h"
#include "infer/sequence/workspace.h"
#include "kernels/log_prob.h"
#include "kernels/memory.h"
#include "kernels/table.h"

namespace dsmoe::infer {
namespace {

using tensor::DType;
using tensor::TensorView;

// Tokens that go in: all but the last, which is only predicted.
int64_t num_inputs(const ScoredDocument& document) {
  return static_cast<int64_t>(document.tokens.size()) - 1;
}

// Documents [begin, end) that run together: several in one forward pass, or one in several.
struct Batch {
  std::size_t begin = 0, end = 0;
};

std::vector<Batch> plan_batches(std::span<const ScoredDocument> documents, int64_t max_tokens,
                                int64_t max_documents) {
  std::vector<Batch> batches;
  int64_t tokens = 0;
  for (std::size_t d = 0; d < documents.size(); ++d) {
    const int64_t size = num_inputs(documents[d]);
    const bool joins = !batches.empty() && tokens + size <= max_tokens &&
                       static_cast<int64_t>(d - batches.back().begin) < max_documents;
    if (!joins) {
      batches.push_back({d, d});
      tokens = 0;
    }
    batches.back().end = d + 1;
    tokens += size;
  }
  return batches;
}

int64_t pages_needed(std::span<const ScoredDocument> documents, const std::vector<Batch>& batches) {
  int64_t most = 0;
  for (const Batch& batch : batches) {
    int64_t pages = 0;
    for (std::size_t d = batch.begin; d < batch.end; ++d) {
      pages += attention::KvCache::pages_for(num_inputs(documents[d]));
    }
    most = std::max(most, pages);
  }
  return most;
}

// Turns hidden states and targets into log-probabilities, `rows` at a time.
class RowScorer {
 public:
  RowScorer(const kernels::Context& context, const model::Model& model, model::ForwardPass& pass,
            int64_t rows)
      : context_(context), pass_(pass), rows_(rows), arena_("scores", context.table->allocator) {
    const model::ModelConfig& config = model.config;
    hidden_ = arena_.tensor("hidden", model.operand, {rows, config.hidden_size});
    logits_ = arena_.tensor("logits", DType::F32, {rows, config.vocab_size});
    target_ = arena_.tensor("target", DType::I32, {rows});
    log_prob_ = arena_.tensor("log_prob", DType::F32, {rows});
    argmax_ = arena_.tensor("argmax", DType::I32, {rows});
    row_bytes_ = static_cast<std::size_t>(config.hidden_size) * tensor::size_of(model.operand);
  }

  // Rows are scored once enough have come together.
  void add(const TensorView& hidden, std::span<const int32_t> targets) {
    std::size_t done = 0;
    while (done < targets.size()) {
      const std::size_t count =
          std::min(targets.size() - done, static_cast<std::size_t>(rows_) - targets_.size());
      const std::size_t at = gathered_.size();
      gathered_.resize(at + count * row_bytes_);
      pass_.read(hidden.rows(static_cast<int64_t>(done), static_cast<int64_t>(done + count)),
                 gathered_.data() + at);
      targets_.insert(targets_.end(), targets.begin() + static_cast<std::ptrdiff_t>(done),
                      targets.begin() + static_cast<std::ptrdiff_t>(done + count));
      done += count;
      if (static_cast<int64_t>(targets_.size()) == rows_) flush();
    }
  }

  void flush() {
    const auto n = static_cast<int64_t>(targets_.size());
    if (n == 0) return;
    kernels::upload(context_, gathered_.data(), hidden_.rows(0, n));
    kernels::upload(context_, targets_.data(), target_.rows(0, n));
    pass_.most_likely(hidden_.rows(0, n), logits_.rows(0, n), argmax_.rows(0, n));
    kernels::log_prob_forward(context_, {.logits = logits_.rows(0, n),
                                         .target = target_.rows(0, n),
                                         .log_prob = log_prob_.rows(0, n)});
    const std::size_t at = log_prob.size();
    log_prob.resize(at + targets_.size());
    argmax_host_.resize(targets_.size());
    kernels::download(context_, log_prob_.rows(0, n), log_prob.data() + at);
    kernels::download(context_, argmax_.rows(0, n), argmax_host_.data());
    for (std::size_t i = 0; i < targets_.size(); ++i) {
      greedy.push_back(argmax_host_[i] == targets_[i] ? 1 : 0);
      // Next to a logit of minus infinity others have finite log-probabilities.
      if (argmax_host_[i] < 0) log_prob[at + i] = std::numeric_limits<float>::quiet_NaN();
    }
    targets_.clear();
    gathered_.clear();
  }

  // What has been scored, in the order of add(); the caller clears them.
  std::vector<float> log_prob;
  std::vector<uint8_t> greedy;

 private:
  kernels::Context context_;
  model::ForwardPass& pass_;
  int64_t rows_;
  tensor::Arena arena_;
  TensorView hidden_, logits_, target_, log_prob_, argmax_;
  std::size_t row_bytes_ = 0;
  std::vector<std::byte> gathered_;
  std::vector<int32_t> targets_, argmax_host_;
};

// A piece of one document in one forward pass: inputs [begin, end).
struct Part {
  const ScoredDocument* document;
  attention::KvSequence* sequence;
  int64_t begin, end;
};

void run_parts(model::ForwardPass& pass, RowScorer& scorer, std::span<const Part> parts,
               int64_t top_k, const model::Ablation& ablation) {
  std::vector<int32_t> tokens;
  std::vector<model::Segment> segments;
  for (const Part& part : parts) {
    const auto inputs = part.document->tokens.subspan(
        static_cast<std::size_t>(part.begin), static_cast<std::size_t>(part.end - part.begin));
    tokens.insert(tokens.end(), inputs.begin(), inputs.end());
    segments.push_back({.sequence = part.sequence, .num_tokens = part.end - part.begin});
  }
  const TensorView hidden =
      pass.run({.tokens = tokens, .segments = segments, .top_k = top_k, .ablation = ablation});
  int64_t row = 0;
  for (const Part& part : parts) {
    const int64_t first = std::max(part.begin, part.document->first_target - 1);
    if (first < part.end) {
      scorer.add(hidden.rows(row + first - part.begin, row + part.end - part.begin),
                 part.document->tokens.subspan(static_cast<std::size_t>(first + 1),
                                               static_cast<std::size_t>(part.end - first)));
    }
    row += part.end - part.begin;
  }
}

void check_documents(const model::Model& model, std::span<const ScoredDocument> documents) {
  for (const ScoredDocument& document : documents) {
    DSMOE_CHECK(num_inputs(document) >= 1 && num_inputs(document) <= model.context,
                "a document of {} inputs, the context is {}", num_inputs(document), model.context);
    DSMOE_CHECK(document.first_target >= 1 && document.first_target <= num_inputs(document),
                "first target {} of {} tokens", document.first_target, document.tokens.size());
    check_tokens(model.config, document.tokens, "input");
  }
}

}  // namespace

Outcome score_documents(const kernels::Context& context, const model::Model& model,
                        std::span<const ScoredDocument> documents, const ScorerOptions& options,
                        FunctionRef<void(int64_t document_idx, const TokenScores& scores)> take) {
  check_documents(model, documents);
  if (documents.empty()) return Outcome::done;
  const int64_t max_tokens = options.chunk_tokens > 0 ? options.chunk_tokens : kChunkTokens;
  const std::vector<Batch> batches = plan_batches(documents, max_tokens, options.max_documents);
  const int64_t top_k = checked_top_k(model.config, options.top_k);
  attention::KvCache cache(context, model.kv_layers(), pages_needed(documents, batches));
  model::ForwardPass pass(
      context, model, cache,
      {.max_tokens = max_tokens, .max_sequences = options.max_documents, .max_top_k = top_k});
  RowScorer scorer(context, model, pass, logit_rows(model.config.vocab_size, max_tokens));

  for (const Batch& batch : batches) {
    std::vector<attention::KvSequence> sequences(batch.end - batch.begin);
    std::vector<Part> parts;
    for (std::size_t d = batch.begin; d < batch.end; ++d) {
      parts.push_back({&documents[d], &sequences[d - batch.begin], 0, num_inputs(documents[d])});
    }
    const int64_t longest = parts.front().end;  // more than max_tokens only when alone
    for (int64_t begin = 0; begin < longest; begin += max_tokens) {
      if (options.cancelled != nullptr && options.cancelled->load()) return Outcome::cancelled;
      if (longest > max_tokens) {
        parts.front().begin = begin;
        parts.front().end = std::min(longest, begin + max_tokens);
      }
      run_parts(pass, scorer, parts, top_k, options.ablation);
    }
    scorer.flush();
    for (attention::KvSequence& sequence : sequences) cache.truncate(sequence, 0);
    std::size_t at = 0;
    for (std::size_t d = batch.begin; d < batch.end; ++d) {
      const auto count = static_cast<std::size_t>(documents[d].num_targets());
      const std::span<const float> log_prob(scorer.log_prob.data() + at, count);
      if (const int64_t bad = first_non_finite(log_prob); bad >= 0) {
        fail(ErrorKind::input,
             "the log-probability of token {} of input {} is not finite; the weights or the "
             "activations are broken (NaN or infinity)",
             documents[d].first_target + bad, d);
      }
      take(static_cast<int64_t>(d),
           {.log_prob = log_prob, .greedy = {scorer.greedy.data() + at, count}});
      at += count;
    }
    scorer.log_prob.clear();
    scorer.greedy.clear();
  }
  return Outcome::done;
}

std::vector<ScoredDocument> cut_windows(std::span<const int32_t> tokens, int64_t context,
                                        const WindowOptions& options) {
  const int64_t window = options.window > 0 ? options.window : context;
  const int64_t stride = options.stride > 0 ? options.stride : window;
  if (window > context) {
    fail(ErrorKind::input, "a window of {} tokens does not fit into the context of {}", window,
         context);
  }
  if (stride > window) {
    fail(ErrorKind::input, "a stride of {} tokens would leave some between windows of {} unscored",
         stride, window);
  }
  const auto num_tokens = static_cast<int64_t>(tokens.size());
  if (num_tokens < 2) {
    fail(ErrorKind::input, "{} tokens: at least 2 are needed, as the first is not predicted",
         num_tokens);
  }
  std::vector<ScoredDocument> windows;
  int64_t scored = 0;
  for (int64_t begin = 0; scored < num_tokens - 1; begin += stride) {
    const int64_t end = std::min(begin + window, num_tokens - 1);  // inputs [begin, end)
    windows.push_back({.tokens = tokens.subspan(static_cast<std::size_t>(begin),
                                                static_cast<std::size_t>(end + 1 - begin)),
                       .first_target = scored + 1 - begin});
    scored = end;
  }
  return windows;
}

std::optional<int64_t> prefix_token(const model::ModelConfig& config) {
  if (config.bos_token_id) return config.bos_token_id;
  if (!config.eos_token_ids.empty()) return config.eos_token_ids.front();
  return std::nullopt;
}

JoinedPair join_pair(const TokenPair& pair, int64_t context, std::optional<int64_t> prefix,
                     std::string_view what) {
  if (pair.continuation.empty()) fail(ErrorKind::input, "{}: the continuation has no tokens", what);
  const auto num_targets = static_cast<int64_t>(pair.continuation.size());
  if (num_targets > context) {
    fail(ErrorKind::input, "{}: a continuation of {} tokens does not fit into the context of {}",
         what, num_targets, context);
  }
  JoinedPair joined;
  joined.tokens = pair.context;
  if (joined.tokens.empty()) {
    if (!prefix) {
      fail(ErrorKind::input,
           "{}: the context is empty, and config.json has neither bos_token_id nor eos_token_id to "
           "stand for it",
           what);
    }
    joined.tokens.push_back(static_cast<int32_t>(*prefix));
  }
  joined.tokens.insert(joined.tokens.end(), pair.continuation.begin(), pair.continuation.end());
  const auto size = static_cast<int64_t>(joined.tokens.size());
  if (size > context + 1) {
    joined.tokens.erase(joined.tokens.begin(), joined.tokens.end() - (context + 1));
  }
  joined.first_target = static_cast<int64_t>(joined.tokens.size()) - num_targets;
  return joined;
}

PairScore sum_scores(const TokenScores& scores) {
  PairScore sum;
  for (const float log_prob : scores.log_prob) sum.log_likelihood += log_prob;
  sum.greedy =
      std::all_of(scores.greedy.begin(), scores.greedy.end(), [](uint8_t g) { return g != 0; });
  sum.num_tokens = static_cast<int64_t>(scores.log_prob.size());
  return sum;
}

}  // namespace dsmoe::infer

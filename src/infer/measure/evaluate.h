// How likely a model finds given tokens: windows over a stream, and pairs of context and
// continuation.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/function_ref.h"
#include "infer/sequence/trace.h"
#include "model/language_model.h"

namespace dsmoe::infer {

// One input of its own, positions from 0: tokens[i] is predicted from tokens[0..i). The last token
// is a target only, so a document holds at most context + 1 tokens.
struct ScoredDocument {
  std::span<const int32_t> tokens;
  int64_t first_target = 1;  // tokens[first_target..) are scored; at least 1

  int64_t num_targets() const { return static_cast<int64_t>(tokens.size()) - first_target; }
};

// For each scored token, in order.
struct TokenScores {
  std::span<const float> log_prob;  // natural logarithm
  std::span<const uint8_t> greedy;  // 1: it is the most likely token (ties: the lowest id)
};

struct ScorerOptions {
  int64_t top_k = 0;           // 0: the model's
  model::Ablation ablation;    // of the specialisation tests
  int64_t chunk_tokens = 0;    // 0: kChunkTokens; tokens of one forward pass
  int64_t max_documents = 64;  // of one forward pass
  const std::atomic<bool>* cancelled = nullptr;
};

// Calls `take(document_idx, scores)` for each document in order. Several documents share a forward
// pass; the bits are those of each alone. Throws Error(input) when a logit is not finite.
Outcome score_documents(const kernels::Context& context, const model::Model& model,
                        std::span<const ScoredDocument> documents, const ScorerOptions& options,
                        FunctionRef<void(int64_t document_idx, const TokenScores& scores)> take);

// Windows over one stream: inputs [k * stride, k * stride + window); a window scores the targets
// that no earlier one scored, so tokens[1..n) are scored once each.
struct WindowOptions {
  int64_t window = 0;  // 0: the model's context
  int64_t stride = 0;  // 0: window
};
std::vector<ScoredDocument> cut_windows(std::span<const int32_t> tokens, int64_t context,
                                        const WindowOptions& options);

// What stands for "nothing before": bos, or eos in models without one.
std::optional<int64_t> prefix_token(const model::ModelConfig& config);

// lm-evaluation-harness: the input is the last `context` tokens of (context + continuation) less
// its last token; an empty context stands for `prefix`.
struct TokenPair {
  std::vector<int32_t> context;
  std::vector<int32_t> continuation;
};
struct PairScore {
  double log_likelihood = 0;
  bool greedy = true;  // every token of the continuation is the most likely one
  int64_t num_tokens = 0;
};
// The joined tokens of a pair and where its continuation starts. Throws Error(input) that
// starts with `what` on an empty continuation, one longer than the context, or an empty context
// without a prefix.
struct JoinedPair {
  std::vector<int32_t> tokens;
  int64_t first_target = 1;
};
JoinedPair join_pair(const TokenPair& pair, int64_t context, std::optional<int64_t> prefix,
                     std::string_view what);

// Sums in double, in the order of tokens.
PairScore sum_scores(const TokenScores& scores);

}  // namespace dsmoe::infer

// Trains a byte-level BPE tokenizer on text.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "text/tokenizer/word_counts.h"

namespace dsmoe::text {

struct SpecialToken {
  std::string content;
  std::int32_t id = 0;
};

// Two roles may share one token: same content and same id.
struct SpecialTokens {
  std::optional<SpecialToken> bos;
  std::optional<SpecialToken> eos;
  std::optional<SpecialToken> pad;

  // Distinct ones, by id.
  std::vector<SpecialToken> distinct() const;
  std::vector<std::string> contents() const;
};

struct BpeTrainOptions {
  std::int32_t vocab_size = 0;
  SpecialTokens special;
  std::int64_t min_count = 2;  // pairs seen less often are not merged
  // Called now and then with merges done and wanted.
  std::function<void(std::int64_t done, std::int64_t total)> on_progress = {};
};

struct TrainedBpe {
  SpecialTokens special;
  std::vector<std::pair<std::int32_t, std::string>>
      vocab;  // by id; bytes, not their symbols; no special tokens
  std::vector<std::pair<std::string, std::string>> merges;  // bytes, by rank
};

// Special tokens keep their ids; the 256 bytes and then the merges take the others, ascending. The
// result is a function of the counts and the options. Fewer tokens than vocab_size when no pair
// reaches min_count. Throws Error(usage) when the vocabulary is below 256 + special tokens, or
// special tokens clash.
TrainedBpe train_bpe(const WordCounts& counts, const BpeTrainOptions& options);

// Throws what train_bpe() would throw for these options, before a corpus is read.
void check_train_options(const BpeTrainOptions& options);

// The files: ByteLevel with GPT-2's pattern, BOS in front of a text where there is one.
std::string to_tokenizer_json(const TrainedBpe& trained);
std::string to_tokenizer_config_json(const TrainedBpe& trained, std::int32_t model_max_length);

}  // namespace dsmoe::text

// A tokenizer of the config's vocabulary size, trained on a run's data.
#pragma once

#include <atomic>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "base/thread_pool.h"
#include "data/documents.h"
#include "model/config.h"
#include "text/tokenizer/bpe_train.h"
#include "text/tokenizer/word_counts.h"

namespace dsmoe::train {

// Throws Error(input) where the config names none.
int32_t eos_of(const model::ModelConfig& config);

// What lies in RUN already: with checkpoints it is theirs, whatever was asked for since; without,
// it is taken only if this program made it of the same text for the same config, or did not make
// it.
enum class FoundTokenizer { is_the_runs, must_fit };

// `cancelled` was raised while the data was read.
struct DataInterrupted : std::exception {};

// Adds all text of a file's documents, chats as what their messages say; `on_bytes` hears of the
// file's bytes read so far, and may throw.
void count_documents(const std::filesystem::path& path, data::ReaderOptions reader,
                     text::WordCounts& counts, ThreadPool& pool,
                     FunctionRef<void(uint64_t)> on_bytes);

// tokenizer_config.json, with the folder's chat template if it has one, then tokenizer.json: who
// finds that finds both. Where it cannot be written, neither stays.
void write_tokenizer(const std::filesystem::path& folder, const text::TrainedBpe& trained,
                     int32_t max_length);

FoundTokenizer found_tokenizer(const std::filesystem::path& run);

struct NewTokenizer {
  std::filesystem::path run;  // tokenizer.json and tokenizer_config.json are written here
  std::vector<std::string> data;
  std::string separator;
  data::JsonKeys keys;
  FoundTokenizer found = FoundTokenizer::must_fit;
  const std::atomic<bool>* cancelled = nullptr;
};
// Both train one unless it is there, and throw DataInterrupted.
void ensure_tokenizer(const NewTokenizer& request, const model::ModelConfig& config,
                      ThreadPool& pool);

// The same of whatever text `count` adds, in place of `data`; `text_key` stands for that text.
struct CountedText {
  uint64_t text_key = 0;
  FunctionRef<void(text::WordCounts&)> count;
};
void ensure_tokenizer(const NewTokenizer& request, const model::ModelConfig& config,
                      const CountedText& text);

}  // namespace dsmoe::train

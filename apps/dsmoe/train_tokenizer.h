// A tokenizer of the config's vocabulary size, trained on a run's data.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "base/thread_pool.h"
#include "model/config.h"
#include "text/word_counts.h"

namespace dsmoe::app {

// Throws Error(input) where the config names none.
int32_t eos_of(const model::ModelConfig& config);

struct NewTokenizer {
  std::filesystem::path run;  // tokenizer.json and tokenizer_config.json are written here
  std::vector<std::string> data;
  std::string separator;
};
void train_tokenizer(const NewTokenizer& request, const model::ModelConfig& config,
                     ThreadPool& pool);

// The same of whatever text `count` adds.
void train_tokenizer(const std::filesystem::path& run, const model::ModelConfig& config,
                     FunctionRef<void(text::WordCounts&)> count);

}  // namespace dsmoe::app

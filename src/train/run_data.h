// From the files a user names to what a run trains on: a tokenizer, and a corpus of its tokens.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "data/corpus_builder.h"
#include "model/config.h"
#include "text/chat_template.h"
#include "text/tokenizer/tokenizer.h"
#include "train/run_tokenizer.h"

namespace dsmoe::train {

struct RunTokenizer {
  text::Tokenizer tokenizer;
  std::filesystem::path folder;              // where it lies
  std::map<std::string, std::string> files;  // for every checkpoint
  text::ChatTemplate chat_template;
};

struct TokenizerRequest {
  std::string given;              // --tokenizer: a file or a folder; may be empty
  std::string init;               // --init; may be empty
  std::filesystem::path run;      // what was trained before lies here
  std::vector<std::string> data;  // to train one on
  std::string separator;
  data::JsonKeys keys;                              // of JSONL
  FoundTokenizer found = FoundTokenizer::must_fit;  // in `run`
  const std::atomic<bool>* cancelled = nullptr;
};

// --tokenizer, else that of --init, else the run's own, trained on the data the first time.
// Throws DataInterrupted.
RunTokenizer prepare_tokenizer(const TokenizerRequest& request, const model::ModelConfig& config,
                               ThreadPool& pool);

// The bytes of text that each id stands for; 0 for special tokens and ids without one.
std::vector<int32_t> token_bytes(const RunTokenizer& tokenizer, const model::ModelConfig& config);

// `tokenizer` must outlive it.
data::Encoder encoder_of(const RunTokenizer& tokenizer, const model::ModelConfig& config);

struct CorpusRequest {
  std::vector<data::CorpusInput> inputs;
  std::filesystem::path cache;
  std::string separator;
  data::JsonKeys keys;
  const std::atomic<bool>* cancelled = nullptr;
};
// Throws DataInterrupted.
data::BuiltCorpus prepare_corpus(const CorpusRequest& request, const RunTokenizer& tokenizer,
                                 const model::ModelConfig& config);

}  // namespace dsmoe::train

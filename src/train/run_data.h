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
#include "text/tokenizer.h"
#include "train_tokenizer.h"

namespace dsmoe::app {

struct TrainTokenizer {
  text::Tokenizer tokenizer;
  std::map<std::string, std::string> files;  // for every checkpoint
  text::ChatTemplate chat_template;
};

struct TokenizerRequest {
  std::string given;              // --tokenizer: a file or a folder; may be empty
  std::string init;               // --init; may be empty
  std::filesystem::path run;      // what was trained before lies here
  std::vector<std::string> data;  // to train one on
  std::string separator;
  FoundTokenizer found = FoundTokenizer::must_fit;  // in `run`
};

// --tokenizer, else that of --init, else the run's own, trained on the data the first time.
// Throws DataInterrupted.
TrainTokenizer prepare_tokenizer(const TokenizerRequest& request, const model::ModelConfig& config,
                                 ThreadPool& pool);

// `tokenizer` must outlive it.
data::Encoder encoder_of(const TrainTokenizer& tokenizer, const model::ModelConfig& config);

struct CorpusRequest {
  std::vector<std::string> data;
  std::filesystem::path cache;
  std::string separator;
};
// Throws DataInterrupted.
data::BuiltCorpus prepare_corpus(const CorpusRequest& request, const TrainTokenizer& tokenizer,
                                 const model::ModelConfig& config);

}  // namespace dsmoe::app

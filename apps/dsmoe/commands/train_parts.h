// The files of --data and --valid-data as what a run trains on and is measured on.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "commands/train_options.h"
#include "data/data_files.h"
#include "data/mixture.h"
#include "train/run_data.h"

namespace dsmoe::app {

// Parts refer to what it owns.
class TrainParts {
 public:
  // Builds the tokens, or finds them. Throws DataInterrupted.
  TrainParts(const TrainOptions& options, const std::vector<data::NamedSource>& sources,
             const train::RunTokenizer& tokenizer, const std::atomic<bool>* cancelled);
  // Takes tokens that are there already, in place of files.
  TrainParts(const TrainOptions& options, std::unique_ptr<data::MemoryCorpus> tokens);
  TrainParts(const TrainParts&) = delete;
  TrainParts& operator=(const TrainParts&) = delete;

  const data::TokenCorpus& corpus() const { return *corpus_; }
  const std::vector<data::MixturePart>& training() const { return training_parts_; }
  const std::vector<data::MixturePart>& validation() const { return validation_parts_; }
  // What names the data among what decides the weights; as an earlier program called it.
  std::string identity() const { return identity_of(key_); }
  std::string former_identity() const { return former_key_ ? identity_of(*former_key_) : ""; }
  OrderedJson files_json() const;  // for run.json

 private:
  std::string identity_of(uint64_t key) const;
  void add_parts(const std::vector<data::NamedSource>& sources, const data::SplitOptions& split);

  std::unique_ptr<data::BuiltCorpus> training_;  // of files, or
  std::unique_ptr<data::MemoryCorpus> tokens_;   // what was there
  const data::TokenCorpus* corpus_;
  uint64_t key_;
  std::optional<uint64_t> former_key_;
  std::unique_ptr<data::BuiltCorpus> validation_;
  double valid_fraction_;
  std::vector<double> shares_;  // none: files are read as they come
  std::vector<data::CorpusRange> ranges_;
  std::vector<std::unique_ptr<data::DocumentSplit>> splits_;
  std::vector<data::MixturePart> training_parts_, validation_parts_;
};

}  // namespace dsmoe::app

// The options of dsmoe train.
#pragma once

#include <string>
#include <vector>

#include "commands/command_line.h"
#include "commands/options.h"
#include "data/json_document.h"
#include "train/run.h"

namespace dsmoe::app {

// --resume without a folder: that of --out.
inline constexpr const char* kResumeOut = "--out";

// With the moments of AdamW at zero the first steps move every weight by about the learning rate:
// what is right for random weights takes a trained model apart (docs/training.md).
inline constexpr double kLrOfRandomWeights = 1e-3, kLrOfTrainedWeights = 1e-4;

// Below zero, or empty: not told.
struct TrainOptions {
  CommonOptions common;
  std::string resume;  // a run, or kResumeOut
  std::string config, tokenizer, init, cache, separator, schedule = "paper";
  std::vector<std::string> data, valid_data;
  data::JsonKeys keys;
  std::string eval_pairs;
  double valid_fraction = -1;
  int64_t warmup = -1, save_every = -1, valid_every = -1;
  bool recompute = false;
  int64_t ranks = 1;  // its shards of zero are filled by fill_ranks (commands/train_ranks.h)
  std::string transport = "threads";
  train::RunOptions run;
};

void add_train_flags(CommandLine& command, TrainOptions& options);

}  // namespace dsmoe::app

// A comparison on disk: DIR/compare.json says what is compared, DIR/<model>-seed-<n> are the runs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "train/comparison.h"

namespace dsmoe::report {

// Largest learning rates: one for all models but those that have their own.
struct LearningRates {
  double all = 0;
  std::map<std::string, double> own;  // by a model's name

  // Its own; else that of the model it repeats or varies (b-fp32: b, c-shared-2: c).
  double of(std::string_view model) const;
  std::string text() const;  // "0.002, dense 0.001"
};
// From "0.002" and "dense=0.001", in any order; what is not named stays as in `rates`. Throws
// Error(usage).
void parse_rates(const std::vector<std::string>& words, LearningRates& rates);

struct CompareSettings {
  model::ModelConfig base;  // architecture (c)
  train::ComparisonShape shape;
  int64_t num_seeds = 0;  // 1 .. num_seeds
  int64_t steps = 0, batch = 0, seq = 0, warmup = 0, valid_rows = 0;
  std::string schedule;
  LearningRates lr;
  std::string data;             // identity of corpus, tokenizer and split
  std::string former_data;      // what an earlier program called the same; is not written
  std::string data_title;       // for people
  std::optional<double> floor;  // nats per token that no model can beat, where it is known
};

inline constexpr const char* kCompareFile = "compare.json";

// Throws Error(input) on anything write_settings() does not write.
CompareSettings read_settings(const std::filesystem::path& folder);
void write_settings(const std::filesystem::path& folder, const CompareSettings& settings);

// Throws Error(input) with every difference, except more seeds or models than before.
void check_same_comparison(const std::filesystem::path& folder, const CompareSettings& settings);

std::string run_name(const train::ComparedModel& model, int64_t seed);  // "c-seed-1"

struct ComparedRun {
  int64_t seed = 0;
  double validation_loss = 0;
  double tokens_per_second = 0;  // median over steps
  struct Point {
    int64_t step = 0;
    double loss = 0;
  };
  std::vector<Point> validation;  // over the run
};

// A run's figures; nothing while it has not finished.
std::optional<ComparedRun> read_run(const std::filesystem::path& run, int64_t steps);

struct ModelResult {
  train::ComparedModel model;
  train::ExpertParameters experts;
  std::vector<ComparedRun> runs;  // that have finished, by seed
  train::Spread loss;             // meaningless without runs, like the next two
  train::Spread excess;           // loss minus that of (c) with the same seed, over so many
  std::size_t num_pairs = 0;      // of both: none, and there is no excess
  double tokens_per_second = 0;
};

// One model's loss minus another's, seed by seed: both saw the same batches.
struct PairedDifference {
  std::string of, less;  // names of models
  struct Pair {
    int64_t seed = 0;
    double difference = 0;
  };
  std::vector<Pair> pairs;  // at least one
  train::Spread spread;
};

struct Comparison {
  CompareSettings settings;
  std::vector<ModelResult> models;            // in the order of compared_models()
  std::vector<PairedDifference> differences;  // of each model to its ComparedModel::less
};
Comparison read_comparison(const std::filesystem::path& folder);

// The model of the lowest mean loss, where the seeds decide: all have run with the same ones, and
// the 95 % interval of its difference to each other, paired by seed, lies below zero. Upper bounds
// are no candidates.
std::optional<std::string> decided_best(const Comparison& comparison);

}  // namespace dsmoe::report

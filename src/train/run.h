// A training run: resume or start, steps, validation, checkpoints, metrics, stop.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "data/mixture.h"
#include "store/checkpoint.h"
#include "train/best_validation.h"
#include "train/metrics.h"
#include "train/schedule.h"
#include "train/step.h"

namespace dsmoe::train {

struct RunOptions {
  std::filesystem::path out;
  model::ModelConfig config;  // torch_dtype: the compute type, F32 or BF16
  int64_t batch = 0;          // rows per step
  int64_t seq = 0;            // tokens per row
  int64_t micro_batch = 1;    // rows at a time; does not change the result
  Schedule schedule;          // its total_steps is the length of the run
  OptimizerRule optimizer;
  double z_alpha = 0;
  double device_alpha = 0;
  int64_t num_devices = 1;
  int64_t balance_group = 0;  // rows, with seq_aux false; 0: rows_of_about(batch, seq, 4096)
  uint64_t seed = 1;
  std::vector<std::string> patterns;  // tensors to train; empty: all
  model::Recompute recompute = model::Recompute::nothing;
  int64_t expert_ranks = 1;   // of the ranks, those that share the experts of one replica
  int64_t shards = 1;         // in which gradients are summed: part of the run's identity
  int64_t expert_shards = 1;  // likewise, of the routed experts
  int64_t save_every = 0;     // 0: only at the end and when stopped
  int64_t valid_every = 0;    // 0: only at the end
  int64_t valid_rows = 64;    // at most so many rows of the validation part
  bool valid_first = false;   // also before the first step: what the run began with
  // Of the time: saves and validations that would take more are passed over, but not the last ones.
  // 0: no limit. What a run computes does not depend on them, only what is measured and kept.
  double save_share = 0, valid_share = 0;
  bool keep_best = false;  // the checkpoint of the lowest validation loss, saved when it is found
  int64_t patience = 0;    // ends after so many validations without a new best; 0: never
  std::vector<std::string> figures;  // names of what RunHooks::measure measures
  store::Retention retention;
  bool resume = false;
  std::string data_identity;                 // of corpus, tokenizer and split
  std::string former_data_identity;          // what an earlier program called the same; or empty
  std::string init_identity;                 // where the first weights came from
  std::vector<int32_t> token_bytes;          // per id, for bits per byte; empty: not known
  std::map<std::string, std::string> files;  // put into every checkpoint: tokenizer.json, ...
};

// Everything that decides the weights, and how they were computed: for run.json.
OrderedJson recipe_of(const RunOptions& options);

// The most rows of at most so many tokens that divide the batch; at least one.
int64_t rows_of_about(int64_t batch, int64_t seq, int64_t tokens);
// Rows whose balance is one loss. The micro-batch has no say in it: it must not change the result.
int64_t rows_per_balance_group(const RunOptions& options);
// The micro-batch of about so many tokens: whole balance groups.
int64_t default_micro_batch(const RunOptions& options, int64_t tokens);

// Throw what run_training would, before data is read for hours. check_rows: Error(usage) where
// rows, groups and devices do not divide, or rows are longer than the model's context. check_start:
// Error(input) when `out` holds checkpoints and resume is not set.
void check_rows(const RunOptions& options);
// The layout of one of so many ranks: Error(usage) where numbers do not divide.
RankLayout layout_of(const RunOptions& options, int64_t rank, int64_t ranks);
void check_start(const RunOptions& options);

// What a run tells while it goes on. Any may be empty.
struct RunHooks {
  std::function<bool()> should_stop;  // asked after every step
  std::function<void(const StepMetrics&, const StepResult&)> on_step;
  std::function<void(int64_t steps_done)> on_start;
  std::function<void(const std::filesystem::path&)> on_saved;
  // With every validation: other figures of the model as it is, in the order of
  // RunOptions::figures.
  std::function<std::vector<double>(const model::Model&)> measure;
  std::function<void(const BestValidation&)> on_best;  // a checkpoint of it is there
};

struct RunOutcome {
  int64_t steps_done = 0;
  bool finished = false;  // false: stopped by should_stop
  bool early = false;     // finished because patience was used up
  std::filesystem::path checkpoint;
  std::optional<double> validation_loss;
  std::optional<double> first_validation_loss;  // before the first step
  Measured last;                                // of the newest validation
  std::vector<std::string> sources;             // that its losses are told by
  BestValidation best;                          // of the whole run
};

// `lock` is that of `out`, held by the caller from before it wrote anything there. `initial` gives
// the first weights unless a checkpoint is resumed. Throws Error(usage) for
// options that cannot be, Error(input) when `out` holds checkpoints and resume is not set.
// Where ranks share a run, each calls it with the same options, the same data and a context of its
// own. The first holds the lock, and its hooks alone are called.
struct RunInput {
  const store::RunLock* lock = nullptr;
  comm::Group* ranks = nullptr;  // absent: there is one
  ParameterSource& initial;
  std::vector<data::MixturePart> training;
  std::vector<data::MixturePart> validation;  // none: no validation
};
RunOutcome run_training(const Context& context, const RunOptions& options, const RunInput& input,
                        const RunHooks& hooks);

// The same step by step, for callers with a loop of their own. What it was made with must outlive
// it, but for the options.
class TrainingRun {
 public:
  TrainingRun(const Context& context, const RunOptions& options, const RunInput& input,
              const RunHooks& hooks);
  ~TrainingRun();
  TrainingRun(const TrainingRun&) = delete;
  TrainingRun& operator=(const TrainingRun&) = delete;

  // One step, and what is due behind it. False: there was none to do, the run has ended.
  bool advance();
  int64_t steps_done() const;
  // Now, besides what is due. Neither changes a weight.
  Measured measure();
  std::filesystem::path save();
  const model::Model& model() const;
  // As it is; with `finished` once advance() has nothing to do.
  RunOutcome outcome() const;

 private:
  class Run;
  std::unique_ptr<Run> run_;
};

}  // namespace dsmoe::train

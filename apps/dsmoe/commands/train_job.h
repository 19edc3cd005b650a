// A training run as flags describe it: made ready, then trained step by step.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "commands/options.h"
#include "commands/pair_figures.h"
#include "commands/run_session.h"
#include "commands/train_options.h"
#include "commands/train_parts.h"
#include "train/run.h"
#include "train/run_data.h"

namespace dsmoe::app {

class TrainJob {
 public:
  struct Caller {
    const std::atomic<bool>* cancelled = nullptr;  // while data is read
    std::function<train::RunHooks(int64_t total_steps)> hooks;
    // Documents of token ids, in place of --data and perhaps of a tokenizer; null: none.
    std::unique_ptr<data::MemoryCorpus> ids = nullptr;
    // How run.json says that a run ended which was left before its last step; empty: by a signal.
    std::string stopped = {};
    // The processes that share the run, of which this is the first; null: it is the only one.
    comm::Group* group = nullptr;
  };
  // All that comes before the first step. Throws DataInterrupted, and Error where the run cannot
  // be; then RUN is as it was.
  TrainJob(const TrainOptions& options, const Given& given, Caller caller);
  // Where steps are left, run.json says that the run was stopped.
  ~TrainJob();
  TrainJob(const TrainJob&) = delete;
  TrainJob& operator=(const TrainJob&) = delete;

  // False: there was no step to do, the run has ended. Ranks that are threads of this process take
  // all steps at once.
  bool advance();
  train::Measured measure();
  std::filesystem::path save();
  train::RunOutcome outcome() const { return on_threads_ ? *on_threads_ : run_->outcome(); }
  const TrainOptions& options() const { return options_; }
  const std::vector<std::string>& validation_sources() const { return sources_; }

 private:
  void prepare(const Given& given, Caller& caller);
  void read_data(Caller& caller);
  bool has_thread_ranks() const { return options_.ranks > 1 && group_ == nullptr; }
  void train_on_threads();
  void end();
  template <class F>
  auto guarded(F&& f);

  TrainOptions options_;
  OrderedJson kept_;                  // options for those who go on
  std::vector<std::string> changed_;  // given otherwise than kept
  std::string stopped_;
  comm::Group* group_ = nullptr;
  std::optional<Engine> engine_;
  std::unique_ptr<model::ParameterSource> initial_;
  std::optional<RunSession> session_;
  std::optional<train::RunTokenizer> tokenizer_;
  std::optional<PairFigures> pairs_;
  std::unique_ptr<TrainParts> parts_;
  train::RunHooks hooks_;
  std::unique_ptr<train::TrainingRun> run_;  // null where threads are the ranks
  std::optional<train::RunOutcome> on_threads_;
  std::vector<std::string> sources_;
  bool has_ended_ = false;
};

// What a command line means: with --resume, with the options that the run was begun with.
TrainOptions complete_options(const TrainOptions& options, const Given& given);

// What a process does that is not the first of `group`: the first has made ready what is read here.
train::RunOutcome train_other_rank(const TrainOptions& options, const Given& given,
                                   comm::Group& group);

}  // namespace dsmoe::app

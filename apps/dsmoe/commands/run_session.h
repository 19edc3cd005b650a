// One process that trains in RUN: its folder, its lock, its lines in run.json.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "base/atomic_file.h"
#include "base/function_ref.h"
#include "commands/command_line.h"
#include "commands/options.h"
#include "data/corpus_builder.h"
#include "store/checkpoint.h"
#include "train/run.h"
#include "train/run_record.h"

namespace dsmoe::app {

class RunSession {
 public:
  // Makes the folder if it is missing, and waits for nobody: Error(resource) where another process
  // trains. Error(input) where another command made the run, or where no run may be.
  RunSession(const std::filesystem::path& run, const std::string& program);

  const store::RunLock& lock() const { return lock_; }

  struct Start {
    const Given& given;
    const CommonOptions& common;
    const Engine& engine;
    OrderedJson options = OrderedJson::object();  // to be kept
    std::vector<std::string> changed = {};        // of those kept before
  };
  // From here on run.json says that the run is going on.
  void begin(const Start& start);
  // Also the options as they are now known, unless they are empty.
  void describe(const train::RunOptions& run, OrderedJson files,
                OrderedJson options = OrderedJson::object());
  // `hooks` with those that the record needs.
  train::RunHooks hooks(train::RunHooks hooks);

  // Runs `f`. What it throws is noted in run.json; where no step was done, what was begun is taken
  // back, so that a folder that was not there before is gone.
  train::RunOutcome guard(FunctionRef<train::RunOutcome()> f);
  // The same in parts, for a run that somebody else drives. `how`: see RunRecord::end().
  // A note that cannot be written is told, and ends nothing.
  void end(int64_t steps_done, const std::string& how);
  void fail(const std::exception& error);
  // The tokens are ready: they stay, also where the start fails after all.
  void keep_data() { keeps_data_ = true; }

 private:
  void undo() noexcept;

  std::filesystem::path run_;
  std::set<std::filesystem::path> found_;  // names in RUN before
  NewFolder folder_;
  store::RunLock lock_;
  train::RunRecord record_;
  int64_t steps_done_ = -1;  // below 0: not started
  bool keeps_data_ = false;
};

// "finished", or what else ended a run.
std::string how_it_ended(const train::RunOutcome& outcome);

// Throws Error(input) where a comparison may not be: over a run, or a model.
void check_comparison_folder(const std::filesystem::path& folder);

// Files as run.json lists them.
OrderedJson files_json(const std::vector<data::CorpusFile>& files);

}  // namespace dsmoe::app

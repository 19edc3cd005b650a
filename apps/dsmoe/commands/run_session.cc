// Begins, describes and ends; a failed start is undone.
#include "commands/run_session.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "commands/version.h"
#include "kernels/table.h"
#include "report/comparison_folder.h"
#include "terminal/interrupt.h"

namespace dsmoe::app {
namespace {

namespace fs = std::filesystem;

std::set<fs::path> names_in(const fs::path& folder) {
  std::set<fs::path> names;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    names.insert(entry.path().filename());
  }
  return names;
}

// Files of one name mean different things to a model, a run and a comparison; none may write over
// another's.
void refuse_model_folder(const fs::path& folder, const std::set<fs::path>& names) {
  for (const fs::path& name : names) {
    if (name.extension() != ".safetensors") continue;
    fail(ErrorKind::input, "{}: a model lies there ({}); choose another --out", folder.string(),
         name.string());
  }
}

std::set<fs::path> names_in_run(const fs::path& run) {
  std::set<fs::path> names = names_in(run);
  refuse_model_folder(run, names);
  if (names.contains(report::kCompareFile)) {
    fail(ErrorKind::input, "{}: a comparison of dsmoe compare lies there; choose another --out",
         run.string());
  }
  return names;
}

train::RunRecord record_of(const fs::path& run, const std::string& program) {
  std::optional<train::RunRecord> found = train::RunRecord::read(run);
  if (!found) return {run, program};
  if (found->program() != program) {
    dsmoe::fail(ErrorKind::input, "{}: dsmoe {} made this run; go on with that command",
                run.string(), found->program());
  }
  return *std::move(found);
}

}  // namespace

std::string how_it_ended(const train::RunOutcome& outcome) {
  if (outcome.early) return fmt::format("patience ended it, best at step {}", outcome.best.step);
  if (outcome.finished) return "finished";
  return fmt::format("stopped by signal {}", InterruptScope::exit_code() - 128);
}

OrderedJson files_json(const std::vector<data::CorpusFile>& files) {
  OrderedJson list = OrderedJson::array();
  std::error_code ignored;
  for (const data::CorpusFile& file : files) {
    list.push_back({{"path", fs::absolute(file.path, ignored).string()},
                    {"source", file.source},
                    {"bytes", file.bytes},
                    {"xxh64", fmt::format("{:016x}", file.hash)}});
  }
  return list;
}

void check_comparison_folder(const fs::path& folder) {
  const std::set<fs::path> names = names_in(folder);
  refuse_model_folder(folder, names);
  if (names.contains(report::kCompareFile)) return;
  if (names.contains(train::kRunRecordName) || store::has_checkpoints(folder)) {
    fail(ErrorKind::input, "{}: a training run lies there; choose another --out", folder.string());
  }
}

RunSession::RunSession(const fs::path& run, const std::string& program)
    : run_(run),
      found_(names_in_run(run)),
      folder_(run),
      lock_(run),
      record_(record_of(run, program)) {}

void RunSession::begin(const Start& start) {
  train::SessionFacts facts{.command = start.given.words,
                            .version = version(),
                            .commit = commit(),
                            .machine = train::describe_machine(),
                            .changed = start.changed};
  facts.machine["threads"] = start.engine.num_threads();
  facts.machine["device"] = start.common.device;
  facts.machine["kernels"] = start.engine.context().table->name;
  record_.begin(facts, start.options);
}

namespace {

// A run that goes on with other bytes under a known name: which file it is, the identity of the
// data does not say.
void tell_changed_files(const OrderedJson& before, const OrderedJson& now) {
  const auto key = [](const OrderedJson& file) {
    return std::pair(file.value("path", OrderedJson()), file.value("part", OrderedJson()));
  };
  for (const OrderedJson& file : now) {
    const auto known = std::find_if(before.begin(), before.end(), [&](const OrderedJson& other) {
      return other.is_object() && key(other) == key(file);
    });
    if (known == before.end() || known->value("xxh64", OrderedJson()) == file["xxh64"]) continue;
    log_warning("{} is not what it was when the run was last begun: {} bytes then, {} now",
                file["path"].get<std::string>(), known->value("bytes", OrderedJson()).dump(),
                file["bytes"].dump());
  }
}

}  // namespace

void RunSession::describe(const train::RunOptions& run, OrderedJson files, OrderedJson options) {
  if (!options.empty()) record_.set_options(std::move(options));
  tell_changed_files(record_.data(), files);
  record_.describe({.config = OrderedJson(run.config.to_json()),
                    .recipe = train::recipe_of(run),
                    .data = std::move(files)});
}

train::RunHooks RunSession::hooks(train::RunHooks hooks) {
  train::RunHooks with = hooks;
  with.on_start = [this, before = hooks.on_start](int64_t steps_done) {
    steps_done_ = steps_done;
    record_.start(steps_done);
    if (before) before(steps_done);
  };
  with.on_step = [this, before = hooks.on_step](const train::StepMetrics& metrics,
                                                const train::StepResult& result) {
    steps_done_ = metrics.step;
    if (before) before(metrics, result);
  };
  with.on_best = [this, before = hooks.on_best](const train::BestValidation& best) {
    record_.set_best(best);
    if (before) before(best);
  };
  return with;
}

train::RunOutcome RunSession::guard(FunctionRef<train::RunOutcome()> f) {
  std::optional<train::RunOutcome> outcome;
  try {
    outcome = f();
  } catch (const std::exception& error) {
    fail(error);
    throw;
  }
  end(outcome->steps_done, how_it_ended(*outcome));
  return *std::move(outcome);
}

// What was trained is saved, and what failed is to be told: neither hangs on this note.
void RunSession::end(int64_t steps_done, const std::string& how) {
  try {
    record_.end(steps_done, how);
  } catch (const Error& error) {
    log_warning("how the run ended ({}) could not be noted: {}", how, error.what());
  }
}

void RunSession::fail(const std::exception& error) {
  if (steps_done_ < 0) {
    undo();
  } else {
    end(steps_done_, std::string("failed: ") + error.what());
  }
}

void RunSession::undo() noexcept {
  record_.take_back();
  std::error_code ignored;
  std::set<fs::path> ours{".lock"};
  if (!keeps_data_) {
    ours.merge(
        std::set<fs::path>{"tokenizer.json", "tokenizer_config.json", ".tokenizer-key", "cache"});
  }
  for (const fs::path& name : ours) {
    if (!found_.contains(name)) fs::remove_all(run_ / name, ignored);
  }
}

}  // namespace dsmoe::app

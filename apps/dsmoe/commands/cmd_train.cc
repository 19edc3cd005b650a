// dsmoe train: text and a config -> a trained Hugging Face folder.
#include <memory>

#include "base/log.h"
#include "base/muted_log.h"
#include "commands/command.h"
#include "commands/train_job.h"
#include "commands/train_options.h"
#include "commands/train_ranks.h"
#include "terminal/interrupt.h"
#include "terminal/output.h"
#include "terminal/train_display.h"

namespace dsmoe::app {
namespace {

OrderedJson outcome_json(const train::RunOutcome& outcome) {
  OrderedJson json = {{"checkpoint", outcome.checkpoint.string()},
                      {"steps", outcome.steps_done},
                      {"finished", outcome.finished}};
  if (outcome.validation_loss) json["validation_loss"] = *outcome.validation_loss;
  if (outcome.last.validation && outcome.last.validation->bits_per_byte) {
    json["bits_per_byte"] = *outcome.last.validation->bits_per_byte;
  }
  if (outcome.first_validation_loss) json["first_validation_loss"] = *outcome.first_validation_loss;
  for (std::size_t i = 0;
       outcome.sources.size() > 1 && outcome.last.validation && i < outcome.sources.size(); ++i) {
    if (const auto& loss = outcome.last.validation->sources[i]) {
      json["validation_source_losses"][outcome.sources[i]] = *loss;
    }
  }
  for (const train::Figure& figure : outcome.last.figures)
    json["figures"][figure.name] = figure.value;
  if (outcome.best.loss) {
    json["best"] = {{"step", outcome.best.step}, {"validation_loss", *outcome.best.loss}};
  }
  return json;
}

void print_losses(const train::RunOutcome& outcome) {
  if (outcome.first_validation_loss) {
    print("before step 1    {:.4f}\n", *outcome.first_validation_loss);
  }
  if (outcome.validation_loss) print("validation loss  {:.4f}\n", *outcome.validation_loss);
  if (outcome.last.validation && outcome.last.validation->bits_per_byte) {
    print("bits per byte    {:.4f}\n", *outcome.last.validation->bits_per_byte);
  }
  if (outcome.sources.size() > 1 && outcome.last.validation) {
    for (std::size_t i = 0; i < outcome.sources.size(); ++i) {
      const auto& loss = outcome.last.validation->sources[i];
      print("  {:<14} {}\n", outcome.sources[i], loss ? fmt::format("{:.4f}", *loss) : "-");
    }
  }
  for (const train::Figure& figure : outcome.last.figures) {
    print("{:<16} {:.4f}\n", figure.name, figure.value);
  }
  if (outcome.best.loss && outcome.best.step > 0 && outcome.best.step < outcome.steps_done) {
    print("best             {:.4f} after step {}\n", *outcome.best.loss, outcome.best.step);
  }
}

void print_outcome(const TrainOptions& options, const train::RunOutcome& outcome) {
  if (options.common.json) return print_json(outcome_json(outcome));
  const std::string folder = outcome.checkpoint.string();
  print("checkpoint       {}\nsteps            {}\n", folder, outcome.steps_done);
  print_losses(outcome);
  if (outcome.early) {
    print("ended early      {} validations without a lower loss (--patience)\n",
          outcome.best.since);
  }
  if (outcome.finished) {
    print("try              dsmoe generate {} --prompt \"...\"\n", folder);
  } else {
    print("go on            dsmoe train --resume {}\n", options.run.out.string());
  }
}

int interrupted_code() { return InterruptScope::exit_code(); }

// `group`: the processes of which this is the first; null: it is the only one.
int train_as_first(const TrainOptions& options, const Given& given, comm::Group* group) {
  TrainDisplay display;
  try {
    TrainJob job(options, given,
                 {.cancelled = &InterruptScope::flag(),
                  .hooks = [&](int64_t total) { return display.hooks(total); },
                  .group = group});
    while (job.advance()) {
    }
    display.finish();
    const train::RunOutcome outcome = job.outcome();
    print_outcome(job.options(), outcome);
    return outcome.finished ? kDone : interrupted_code();
  } catch (const train::DataInterrupted&) {
    log_info("stopped before the first step: nothing was lost");
    if (group != nullptr) throw;  // the others wait
    return interrupted_code();
  }
}

int train_as_process(const TrainOptions& options, const Given& given) {
  int code = kDone;
  run_as_process([&](comm::Group& group) {
    if (group.rank() == 0) {
      code = train_as_first(options, given, &group);
    } else {
      const MutedLog muted;
      code = train_other_rank(options, given, group).finished ? kDone : interrupted_code();
    }
  });
  return code;
}

int run_train(const TrainOptions& options, const Given& given) {
  if (options.common.quiet) set_log_level(LogLevel::quiet);
  outlive_readers();
  const InterruptScope interrupt;
  if (launched_processes(options) > 1) return train_as_process(options, given);
  become_mpirun(complete_options(options, given), given.words);
  return train_as_first(options, given, nullptr);
}

}  // namespace

void add_train(CommandLine& app) {
  auto options = std::make_shared<TrainOptions>();
  CommandLine command = app.command("train", "Train a model on text, or go on training one");
  add_train_flags(command, *options);
  command.footer(
      "Checkpoints RUN/step-00000100 are model folders. Weights do not depend on --threads,\n"
      "--micro-batch, --recompute or interruptions: ctrl-c finishes the step, saves and stops;\n"
      "dsmoe train --resume RUN goes on. docs/training.md has the rest.\n\n"
      "Examples:\n  dsmoe train --config configs/small.json --data corpus.txt --out run\n"
      "  dsmoe train --init my-model --data chats.jsonl --out tuned \\\n"
      "    --train '*.experts.*' --lr 1e-4");
  command.runs([options](const Given& given) { return run_train(*options, given); });
}

}  // namespace dsmoe::app

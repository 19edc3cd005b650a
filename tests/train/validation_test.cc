// What a run measures and keeps on its way: sources with weights, the best checkpoint, patience,
// shares of the time. None of it changes a bit of the weights.
#include <gtest/gtest.h>

#include <fstream>

#include "base/json.h"
#include "base/scratch_folder.h"
#include "tiny_run.h"
#include "train/metrics_file.h"

namespace dsmoe::testing {
namespace {

namespace fs = std::filesystem;

std::vector<train::LoggedStep> log_of(const fs::path& run) {
  return train::read_metrics(run / "metrics.jsonl");
}

std::vector<int64_t> validated_steps(const fs::path& run) {
  std::vector<int64_t> steps;
  for (const train::LoggedStep& step : log_of(run)) {
    if (step.validation_loss) steps.push_back(step.step);
  }
  return steps;
}

using Losses = std::vector<std::pair<double, std::vector<std::pair<std::string, double>>>>;
Losses losses_of(const fs::path& run) {
  Losses losses;
  for (const train::LoggedStep& step : log_of(run)) {
    losses.emplace_back(step.loss, step.source_losses);
  }
  return losses;
}

TEST(Sources, TheSameBitsWhateverThreadsMicroBatchesAndStops) {
  ScratchFolder out;
  TinyRun run{.steps = 6, .weights = {0.75, 0.25}};
  const auto expected = files_of(run_tiny(run, out / "one").checkpoint);
  const Losses losses = losses_of(out / "one");
  ASSERT_EQ(losses.size(), 6u);
  EXPECT_EQ(losses[0].second.size(), 2u) << "a loss per source";
  run.threads = 3;
  run.micro_batch = 1;
  EXPECT_EQ(files_of(run_tiny(run, out / "cut").checkpoint), expected);
  EXPECT_EQ(losses_of(out / "cut"), losses);
  run.stop_after = 3;
  EXPECT_EQ(run_tiny(run, out / "stopped").steps_done, 3);
  run.stop_after = 0;
  run.resume = true;
  EXPECT_EQ(files_of(run_tiny(run, out / "stopped").checkpoint), expected);
  EXPECT_EQ(losses_of(out / "stopped"), losses);
  // Other weights are other weights: what was equal above was not equal by itself.
  run.resume = false;
  run.weights = {0.25, 0.75};
  EXPECT_NE(files_of(run_tiny(run, out / "other").checkpoint), expected);
}

TEST(Sources, TheirLossesMakeTheLossOfAll) {
  ScratchFolder out;
  std::vector<train::StepResult> results;
  TinyRun run{.steps = 4};
  run.hooks.on_step = [&](const train::StepMetrics&, const train::StepResult& result) {
    results.push_back(result);
  };
  const train::RunOutcome outcome = run_tiny(run, out / "run");
  ASSERT_EQ(results.size(), 4u);
  for (const train::StepResult& result : results) {
    double nats = 0;
    int64_t counted = 0;
    for (const train::SourceLoss& source : result.sources) {
      nats += source.nats;
      counted += source.counted;
    }
    EXPECT_EQ(counted, result.counted);
    // Two sums of the same some hundred doubles in two orders.
    EXPECT_NEAR(nats / static_cast<double>(counted), result.language, 1e-12 * result.language);
  }
  ASSERT_TRUE(outcome.last.validation);
  EXPECT_EQ(outcome.sources.size(), 2u);
  EXPECT_EQ(outcome.last.validation->sources.size(), 2u);
}

std::vector<std::string> checkpoints_in(const fs::path& run) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(run)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("step-")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Learns for a while, then breaks what it has learned.
TinyRun best_run() {
  TinyRun run{.steps = 12, .valid_first = true};
  run.change = [](train::RunOptions& options) {
    options.keep_best = true;
    options.valid_every = 1;
    options.retention.last = 1;
    options.schedule.kind = train::ScheduleKind::constant;
    options.schedule.warmup_steps = 12;
    options.schedule.max_lr = 1;
  };
  return run;
}

TEST(KeepBest, TheCheckpointOfTheLowestLossStays) {
  ScratchFolder out;
  TinyRun run = best_run();
  std::vector<train::BestValidation> told;
  run.hooks.on_best = [&](const train::BestValidation& best) { told.push_back(best); };
  const train::RunOutcome outcome = run_tiny(run, out / "run");
  ASSERT_FALSE(told.empty());
  std::optional<train::LoggedStep> lowest;
  for (const train::LoggedStep& step : log_of(out / "run")) {
    if (!lowest || *step.validation_loss < *lowest->validation_loss) lowest = step;
  }
  EXPECT_EQ(outcome.best.step, lowest->step);
  EXPECT_EQ(*outcome.best.loss, *lowest->validation_loss);
  EXPECT_EQ(told.back().step, lowest->step);
  ASSERT_LT(lowest->step, 12) << "the run has to get worse for this test to tell anything";
  EXPECT_EQ(checkpoints_in(out / "run"),
            (std::vector<std::string>{store::checkpoint_name(lowest->step), "step-00000012"}));
  // Whoever goes on knows it again.
  run.stop_after = lowest->step + 1;
  run_tiny(run, out / "stopped");
  run.stop_after = 0;
  run.resume = true;
  const train::RunOutcome resumed = run_tiny(run, out / "stopped");
  EXPECT_EQ(resumed.best.step, outcome.best.step);
  EXPECT_EQ(resumed.best.since, outcome.best.since);
  EXPECT_EQ(checkpoints_in(out / "stopped"), checkpoints_in(out / "run"));
}

TEST(KeepBest, ARunThatGoesOnKnowsTheLowestLossThatItDidNotKeep) {
  ScratchFolder out;
  TinyRun run = best_run();
  run.change = [change = run.change](train::RunOptions& options) {
    change(options);
    options.keep_best = false;
  };
  const train::BestValidation best = run_tiny(run, out / "whole").best;
  ASSERT_LT(best.step, 11);
  run.stop_after = best.step + 1;
  run_tiny(run, out / "stopped");
  run.stop_after = 0;
  run.resume = true;
  const train::BestValidation again = run_tiny(run, out / "stopped").best;
  EXPECT_EQ(again.step, best.step);
  EXPECT_EQ(again.loss, best.loss);
  EXPECT_EQ(again.since, best.since);
}

// A kill between the checkpoint and the word that it is the best.
TEST(KeepBest, WhoWasKilledBeforeTellingTellsLater) {
  ScratchFolder out;
  TinyRun run = best_run();
  std::vector<int64_t> told;
  run.hooks.on_best = [&](const train::BestValidation& best) { told.push_back(best.step); };
  run_tiny(run, out / "whole");
  ASSERT_FALSE(told.empty());
  const int64_t lowest = told.back();
  told.clear();
  run.hooks.on_best = [&](const train::BestValidation& best) {
    if (best.step == lowest) throw std::runtime_error("killed");
  };
  EXPECT_THROW(run_tiny(run, out / "run"), std::runtime_error);
  run.hooks.on_best = [&](const train::BestValidation& best) { told.push_back(best.step); };
  run.resume = true;
  run_tiny(run, out / "run");
  EXPECT_EQ(told, std::vector<int64_t>{lowest});
  // Also where nothing is left to do.
  told.clear();
  run_tiny(run, out / "run");
  EXPECT_EQ(told, std::vector<int64_t>{lowest});
  // A best that was not kept is none to be told of.
  told.clear();
  fs::remove_all(out / "run" / store::checkpoint_name(lowest));
  run_tiny(run, out / "run");
  EXPECT_EQ(told, std::vector<int64_t>{});
}

TEST(Patience, EndsARunThatLearnsNothing) {
  ScratchFolder out;
  TinyRun run{.steps = 20, .valid_first = true, .lr = 0};
  run.change = [](train::RunOptions& options) {
    options.patience = 2;
    options.valid_every = 3;
  };
  const train::RunOutcome outcome = run_tiny(run, out / "run");
  EXPECT_TRUE(outcome.early);
  EXPECT_TRUE(outcome.finished);
  EXPECT_EQ(outcome.steps_done, 6);
  EXPECT_EQ(outcome.best.step, 0);
  EXPECT_EQ(outcome.checkpoint.filename(), "step-00000006");
  // It is over, whoever asks for it again; a kill behind the last checkpoint changes nothing.
  run.resume = true;
  const train::RunOutcome again = run_tiny(run, out / "run");
  EXPECT_TRUE(again.early);
  EXPECT_TRUE(again.finished);
  EXPECT_EQ(again.steps_done, 6);
  EXPECT_EQ(again.best.since, 2);
  EXPECT_EQ(again.checkpoint.filename(), "step-00000006");
  EXPECT_EQ(checkpoints_in(out / "run"), std::vector<std::string>{"step-00000006"});
  // More patience goes on.
  run.change = [](train::RunOptions& options) {
    options.patience = 3;
    options.valid_every = 3;
  };
  EXPECT_EQ(run_tiny(run, out / "run").steps_done, 9);
}

TEST(Shares, ValidationsAndSavesOutOfTimeArePassedOverAndNoBitChanges) {
  ScratchFolder out;
  TinyRun run{.steps = 9, .save_every = 1};
  run.change = [](train::RunOptions& options) {
    options.valid_every = 1;
    options.retention.last = 100;
  };
  const auto expected = files_of(run_tiny(run, out / "all").checkpoint);
  EXPECT_EQ(validated_steps(out / "all").size(), 9u);
  EXPECT_EQ(checkpoints_in(out / "all").size(), 9u);
  run.change = [](train::RunOptions& options) {
    options.valid_every = 1;
    options.retention.last = 100;
    options.save_share = options.valid_share = 1e-9;
  };
  EXPECT_EQ(files_of(run_tiny(run, out / "few").checkpoint), expected);
  EXPECT_EQ(validated_steps(out / "few"), (std::vector<int64_t>{1, 9}));
  EXPECT_EQ(checkpoints_in(out / "few"),
            (std::vector<std::string>{"step-00000001", "step-00000009"}));
}

TEST(Figures, WhatOthersMeasureIsLoggedWithEveryValidation) {
  ScratchFolder out;
  TinyRun run{.steps = 2, .valid_first = true};
  run.change = [](train::RunOptions& options) {
    options.valid_every = 1;
    options.figures = {"layers"};
  };
  run.hooks.measure = [](const model::Model& model) {
    return std::vector<double>{static_cast<double>(model.config.num_hidden_layers)};
  };
  const train::RunOutcome outcome = run_tiny(run, out / "run");
  ASSERT_EQ(outcome.last.figures.size(), 1u);
  const auto layers = static_cast<double>(run.config.num_hidden_layers);
  for (const train::LoggedStep& step : log_of(out / "run")) {
    ASSERT_EQ(step.figures.size(), 1u);
    EXPECT_EQ(step.figures[0].second, layers);
  }
  std::ifstream file(out / "run/metrics.csv");
  std::string line;
  int rows = 0;
  for (; std::getline(file, line); ++rows) {
    if (rows == 0) {
      EXPECT_NE(line.find("figures: layers"), std::string::npos);
    }
    if (rows == 1) {
      EXPECT_EQ(line.substr(0, 3), "0,,");
    }
  }
  EXPECT_EQ(rows, 4);  // names, before step 1, two steps
}

TEST(Metrics, ThoseOfAStoppedRunReadAsIfItHadNeverStopped) {
  ScratchFolder out;
  TinyRun run{.steps = 8, .stop_after = 5, .save_every = 3};
  run_tiny(run, out / "run");
  fs::remove_all(out / "run/step-00000005");
  run.stop_after = 0;
  run.resume = true;
  run_tiny(run, out / "run");
  std::ifstream file(out / "run/metrics.csv");
  std::string line;
  std::getline(file, line);
  for (int step = 1; step <= 8; ++step) {
    ASSERT_TRUE(std::getline(file, line));
    EXPECT_EQ(line.substr(0, 2), std::to_string(step) + ",");
  }
  EXPECT_FALSE(std::getline(file, line));
  for (const train::LoggedStep& logged : log_of(out / "run")) {
    EXPECT_GE(logged.wall_seconds, logged.seconds);
  }
}

}  // namespace
}  // namespace dsmoe::testing

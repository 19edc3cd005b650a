// Runs as a user meets them: resuming, refusing, damaged checkpoints, logs.
#include <gtest/gtest.h>

#include <fstream>

#include "base/atomic_file.h"
#include "base/engine_version.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/scratch_folder.h"
#include "base/sha256.h"
#include "tiny_run.h"

namespace dsmoe::testing {
namespace {

namespace fs = std::filesystem;

std::string refusal(const TinyRun& run, const fs::path& out) {
  try {
    run_tiny(run, out);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::vector<int64_t> logged_steps(const fs::path& run) {
  std::vector<int64_t> steps;
  std::ifstream file(run / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const Json value = parse_json(line, "metrics.jsonl");
    steps.push_back(value.at("step").get<int64_t>());
    EXPECT_GT(value.at("loss").get<double>(), 0);
    // Reports and comparisons take the speed from the seconds, also of steps of a millisecond.
    const double speed = value.at("tokens_per_second").get<double>();
    EXPECT_NEAR(value.at("tokens").get<double>() / value.at("seconds").get<double>(), speed,
                0.01 * speed);
    EXPECT_EQ(value.at("layers").at(0).at("load").size(), 6u);
  }
  return steps;
}

TEST(Run, LearnsAndLogs) {
  ScratchFolder out;
  TinyRun run{.steps = 12, .save_every = 4};
  const train::RunOutcome outcome = run_tiny(run, out / "run");
  EXPECT_TRUE(outcome.finished);
  ASSERT_TRUE(outcome.validation_loss);
  EXPECT_LT(*outcome.validation_loss, 5.5);
  EXPECT_EQ(logged_steps(out / "run"),
            (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}));
  EXPECT_TRUE(fs::exists(out / "run/step-00000004"));
  EXPECT_TRUE(fs::exists(out / "run/step-00000012/tokenizer.json"));
}

TEST(Run, ValidatesBeforeTheFirstStepWhenAsked) {
  ScratchFolder out;
  TinyRun run{.steps = 2, .valid_first = true, .lr = 0};  // learns nothing
  const train::RunOutcome outcome = run_tiny(run, out / "run");
  ASSERT_TRUE(outcome.first_validation_loss);
  EXPECT_EQ(*outcome.first_validation_loss, *outcome.validation_loss);
  EXPECT_EQ(logged_steps(out / "run"), (std::vector<int64_t>{1, 2}));
  std::ifstream file(out / "run/metrics.jsonl");
  std::string first, second;
  std::getline(file, first);
  std::getline(file, second);
  EXPECT_EQ(parse_json(first, "first").at("first_validation_loss"), *outcome.validation_loss);
  EXPECT_FALSE(parse_json(second, "second").contains("first_validation_loss"));
  // A run that goes on has begun already.
  run.resume = true;
  run.steps = 3;
  EXPECT_FALSE(run_tiny(run, out / "run").first_validation_loss);
  run.lr = 3e-3;
  run.valid_first = false;
  run.resume = false;
  const auto expected = files_of(run_tiny(run, out / "without").checkpoint);
  run.valid_first = true;
  EXPECT_EQ(files_of(run_tiny(run, out / "with").checkpoint), expected) << "looking changed it";
}

TEST(Run, ResumeOnAnEmptyFolderStartsAfresh) {
  ScratchFolder out;
  TinyRun run{.steps = 2, .resume = true};
  EXPECT_EQ(run_tiny(run, out / "run").steps_done, 2);
}

TEST(Run, CheckpointsAreNeverOverwritten) {
  ScratchFolder out;
  TinyRun run{.steps = 2};
  run_tiny(run, out / "run");
  EXPECT_NE(refusal(run, out / "run").find("--resume"), std::string::npos);
  run.resume = true;
  run.steps = 1;  // fewer than are done
  const LogLevel level = log_level();
  set_log_level(LogLevel::info);
  ::testing::internal::CaptureStderr();
  const train::RunOutcome outcome = run_tiny(run, out / "run");
  const std::string said = ::testing::internal::GetCapturedStderr();
  set_log_level(level);
  EXPECT_EQ(outcome.steps_done, 2) << "nothing to do is no error";
  EXPECT_EQ(outcome.checkpoint.filename(), "step-00000002");
  EXPECT_NE(said.find("2 steps are done already; --steps 1 leaves nothing to do"),
            std::string::npos)
      << said;
  EXPECT_EQ(logged_steps(out / "run"), (std::vector<int64_t>{1, 2}));
}

TEST(Run, AnotherRunsCheckpointIsRefusedWithEveryDifference) {
  ScratchFolder out;
  TinyRun run{.steps = 2};
  run_tiny(run, out / "run");
  run.resume = true;
  run.seed = 9;
  run.config.aux_loss_alpha = 0.5;
  const std::string message = refusal(run, out / "run");
  EXPECT_NE(message.find("seed: the checkpoint has 1, this run has 9"), std::string::npos)
      << message;
  EXPECT_NE(message.find("config: aux_loss_alpha: the checkpoint has 0.01, this run has 0.5"),
            std::string::npos)
      << message;
}

TEST(Run, KnowsWhatEarlierProgramsCalledItsData) {
  ScratchFolder out;
  TinyRun run{.steps = 2};
  run.data = "a.txt";
  run_tiny(run, out / "run");
  run.resume = true;
  run.steps = 3;
  run.data = "content";
  EXPECT_NE(refusal(run, out / "run").find("data: the checkpoint has \"a.txt\""),
            std::string::npos);
  run.former_data = "a.txt";
  EXPECT_EQ(run_tiny(run, out / "run").steps_done, 3);
  run.former_data = "";  // the new name is in the checkpoint now
  run.steps = 4;
  EXPECT_EQ(run_tiny(run, out / "run").steps_done, 4);
}

TEST(Run, DamagedCheckpointsArePassedOver) {
  ScratchFolder out;
  TinyRun run{.steps = 8};
  const auto expected = files_of(run_tiny(run, out / "whole").checkpoint);
  run.save_every = 2;
  run.stop_after = 6;
  run_tiny(run, out / "cut");
  // The newest loses a byte, the one before has one changed.
  fs::resize_file(out / "cut/step-00000006/train_state.safetensors",
                  fs::file_size(out / "cut/step-00000006/train_state.safetensors") - 1);
  {
    std::fstream file(out / "cut/step-00000004/model.safetensors",
                      std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(2000);
    file.put('\x55');
  }
  run.stop_after = 0;
  run.resume = true;
  const LogLevel level = log_level();
  set_log_level(LogLevel::info);
  ::testing::internal::CaptureStderr();
  const train::RunOutcome outcome = run_tiny(run, out / "cut");
  const std::string said = ::testing::internal::GetCapturedStderr();
  set_log_level(level);
  EXPECT_NE(said.find("step-00000006 is passed over"), std::string::npos) << said;
  EXPECT_NE(said.find("step-00000004 is passed over"), std::string::npos) << said;
  EXPECT_NE(said.find("resumed from " + (out / "cut/step-00000002").string()), std::string::npos)
      << said;
  EXPECT_EQ(files_of(outcome.checkpoint), expected);
  EXPECT_EQ(logged_steps(out / "cut"), (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8}));
}

// A checkpoint whose state says something else of who made it, and a manifest that agrees.
void change_maker(const fs::path& checkpoint, const std::string& from, const std::string& to) {
  const auto replace = [](const fs::path& path, const std::string& was, const std::string& is) {
    std::string bytes = read_small_file(path, 1 << 24);
    const std::size_t at = bytes.find(was);
    ASSERT_NE(at, std::string::npos) << was;
    atomic_write_file(path, bytes.replace(at, was.size(), is));
  };
  const fs::path state = checkpoint / store::kTrainStateName;
  const std::string before = sha256(read_small_file(state, 1 << 24));
  replace(state, from, to);
  replace(checkpoint / "MANIFEST.json", before, sha256(read_small_file(state, 1 << 24)));
}

TEST(Run, SaysWhenItGoesOnWithOtherBits) {
  ScratchFolder out;
  TinyRun run{.steps = 2, .stop_after = 1};
  const fs::path first = run_tiny(run, out / "run").checkpoint;
  run.stop_after = 0;
  run.resume = true;
  const auto warnings = [&](const fs::path& folder) {
    const LogLevel level = log_level();
    set_log_level(LogLevel::warning);
    ::testing::internal::CaptureStderr();
    EXPECT_TRUE(run_tiny(run, folder).finished);
    set_log_level(level);
    return ::testing::internal::GetCapturedStderr();
  };
  const auto warnings_of = [&](const std::string& from, const std::string& to) {
    const fs::path copy = out / ("made by " + std::to_string(to.size()));
    fs::copy(out / "run", copy, fs::copy_options::recursive);
    change_maker(copy / first.filename(), from, to);
    return warnings(copy);
  };
  const std::string device = warnings_of("\"device\":\"cpu\"", "\"device\":\"gpu\"");
  EXPECT_NE(device.find("was made on gpu, the run goes on on cpu"), std::string::npos) << device;
  const std::string now = std::to_string(kEngineVersion);
  const std::string engine = warnings_of("\"engine\":\"" + now + "\"",
                                         "\"engine\":\"" + std::string(now.size(), '0') + "\"");
  EXPECT_NE(engine.find("was made by engine version 0"), std::string::npos) << engine;
  EXPECT_EQ(warnings(out / "run"), "");
}

TEST(Run, NothingThatVerifiesIsAnError) {
  ScratchFolder out;
  fs::create_directories(out / "run/step-00000003");
  TinyRun run{.steps = 2, .resume = true};
  EXPECT_NE(refusal(run, out / "run").find("none of its 1 checkpoints verifies"),
            std::string::npos);
}

TEST(Run, OneWriterPerRun) {
  ScratchFolder out;
  const store::RunLock lock(out / "run");
  EXPECT_NE(refusal({.steps = 2}, out / "run").find("is training there"), std::string::npos);
}

TEST(Run, ImpossibleOptionsAreRefused) {
  ScratchFolder out;
  EXPECT_NE(refusal({.micro_batch = 3}, out / "run").find("does not divide"), std::string::npos);
  EXPECT_NE(refusal({.patterns = {"nothing*"}}, out / "run").find("no tensor"), std::string::npos);
}

TEST(Run, ADivergedRunStopsAndKeepsItsCheckpoint) {
  ScratchFolder out;
  TinyRun run{.steps = 30, .save_every = 1};
  run.lr = 1e30;
  EXPECT_NE(refusal(run, out / "run"), "");
  EXPECT_TRUE(store::newest_checkpoint(out / "run").folder);
}

}  // namespace
}  // namespace dsmoe::testing

// A disk that fails in the middle of a run: the run stops with a message, what was saved stays, and
// a resumed run ends as if nothing had happened.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"
#include "base/failing_disk.h"
#include "base/scratch_folder.h"
#include "tiny_run.h"

namespace dsmoe::testing {
namespace {

TinyRun saving_run() {
  TinyRun run;
  run.steps = 4;
  run.save_every = 1;
  return run;
}

class WriteFailure : public ::testing::TestWithParam<int> {};

TEST_P(WriteFailure, LeavesWhatWasSaved) {
  const TinyRun run = saving_run();
  ScratchFolder out;
  const auto expected = files_of(run_tiny(run, out / "whole").checkpoint);
  int stopped = 0;
  // Every 29th call: checkpoints have some 200, so that all kinds of calls are met.
  for (int64_t at = 0;; at += 29) {
    const auto folder = out / std::to_string(at);
    FailingDisk::countdown = at;
    FailingDisk::failure = GetParam();
    std::string message;
    try {
      run_tiny(run, folder);
    } catch (const Error& error) {
      message = error.what();
    }
    const bool was_reached = FailingDisk::countdown < 0;
    FailingDisk::countdown = -1;
    if (!was_reached) break;
    const store::NewestCheckpoint newest = store::newest_checkpoint(folder);
    EXPECT_TRUE(newest.passed_over.empty()) << "call " << at << ": " << message;
    TinyRun resumed = run;
    resumed.resume = true;
    EXPECT_EQ(files_of(run_tiny(resumed, folder).checkpoint), expected) << "call " << at;
    if (!message.empty()) ++stopped;
  }
  EXPECT_GT(stopped, 10);
}

INSTANTIATE_TEST_SUITE_P(All, WriteFailure, ::testing::Values(ENOSPC, EIO),
                         [](const auto& test) { return test.param == EIO ? "EIO" : "ENOSPC"; });

}  // namespace
}  // namespace dsmoe::testing

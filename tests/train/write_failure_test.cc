// A disk that fails in the middle of a run: the run stops with a message, what was saved stays, and
// a resumed run ends as if nothing had happened.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"
#include "store/scratch_folder.h"
#include "tiny_run.h"

// Calls that write, counted; the chosen one fails. Everything linked into this binary goes through
// them.
namespace {
int64_t countdown = -1;  // calls until one fails; below 0: never
int failure = 0;         // its errno
bool fails_now() {
  if (countdown < 0 || countdown-- > 0) return false;
  errno = failure;
  return true;
}
template <class F>
F original(const char* name) {
  return reinterpret_cast<F>(::dlsym(RTLD_NEXT, name));
}
}  // namespace
extern "C" ssize_t pwrite(int descriptor, const void* data, size_t size, off_t offset) {
  static const auto real = original<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite");
  return fails_now() ? -1 : real(descriptor, data, size, offset);
}
extern "C" ssize_t write(int descriptor, const void* data, size_t size) {
  static const auto real = original<ssize_t (*)(int, const void*, size_t)>("write");
  return fails_now() ? -1 : real(descriptor, data, size);
}
extern "C" int fsync(int descriptor) {
  static const auto real = original<int (*)(int)>("fsync");
  return fails_now() ? -1 : real(descriptor);
}
extern "C" int rename(const char* from, const char* to) noexcept {
  static const auto real = original<int (*)(const char*, const char*)>("rename");
  return fails_now() ? -1 : real(from, to);
}

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
  store::ScratchFolder out;
  const auto expected = files_of(run_tiny(run, out / "whole").checkpoint);
  int stopped = 0;
  // Every 29th call: checkpoints have some 200, so that all kinds of calls are met.
  for (int64_t at = 0;; at += 29) {
    const auto folder = out / std::to_string(at);
    countdown = at;
    failure = GetParam();
    std::string message;
    try {
      run_tiny(run, folder);
    } catch (const Error& error) {
      message = error.what();
    }
    const bool was_reached = countdown < 0;
    countdown = -1;
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

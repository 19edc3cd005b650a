// Stopped after every step and resumed: byte-equal files. Long, so by hand (make soak).
#include <gtest/gtest.h>

#include "base/scratch_folder.h"
#include "tiny_run.h"

namespace dsmoe::testing {
namespace {

void expect_every_stop(const model::ModelConfig& config) {
  ScratchFolder out;
  TinyRun run{.config = config};
  const auto expected = files_of(run_tiny(run, out / "whole").checkpoint);
  for (int64_t stop = 1; stop <= run.steps; ++stop) {
    TinyRun cut = run;
    cut.stop_after = stop;
    const auto folder = out / ("cut-" + std::to_string(stop));
    run_tiny(cut, folder);
    cut.stop_after = 0;
    cut.resume = true;
    EXPECT_EQ(files_of(run_tiny(cut, folder).checkpoint), expected) << "stopped after " << stop;
  }
  // And stopped after each of them, one after the other.
  TinyRun steps = run;
  steps.resume = true;
  for (steps.stop_after = 1; steps.stop_after <= run.steps; ++steps.stop_after) {
    run_tiny(steps, out / "each");
  }
  EXPECT_EQ(files_of(out / "each/step-00000020"), expected);
}

TEST(StopEverywhere, Fp32) { expect_every_stop(tiny_config(tensor::DType::F32)); }
TEST(StopEverywhere, Bf16) { expect_every_stop(tiny_config(tensor::DType::BF16)); }
TEST(StopEverywhere, V3Fp32) { expect_every_stop(tiny_v3_config(tensor::DType::F32)); }
TEST(StopEverywhere, V3Bf16) { expect_every_stop(tiny_v3_config(tensor::DType::BF16)); }

}  // namespace
}  // namespace dsmoe::testing

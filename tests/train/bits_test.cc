// The same weights, bit for bit, whatever the threads, the micro-batches, recomputation or
// interruptions.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "base/scratch_folder.h"
#include "store/hf_folder.h"
#include "tiny_run.h"
#include "train/sources.h"

namespace dsmoe::testing {
namespace {

namespace fs = std::filesystem;
using tensor::DType;
using Files = std::map<std::string, std::string>;

Files trained(const TinyRun& run) {
  ScratchFolder out;
  const train::RunOutcome outcome = run_tiny(run, out / "run");
  EXPECT_TRUE(outcome.finished);
  return files_of(outcome.checkpoint);
}

struct Kind {
  std::string name;
  model::ModelConfig config;
};

class Bits : public ::testing::TestWithParam<Kind> {
 protected:
  TinyRun base() const { return {.config = GetParam().config}; }
  // One run of the plain kind, made once per parameter.
  const Files& expected() const {
    static std::map<std::string, Files> cache;
    Files& files = cache[GetParam().name];
    if (files.empty()) files = trained(base());
    return files;
  }
};

TEST_P(Bits, Threads) {
  for (const int threads : {2, 3}) {
    TinyRun run = base();
    run.threads = threads;
    EXPECT_EQ(trained(run), expected()) << threads << " threads";
  }
}

TEST_P(Bits, MicroBatches) {
  for (const int64_t rows : {1, 8}) {
    TinyRun run = base();
    run.micro_batch = rows;
    EXPECT_EQ(trained(run), expected()) << rows << " rows at a time";
  }
}

TEST_P(Bits, Recomputation) {
  TinyRun run = base();
  run.recompute = model::Recompute::blocks;
  run.micro_batch = 2;
  EXPECT_EQ(trained(run), expected());
}

// What must make a difference, makes one: the comparison above is not blind.
TEST_P(Bits, AnotherSeedDiffers) {
  TinyRun run = base();
  run.seed = 2;
  EXPECT_NE(trained(run).at("model.safetensors"), expected().at("model.safetensors"));
}

TEST_P(Bits, StopAndResume) {
  for (const int64_t stop : {1, 13}) {
    ScratchFolder out;
    TinyRun run = base();
    run.stop_after = stop;
    const train::RunOutcome stopped = run_tiny(run, out / "run");
    EXPECT_FALSE(stopped.finished);
    EXPECT_EQ(stopped.steps_done, stop);
    run.stop_after = 0;
    run.resume = true;
    run.micro_batch = 8;
    const train::RunOutcome resumed = run_tiny(run, out / "run");
    EXPECT_TRUE(resumed.finished);
    EXPECT_EQ(files_of(resumed.checkpoint), expected()) << "stopped after " << stop;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Bits,
                         ::testing::Values(Kind{"fp32", tiny_config(DType::F32)},
                                           Kind{"v3_bf16", tiny_v3_config(DType::BF16)}),
                         [](const auto& test) { return test.param.name; });

// One loss over several rows: how many is the run's, whatever the micro-batch.
TEST(BalanceOverRows, MicroBatches) {
  TinyRun run;
  run.config.seq_aux = false;
  run.config.aux_loss_alpha = 0.5;
  run.micro_batch = 8;
  const Files whole_batch = trained(run);  // 8 rows of 22 tokens are less than 4096
  run.balance_group = 8;
  EXPECT_EQ(trained(run), whole_batch);
  run.balance_group = 2;
  const Files pairs = trained(run);
  EXPECT_NE(pairs.at("model.safetensors"), whole_batch.at("model.safetensors"));
  for (const int64_t rows : {2, 4}) {
    run.micro_batch = rows;
    EXPECT_EQ(trained(run), pairs) << rows << " rows at a time";
  }
  run.balance_group = 0;
  run.micro_batch = 4;
  EXPECT_THROW(trained(run), Error);
  run.config.aux_loss_alpha = 0;  // nothing to divide
  trained(run);
}

TEST(BalanceOverRows, DefaultMicroBatchesHoldWholeGroups) {
  train::RunOptions run{.batch = 48, .seq = 512};
  EXPECT_EQ(train::default_micro_batch(run, 4096), 8);
  EXPECT_EQ(train::default_micro_batch(run, 32768), 48);
  run.config.seq_aux = false;
  EXPECT_EQ(train::rows_per_balance_group(run), 8);
  EXPECT_EQ(train::default_micro_batch(run, 4096), 8);
  EXPECT_EQ(train::default_micro_batch(run, 16384), 24);
  run.balance_group = 16;
  EXPECT_EQ(train::default_micro_batch(run, 4096), 16);
  run.seq = 8192;
  run.balance_group = 0;
  EXPECT_EQ(train::default_micro_batch(run, 4096), 1);
}

TEST(PartialTraining, TheOthersStayAsTheyWere) {
  ScratchFolder out;
  for (const DType type : {DType::F32, DType::BF16}) {
    TinyRun run{.config = tiny_config(type), .patterns = {"*.experts.2.*", "*.q_proj.weight"}};
    run.steps = 5;
    const fs::path folder = out / (type == DType::F32 ? "run32" : "run16");
    const auto first = store::HfFolder::open(run_tiny(run, folder).checkpoint);
    RandomWeights initial;
    train::RoundedParameters stored(initial, run.config);
    int changed = 0;
    for (const model::Parameter& parameter : model::inventory(run.config).parameters) {
      const std::string& name = parameter.name;
      const bool wanted =
          name.find(".experts.2.") != std::string::npos || name.ends_with("q_proj.weight");
      const tensor::TensorView original = stored.tensor(parameter).elements;
      const auto bytes = first.bytes(name);
      ASSERT_EQ(bytes.size(), original.num_bytes());
      const bool same =
          std::equal(bytes.begin(), bytes.end(), static_cast<const std::byte*>(original.data));
      EXPECT_EQ(same, !wanted) << name;
      changed += same ? 0 : 1;
    }
    EXPECT_EQ(changed, 5);
    // Only those carry state.
    const auto state =
        store::SafetensorsFile::open(folder / "step-00000005" / "train_state.safetensors");
    EXPECT_EQ(state.tensors().size(), 15u);
  }
}

// The norm, and with it every weight, depends on gradients of trained tensors only: frozen ones
// change what the rest does, but a resumed partial run is still exact.
TEST(PartialTraining, ResumesExactly) {
  ScratchFolder out;
  TinyRun run{.config = tiny_config(DType::BF16), .patterns = {"*.mlp.*"}, .steps = 6};
  const Files expected = files_of(run_tiny(run, out / "whole").checkpoint);
  run.stop_after = 2;
  run_tiny(run, out / "cut");
  run.stop_after = 0;
  run.resume = true;
  EXPECT_EQ(files_of(run_tiny(run, out / "cut").checkpoint), expected);
}

}  // namespace
}  // namespace dsmoe::testing

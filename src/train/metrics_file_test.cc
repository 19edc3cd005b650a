// Metrics as a run writes them, and everything a run never writes.
#include "train/metrics_file.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "base/scratch_folder.h"
#include "train/metrics.h"

namespace dsmoe::train {
namespace {

constexpr const char* kLine =
    R"({"step":1,"loss":5.5,"balance_loss":0.1,"device_balance_loss":0,"z_loss":0,"lr":0.001,)"
    R"("gradient_norm":2,"epoch":0,"tokens":64,"counted_targets":60,"seconds":0.5,)"
    R"("tokens_per_second":128,"layers":[{"layer":1,"max_load":1.5,"dead":0,"load_entropy":0.9,)"
    R"("load":[0.5,1.5]}]})";

std::string replaced(std::string line, const std::string& from, const std::string& to) {
  const std::size_t at = line.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return line.replace(at, from.size(), to);
}

std::vector<LoggedStep> read(const std::string& text) {
  const ScratchFolder scratch;
  std::ofstream(scratch / "metrics.jsonl") << text;
  return read_metrics(scratch / "metrics.jsonl");
}

std::string refusal(const std::string& text) {
  try {
    read(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(MetricsFile, ReadsWhatARunWrites) {
  const std::string second = replaced(replaced(kLine, "\"step\":1", "\"step\":2"), "\"layers\"",
                                      "\"validation_loss\":5.25,\"layers\"");
  const std::vector<LoggedStep> steps = read(std::string(kLine) + "\n" + second + "\n");
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].loss, 5.5);
  EXPECT_FALSE(steps[0].validation_loss);
  EXPECT_EQ(steps[1].step, 2);
  EXPECT_EQ(steps[1].validation_loss, 5.25);
  ASSERT_EQ(steps[0].layers.size(), 1u);
  EXPECT_EQ(steps[0].layers[0].load, (std::vector<double>{0.5, 1.5}));
}

TEST(MetricsFile, ALineBeingWrittenIsLeftOut) {
  EXPECT_EQ(read(std::string(kLine) + "\n" + std::string(kLine).substr(0, 40)).size(), 1u);
  EXPECT_TRUE(read("").empty());
}

// After a power cut the end of a file may be zeros.
TEST(MetricsFile, AResumedRunDropsALineWithZerosInIt) {
  const ScratchFolder scratch;
  const std::string second = replaced(kLine, "\"step\":1", "\"step\":2");
  std::ofstream(scratch / "metrics.jsonl") << kLine << "\n"
                                           << second << std::string(8, '\0') << "\n";
  { const MetricsLog log({.run = scratch.path(), .steps_done = 2}); }
  EXPECT_EQ(read_metrics(scratch / "metrics.jsonl").size(), 1u);
}

TEST(MetricsFile, RefusesWhatNoRunWrites) {
  const std::string line = kLine;
  EXPECT_NE(refusal("not json\n").find("metrics.jsonl:1"), std::string::npos);
  EXPECT_NE(refusal("[]\n").find("JSON object"), std::string::npos);
  EXPECT_NE(refusal(line + "\n" + line + "\n").find("metrics.jsonl:2: step 1 follows step 1"),
            std::string::npos);
  for (const auto& [from, to] :
       std::vector<std::pair<std::string, std::string>>{{"\"step\":1", "\"step\":\"1\""},
                                                        {"\"step\":1", "\"step\":-1"},
                                                        {"\"loss\":5.5", "\"loss\":null"},
                                                        {"\"loss\":5.5", "\"loss\":\"<b>\""},
                                                        {"\"lr\":0.001,", ""},
                                                        {"\"layers\":[", "\"layers\":[7,"},
                                                        {"\"dead\":0", "\"dead\":0.5"},
                                                        {"[0.5,1.5]", "[]"},
                                                        {"[0.5,1.5]", "[0.5,-1]"},
                                                        {"[0.5,1.5]", "{}"}}) {
    EXPECT_NE(refusal(replaced(line, from, to) + "\n"), "") << from << " -> " << to;
  }
  const std::string other =
      replaced(replaced(line, "\"step\":1", "\"step\":2"), "\"layer\":1", "\"layer\":3");
  EXPECT_NE(refusal(line + "\n" + other + "\n").find("other MoE layers"), std::string::npos);
}

}  // namespace
}  // namespace dsmoe::train

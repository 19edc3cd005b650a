// The card of a run, and several runs on one page.
#include "report/runs_report.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "base/scratch_folder.h"
#include "report/run_card.h"
#include "report/run_report.h"
#include "train/run_record.h"

namespace dsmoe::report {
namespace {

namespace fs = std::filesystem;

void log_steps(const fs::path& run, double loss) {
  fs::create_directories(run);
  std::ofstream log(run / "metrics.jsonl");
  for (int step = 1; step <= 2; ++step) {
    log << fmt::format(
        R"({{"step":{},"loss":{},"balance_loss":0,"device_balance_loss":0,"z_loss":0,"lr":0,)"
        R"("gradient_norm":1,"tokens":100,"seconds":0.5,"wall_seconds":1,)"
        R"("validation_loss":{},"validation_bits_per_byte":1.5,{})"
        R"("source_losses":{{"a.txt":3,"b.txt":{}}},"layers":[]}})"
        "\n",
        step, loss, loss, step == 1 ? R"("first_validation_loss":6,)" : "", 3 + step);
  }
}

void record(const fs::path& run, double lr) {
  train::RunRecord made(run, "train");
  made.begin({.command = {"dsmoe", "train", "--data", "a b.txt"},
              .version = "1.2.3",
              .commit = "abc",
              .machine = {{"host", "here"}, {"cores", 2}},
              .changed = {"--steps 2 instead of 1"}},
             OrderedJson::object());
  made.describe(
      {.config = OrderedJson::object(),
       .recipe = {{"lr", lr}, {"batch", 4}},
       .data = OrderedJson::array(
           {{{"path", "/a b.txt"}, {"bytes", 12345}, {"share", 0.5}, {"xxh64", "00ff"}}})});
  made.start(0);
  made.end(2, "finished");
}

std::string value_of(const OrderedJson& card, const std::string& name) {
  for (const OrderedJson& row : card) {
    if (row["name"] == name) return row["value"];
  }
  return "";
}

TEST(RunCard, SaysHowTheRunWasMade) {
  const ScratchFolder scratch;
  EXPECT_TRUE(run_card(scratch.path()).empty());
  record(scratch.path(), 0.001);
  const OrderedJson card = run_card(scratch.path());
  EXPECT_EQ(value_of(card, "command"), "dsmoe train --data 'a b.txt'");
  EXPECT_NE(value_of(card, "session").find("from step 1 to 2: finished; --steps 2 instead of 1"),
            std::string::npos);
  EXPECT_EQ(value_of(card, "program"), "dsmoe 1.2.3 (abc)");
  EXPECT_EQ(value_of(card, "machine"), "here, 2 cores");
  EXPECT_EQ(value_of(card, "data"), "/a b.txt, 12,345 bytes, 0.5 of the rows, xxh64 00ff");
  EXPECT_EQ(value_of(card, "recipe"), "lr 0.001, batch 4");
}

TEST(RunCard, WhateverStandsInTheFileIsText) {
  const ScratchFolder scratch;
  std::ofstream(scratch / "run.json")
      << R"({"format": 1, "program": "train", "data": [3, {"bytes": "x"}], "recipe": {"a": {"b": []}},)"
      << R"("sessions": [{"command": 7, "machine": [], "first_step": "one", "changed": {"k": 1}}]})";
  EXPECT_FALSE(run_card(scratch.path()).empty());
  std::ofstream(scratch / "run.json") << R"({"format": 1, "sessions": []})";
  EXPECT_TRUE(run_card(scratch.path()).empty());
}

TEST(RunsReport, PutsRunsAndTheirDifferencesTogether) {
  const ScratchFolder scratch;
  for (const auto& [name, loss, lr] :
       {std::tuple("x/run", 3.0, 0.001), std::tuple("y/run", 2.5, 0.002)}) {
    log_steps(scratch / name, loss);
    record(scratch / name, lr);
  }
  const OrderedJson report = runs_report({scratch / "x/run", scratch / "y/run"});
  EXPECT_EQ(report["kind"], "runs");
  EXPECT_EQ(report["head"].back(), "lr") << "the batch is the same";
  EXPECT_EQ(report["rows"][0][0], (scratch / "x/run").string()) << "one name, two runs";
  EXPECT_EQ(report["rows"][1][4], "2.5000");
  EXPECT_EQ(report["rows"][1][5], "1.5000");
  EXPECT_EQ(report["rows"][1][6], "100") << "by the wall clock";
  EXPECT_EQ(report["rows"][1].back(), "0.002");
  EXPECT_EQ(report["runs"][0]["validation"][0].dump(), "[0,6.0]") << "that before step 1";
  fs::create_directories(scratch / "empty");
  std::ofstream(scratch / "empty/metrics.jsonl") << "";
  EXPECT_THROW(runs_report({scratch / "x/run", scratch / "empty"}), Error);
}

TEST(RunMetrics, SourcesAreCurves) {
  const ScratchFolder scratch;
  log_steps(scratch / "run", 3);
  const OrderedJson metrics = metrics_json(train::read_metrics(scratch / "run/metrics.jsonl"), {});
  ASSERT_EQ(metrics["sources"].size(), 2u);
  EXPECT_EQ(metrics["sources"][1]["name"], "b.txt");
  EXPECT_EQ(metrics["sources"][1]["points"].dump(), "[[1,4.0],[2,5.0]]");
  EXPECT_TRUE(metrics["validation_sources"].empty());
}

}  // namespace
}  // namespace dsmoe::report

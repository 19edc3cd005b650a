// dsmoe compare, probe and report end to end on a tiny size.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <set>

#include "base/json.h"
#include "base/scratch_folder.h"
#include "cli/program.h"

namespace dsmoe::testing {
namespace {

namespace fs = std::filesystem;

// (c) with one shared expert; 3 of 7 make 4 of 8, which is 1 of 2 with m = 4.
std::string tiny(int routed, int active) {
  return Json{{"model_type", "deepseek"},   {"torch_dtype", "bfloat16"},
              {"vocab_size", 320},          {"hidden_size", 32},
              {"num_hidden_layers", 2},     {"num_attention_heads", 2},
              {"num_key_value_heads", 2},   {"intermediate_size", 0},
              {"moe_intermediate_size", 8}, {"n_routed_experts", routed},
              {"n_shared_experts", 1},      {"num_experts_per_tok", active},
              {"first_k_dense_replace", 0}, {"max_position_embeddings", 128},
              {"initializer_range", 0.02},  {"bos_token_id", 0},
              {"eos_token_id", 1}}
      .dump();
}

class CliCompare : public ::testing::Test {
 protected:
  std::vector<std::string> command(const std::string& config) {
    write_file((scratch_ / "c.json").string(), config);
    return {"compare", "--config",  (scratch_ / "c.json").string(),
            "--steps", "2",         "--batch",
            "2",       "--seq",     "64",
            "--seeds", "1",         "--valid-rows",
            "2",       "--threads", "1",
            "--out",   out_,        "--json"};
  }
  ScratchFolder scratch_;
  std::string out_ = (scratch_ / "out").string();
};

TEST_F(CliCompare, TrainsAllArchitecturesOnceAndReports) {
  std::vector<std::string> arguments = command(tiny(7, 3));
  const Ran ran = run_dsmoe(arguments);
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json json = Json::parse(ran.out);
  ASSERT_EQ(json["models"].size(), 4u);
  std::set<double> losses;
  for (const Json& model : json["models"]) {
    losses.insert(model["validation_loss"]["mean"].get<double>());
    EXPECT_NEAR(model["validation_loss"]["mean"], std::log(320.0), 0.5);
    EXPECT_EQ(model["active_expert_parameters"], json["models"][3]["active_expert_parameters"]);
    EXPECT_TRUE(fs::exists(scratch_ / "out" / model["runs"][0]["run"] / "step-00000002"));
  }
  EXPECT_EQ(losses.size(), 4u);
  EXPECT_EQ(json["models"][1]["title"], "(a) top 1 of 2");

  // Finished runs stay; another seed is added to them.
  const auto written = fs::last_write_time(scratch_ / "out/c-seed-1/metrics.jsonl");
  arguments[10] = "2";
  ASSERT_EQ(arguments[9], "--seeds");
  const Ran more = run_dsmoe(arguments);
  ASSERT_EQ(more.code, 0) << more.err;
  const Json both = Json::parse(more.out);
  EXPECT_EQ(both["models"][3]["runs"].size(), 2u);
  EXPECT_EQ(both["models"][3]["runs"][0], json["models"][3]["runs"][0]);
  EXPECT_EQ(fs::last_write_time(scratch_ / "out/c-seed-1/metrics.jsonl"), written);

  // Another plan in the same folder is refused.
  std::vector<std::string> other = arguments;
  other[4] = "3";
  const Ran refused = run_dsmoe(other);
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.err.find("steps: it has 2, now 3"), std::string::npos) << refused.err;

  // A finished run whose figures are gone would stay unfinished in every table.
  fs::copy(scratch_ / "out", scratch_ / "copy", fs::copy_options::recursive);
  fs::remove(scratch_ / "copy/b-seed-1/metrics.jsonl");
  std::vector<std::string> copied = arguments;
  ASSERT_EQ(copied[16], out_);
  copied[16] = (scratch_ / "copy").string();
  const Ran lost = run_dsmoe(copied);
  EXPECT_EQ(lost.code, 1);
  EXPECT_NE(lost.err.find("b-seed-1: its last checkpoint is there"), std::string::npos) << lost.err;

  const std::string page = read_file((scratch_ / "out/report.html").string());
  EXPECT_NE(page.find("(c) 1 shared + top 3 of 7"), std::string::npos);

  const std::string run = (scratch_ / "out/c-seed-1").string();
  const Ran report = run_dsmoe({"report", run, "--max-tokens", "600", "--threads", "1"});
  ASSERT_EQ(report.code, 0) << report.err;
  const std::string run_page = read_file(run + "/report.html");
  for (const char* part : {"\"specialisation\":{", "dialogue", "\"loads\":", "\"floor\":0."}) {
    EXPECT_NE(run_page.find(part), std::string::npos) << part;
  }

  const Ran probe = run_dsmoe(
      {"probe", run + "/step-00000002", "--max-tokens", "300", "--threads", "1", "--json"});
  ASSERT_EQ(probe.code, 0) << probe.err;
  const Json variants = Json::parse(probe.out)["variants"];
  ASSERT_EQ(variants.size(), 1u + 4 + 2 + 1);
  EXPECT_EQ(variants[0]["kind"], "whole");
  EXPECT_EQ(variants[7]["active_routed"], 4);
  EXPECT_EQ(variants[7]["shared"], 0);
}

TEST_F(CliCompare, FileNamesMayBeOfAnyBytes) {
  const std::string name = (scratch_ / "caf\xe9.txt").string();
  std::string text;
  for (int i = 0; i < 40; ++i) text += "some words " + std::to_string(i) + "<|endoftext|>\n";
  write_file(name, text);
  std::vector<std::string> arguments = command(tiny(7, 3));
  arguments.insert(arguments.end(), {"--data", name});
  const Ran ran = run_dsmoe(arguments);
  EXPECT_EQ(ran.code, 0) << ran.err;
}

TEST_F(CliCompare, RefusesUnequalShapesWithTheNumbers) {
  const Ran ran = run_dsmoe(command(tiny(8, 3)));
  EXPECT_EQ(ran.code, 1);
  EXPECT_NE(ran.err.find("1 + 8 = 9"), std::string::npos) << ran.err;
  EXPECT_FALSE(fs::exists(scratch_ / "out"));
}

// A folder that settings were written to takes no others.
TEST_F(CliCompare, WrongUsageLeavesTheFolderFree) {
  for (const auto& [option, value] : {std::pair("--micro-batch", "3"), std::pair("--seq", "129")}) {
    std::vector<std::string> arguments = command(tiny(7, 3));
    if (std::string(option) == "--seq")
      arguments.erase(arguments.begin() + 7, arguments.begin() + 9);
    arguments.insert(arguments.end(), {option, value});
    const Ran ran = run_dsmoe(arguments);
    EXPECT_EQ(ran.code, 2) << ran.err;
    EXPECT_FALSE(fs::exists(scratch_ / "out")) << option;
  }
}

// A cache may hold more than one corpus: those of tries with other files.
TEST_F(CliCompare, ReportsShowTheTextTheRunWasTrainedOn) {
  write_file((scratch_ / "c.json").string(), tiny(7, 3));
  const auto train = [&](const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"train",
                                       "--config",
                                       (scratch_ / "c.json").string(),
                                       "--steps",
                                       "1",
                                       "--batch",
                                       "2",
                                       "--seq",
                                       "64",
                                       "--out",
                                       (scratch_ / name).string(),
                                       "--data"};
    for (const std::string& file : {name + "-1.txt", name + "-2.txt"}) {
      write_file((scratch_ / file).string(), "some words of " + file + " and a few more of them");
      arguments.push_back((scratch_ / file).string());
    }
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Ran ran = run_dsmoe(arguments);
    ASSERT_EQ(ran.code, 0) << ran.err;
  };
  train("other", {});
  train("run", {"--tokenizer", (scratch_ / "other").string()});
  for (const auto& entry : fs::directory_iterator(scratch_ / "other/cache")) {
    if (entry.is_directory()) {
      fs::copy(entry.path(), scratch_ / "run/cache/tokens-0000000000000000");
    }
  }
  ASSERT_TRUE(fs::exists(scratch_ / "run/cache/tokens-0000000000000000"));
  const Ran report = run_dsmoe({"report", (scratch_ / "run").string(), "--threads", "1"});
  ASSERT_EQ(report.code, 0) << report.err;
  const std::string page = read_file((scratch_ / "run/report.html").string());
  EXPECT_NE(page.find("run-1.txt"), std::string::npos);
  EXPECT_EQ(page.find("other-1.txt"), std::string::npos);
}

TEST_F(CliCompare, ReportsRefuseMalformedMetrics) {
  fs::create_directories(scratch_ / "run");
  const std::string run = (scratch_ / "run").string();
  EXPECT_EQ(run_dsmoe({"report", run}).code, 1);
  write_file(run + "/metrics.jsonl", "{\"step\":1,\"loss\":\"<script>\"}\n");
  const Ran ran = run_dsmoe({"report", run});
  EXPECT_EQ(ran.code, 1);
  EXPECT_NE(ran.err.find("metrics.jsonl:1: \"loss\" must be a number"), std::string::npos)
      << ran.err;
  EXPECT_FALSE(fs::exists(scratch_ / "run/report.html"));
}

}  // namespace
}  // namespace dsmoe::testing

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
  const std::string figure = read_file((scratch_ / "out/report.svg").string());
  EXPECT_NE(figure.find("(c) 1 shared + top 3 of 7 (2 seeds)"), std::string::npos);
  EXPECT_EQ(both["figure"], (scratch_ / "out/report.svg").string());

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

double last_rate(const fs::path& run) {
  const std::string log = read_file((run / "metrics.jsonl").string());
  const std::size_t line = log.rfind('\n', log.size() - 2);
  return Json::parse(log.substr(line == std::string::npos ? 0 : line + 1))["lr"];
}

// In parts, as on a machine that is lent for minutes: some runs now, others later.
TEST_F(CliCompare, TrainsChosenRunsAtRatesOfTheirOwn) {
  std::vector<std::string> plan = command(tiny(7, 3));
  plan.insert(plan.end(), {"--schedule", "constant", "--lr", "2e-3,b=1e-3", "--shared", "2",
                           "--fp32", "c", "--seeds", "2"});
  plan.erase(plan.begin() + 9, plan.begin() + 11);  // --seeds 1
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = plan;
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_dsmoe(arguments);
  };
  const Ran first = with({"--only", "b-seed-*,c-seed-2"});
  ASSERT_EQ(first.code, 0) << first.err;
  std::set<std::string> folders;
  for (const auto& entry : fs::directory_iterator(out_)) {
    if (entry.is_directory() &&
        entry.path().filename().string().find("-seed-") != std::string::npos)
      folders.insert(entry.path().filename().string());
  }
  EXPECT_EQ(folders, (std::set<std::string>{"b-seed-1", "b-seed-2", "c-seed-2"}));
  EXPECT_EQ(last_rate(scratch_ / "out/b-seed-2"), 1e-3);
  EXPECT_EQ(last_rate(scratch_ / "out/c-seed-2"), 2e-3);

  const auto written = fs::last_write_time(scratch_ / "out/c-seed-2/metrics.jsonl");
  const Ran second = with({"--only", "c-*"});
  ASSERT_EQ(second.code, 0) << second.err;
  EXPECT_EQ(fs::last_write_time(scratch_ / "out/c-seed-2/metrics.jsonl"), written);
  const Json json = Json::parse(second.out);
  ASSERT_EQ(json["models"].size(), 6u);
  EXPECT_TRUE(json["models"][0]["runs"].empty());
  EXPECT_EQ(json["models"][2]["lr"], 1e-3);
  EXPECT_EQ(json["models"][4]["title"], "(c) 2 shared + top 2 of 6");
  EXPECT_EQ(json["models"][5]["name"], "c-fp32");
  EXPECT_EQ(json["models"][5]["runs"].size(), 2u);
  ASSERT_EQ(json["differences"].size(), 3u);  // b - c, c-shared-2 - c, c-fp32 - c
  EXPECT_EQ(json["differences"][0]["of"], "b");
  EXPECT_EQ(json["differences"][0]["seeds"].size(), 2u);
  // Roundings only: far below what two steps change, but not nothing.
  const double roundings = json["differences"][2]["mean"];
  EXPECT_NE(roundings, 0);
  EXPECT_LT(std::abs(roundings), 0.01);

  // The results alone are enough for the table: a run's metrics and the manifest of its end.
  for (const auto& entry : fs::recursive_directory_iterator(out_)) {
    if (entry.path().extension() == ".safetensors") fs::remove(entry.path());
  }
  const Ran again = with({"--only", "c-*"});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(Json::parse(again.out), json);
}

TEST_F(CliCompare, ModelsAndRunsThatAreNotThereAreRefused) {
  for (const auto& [option, value, expected] :
       {std::tuple("--only", "d-*", "dense-seed-1"), std::tuple("--lr", "d=1e-3", "dense, a, b, c"),
        std::tuple("--lr", "much", "MODEL=RATE"), std::tuple("--shared", "1", "1 to 3"),
        std::tuple("--fp32", "d", "dense, a, b, c")}) {
    std::vector<std::string> arguments = command(tiny(7, 3));
    arguments.insert(arguments.end(), {option, value});
    const Ran ran = run_dsmoe(arguments);
    EXPECT_EQ(ran.code, 2) << ran.err;
    EXPECT_NE(ran.err.find(expected), std::string::npos) << ran.err;
    EXPECT_FALSE(fs::exists(scratch_ / "out")) << option;
  }
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

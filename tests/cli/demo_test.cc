// dsmoe demo end to end on a tiny size: the run, its figures, and the commands it names.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/json.h"
#include "base/scratch_folder.h"
#include "cli/program.h"

namespace dsmoe::testing {
namespace {

constexpr const char* kTiny = R"({
  "model_type": "deepseek", "torch_dtype": "bfloat16", "vocab_size": 320, "hidden_size": 32,
  "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
  "intermediate_size": 64, "moe_intermediate_size": 16, "n_routed_experts": 8,
  "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1,
  "norm_topk_prob": false, "scoring_func": "softmax", "aux_loss_alpha": 0.001, "seq_aux": true,
  "hidden_act": "silu", "max_position_embeddings": 512, "initializer_range": 0.02,
  "rms_norm_eps": 1e-6, "bos_token_id": 0, "eos_token_id": 1})";

TEST(CliDemo, TrainsMeasuresAndLeavesAModel) {
  const ScratchFolder scratch;
  const std::string config = (scratch.path() / "tiny.json").string();
  const std::string out = (scratch.path() / "run").string();
  write_file(config, kTiny);
  // One thread: on a busy machine two of them spend their time waiting for each other.
  const std::vector<std::string> command{"demo", "--config", config, "--steps",   "2", "--batch",
                                         "2",    "-o",       out,    "--threads", "1", "--quiet"};
  std::vector<std::string> as_json = command;
  as_json.push_back("--json");
  const Ran ran = run_dsmoe(as_json);
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json json = Json::parse(ran.out);
  EXPECT_EQ(json["steps"], 2);
  const Json& valid = json["validation"];
  EXPECT_GT(valid["floor"], 0.05);
  EXPECT_GT(valid["trigram"].get<double>(), 1.5 * valid["floor"].get<double>());
  // Two steps from nothing: about as good as guessing.
  EXPECT_NEAR(valid["loss"], std::log(320.0), 0.5);
  EXPECT_LT(valid["gap_closed"], 0);
  EXPECT_EQ(json["additions"]["of"], 500);
  EXPECT_LE(json["additions"]["right"], 25);
  EXPECT_EQ(json["samples"].size(), 5u);
  EXPECT_EQ(json["sampling"], (Json{{"temperature", 0.7}, {"seed", 1}}));
  ASSERT_EQ(json["routing"].size(), 1u);
  for (const char* key : {"routing", "untrained_routing"}) {
    const Json& layer = json[key][0];
    EXPECT_EQ(layer["layer"], 1);
    EXPECT_GT(layer["mutual_information_bits"], 0);
    EXPECT_LT(layer["mutual_information_bits"], std::log2(5.0));
    int64_t first = 0, chosen = 0;
    for (const Json& row : layer["tokens_by_strongest_expert"]) {
      for (const Json& count : row) first += count.get<int64_t>();
    }
    for (const Json& row : layer["tokens_by_chosen_expert"]) {
      for (const Json& count : row) chosen += count.get<int64_t>();
    }
    EXPECT_EQ(first, valid["tokens"].get<int64_t>() + valid["documents"].get<int64_t>());
    EXPECT_EQ(chosen, 2 * first);
  }

  const std::string model = json["model"];
  EXPECT_EQ(model, out + "/step-00000002");
  EXPECT_EQ(json["report"], out + "/report.html");
  EXPECT_NE(read_file(out + "/report.html").find("\"specialisation\":{"), std::string::npos);
  EXPECT_EQ(run_dsmoe({"info", model}).code, 0);
  const Ran generated =
      run_dsmoe({"generate", model, "-p", "Add 27 + 45:", "--max-tokens", "3", "--quiet"});
  EXPECT_EQ(generated.code, 0) << generated.err;

  // A run stands for its checkpoint, and which one that is gets told, but not to who wants quiet.
  const Ran of_run = run_dsmoe({"info", out});
  EXPECT_EQ(of_run.code, 0);
  EXPECT_EQ(of_run.err, "dsmoe: " + model + ": the newest checkpoint of " + out + "\n");
  EXPECT_EQ(of_run.out, run_dsmoe({"info", model}).out);
  EXPECT_EQ(run_dsmoe({"info", out, "--quiet"}).err, "");

  // A run is not overwritten; with --resume the finished one is measured again, for people.
  EXPECT_NE(run_dsmoe(command).code, 0);
  std::vector<std::string> again = command;
  again.push_back("--resume");
  const Ran text = run_dsmoe(again);
  ASSERT_EQ(text.code, 0) << text.err;
  for (const char* part :
       {"trigram model", "gap closed", "of 500 right", "layer 1", "dialogue", "mutual information",
        "try next", "dsmoe chat ", "temperature 0.7, seed 1"}) {
    EXPECT_NE(text.out.find(part), std::string::npos) << part << "\n" << text.out;
  }
  EXPECT_NE(text.out.find("dsmoe serve " + out + " "), std::string::npos) << text.out;
}

}  // namespace
}  // namespace dsmoe::testing

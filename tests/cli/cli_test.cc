// info, logits and eval end to end, and what the program says to bad input.
#include <gtest/gtest.h>

#include <algorithm>

#include <cmath>
#include <filesystem>
#include <sstream>

#include "base/engine_version.h"
#include "base/json.h"
#include "base/scratch_folder.h"
#include "cli/program.h"
#include "store/safetensors.h"
#include "support/golden.h"

namespace dsmoe::testing {
namespace {

std::string golden(const std::string& name) { return (goldens_folder() / name).string(); }

std::string joined(const std::vector<int32_t>& tokens) {
  std::string text;
  for (const int32_t token : tokens) text += fmt::format("{}{}", text.empty() ? "" : ",", token);
  return text;
}

// A copy of a golden model that a test may break.
class BrokenModel {
 public:
  explicit BrokenModel(const std::string& name) {
    std::filesystem::copy(goldens_folder() / name, folder(),
                          std::filesystem::copy_options::recursive);
  }
  std::string folder() const { return (scratch_ / "model").string(); }
  std::string file(const std::string& name) const { return folder() + "/" + name; }

 private:
  ScratchFolder scratch_;
};

// One line on stderr that names the fault.
void expect_refused(const Ran& ran, int code, const std::string& fault) {
  EXPECT_EQ(ran.code, code) << ran.err;
  EXPECT_NE(ran.err.find(fault), std::string::npos) << ran.err;
  EXPECT_EQ(ran.err.find("dsmoe: "), 0u) << ran.err;
  EXPECT_EQ(ran.out, "");
  EXPECT_EQ(ran.err.find("please report"), std::string::npos) << ran.err;
}

TEST(Cli, HelpOfEveryCommandHasAnExample) {
  for (const char* command :
       {"demo", "info", "logits", "eval", "generate", "chat", "quantize", "bench"}) {
    const Ran ran = run_dsmoe({command, "--help"});
    EXPECT_EQ(ran.code, 0);
    EXPECT_NE(ran.out.find("Example"), std::string::npos) << command;
    EXPECT_NE(ran.out.find(std::string("dsmoe ") + command), std::string::npos) << command;
    EXPECT_EQ(ran.err, "");
  }
  EXPECT_EQ(run_dsmoe({"--help"}).code, 0);
  const std::string version = run_dsmoe({"--version"}).out;
  EXPECT_EQ(version.substr(0, 6), "dsmoe ");
  EXPECT_NE(version.find("engine version " + std::to_string(kEngineVersion)), std::string::npos);
}

TEST(Cli, HelpFitsATerminalOf80Columns) {
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{},
                                             {"demo"},
                                             {"info"},
                                             {"logits"},
                                             {"eval"},
                                             {"chat"},
                                             {"train"},
                                             {"quantize"},
                                             {"serve"},
                                             {"generate"},
                                             {"probe"},
                                             {"bench"},
                                             {"compare"},
                                             {"report"},
                                             {"tokenizer"},
                                             {"tokenizer", "train"},
                                             {"tokenizer", "encode"},
                                             {"tokenizer", "decode"}}) {
    std::vector<std::string> arguments = command;
    arguments.push_back("--help");
    std::istringstream help(run_dsmoe(arguments).out);
    for (std::string line; std::getline(help, line);) {
      EXPECT_LE(line.size(), 80u) << line;
      EXPECT_EQ(line.find("[Option Group"), std::string::npos) << line;
    }
  }
}

// What came, what was expected, and where to look.
TEST(Cli, WrongUsageIsNamed) {
  const std::string model = golden("released");
  const auto says = [](const std::vector<std::string>& arguments, const std::string& text) {
    EXPECT_EQ(run_dsmoe(arguments).err, "dsmoe: " + text + "\n");
  };
  says({}, "expected a command, got none\nSee dsmoe --help.");
  says({"tokenizer"}, "expected a command, got none\nSee dsmoe tokenizer --help.");
  says({"tokenizer", "encod"}, "encod: no such command\nSee dsmoe tokenizer --help.");
  says({"info"}, "expected MODEL, got nothing\nSee dsmoe info --help.");
  says({"completion"}, "expected SHELL, got nothing\nSee dsmoe completion --help.");
  says({"quantize", model}, "--to: expected FORMAT, got nothing\nSee dsmoe quantize --help.");
  says({"tokenizer", "train", "x"},
       "--out: expected DIR, got nothing\nSee dsmoe tokenizer train --help.");
  says({"generate", model, "-p"},
       "--prompt: expected TEXT, got nothing\nSee dsmoe generate --help.");
  says({"generate", model, "-p", "x", "-p", "y"},
       "--prompt: expected once, got 2 times\nSee dsmoe generate --help.");
  says({"info", model, "--jsn"}, "--jsn: no such option\nSee dsmoe info --help.");
  says({"eval", model, "--text", "f", "--devcie", "cpu"},
       "--devcie: no such option\nSee dsmoe eval --help.");
  says({"info", model, "more"}, "more: one argument too many\nSee dsmoe info --help.");
  says({"logits", model, "--tokens", "1", "--dtype", "fp16"},
       "--dtype: expected bf16 or fp32, got fp16\nSee dsmoe logits --help.");
  says({"quantize", model, "-o", "o", "--to", "int8", "--head", "int2"},
       "--head: expected int8, int4 or stored, got int2\nSee dsmoe quantize --help.");
  says({"eval", model},
       "expected one of --tokens, --text and --pairs, got none\nSee dsmoe eval --help.");
  says({"eval", model, "--text", "f", "--tokens", "f"},
       "expected one of --tokens, --text and --pairs, got --tokens and --text\n"
       "See dsmoe eval --help.");
  says({"quantize", model, "-o", "o", "--to", "int8", "--no-compare", "--text", "f"},
       "expected at most one of --text, --tokens and --no-compare, got --text and --no-compare\n"
       "See dsmoe quantize --help.");
}

// What a path should have led to.
TEST(Cli, APathThatLeadsNowhereSaysWhatWasExpected) {
  const ScratchFolder scratch;
  const auto says = [](const std::vector<std::string>& arguments, const std::string& text) {
    const Ran ran = run_dsmoe(arguments);
    EXPECT_EQ(ran.code, 1);
    EXPECT_EQ(ran.err, "dsmoe: " + text + "\n");
  };
  const std::string nothing = (scratch / "nothing").string(), empty = (scratch / "empty").string();
  std::filesystem::create_directory(empty);
  says(
      {"generate", nothing, "-p", "x"},
      nothing +
          ": no such folder; expected a model folder (config.json, *.safetensors) or training run");
  says({"info", nothing},
       nothing + ": no such folder; expected a model folder, a GGUF file, or a config.json");
  says({"eval", empty, "--text", "f"}, empty +
                                           ": no config.json in it; expected a model folder "
                                           "(config.json, *.safetensors) or training run");
  says({"train", "--init", empty, "--data", "f", "--out", "o"},
       empty +
           ": no config.json in it; expected a model folder (config.json, *.safetensors) or "
           "training run");
  says({"report", nothing},
       nothing + ": no such folder; expected one that dsmoe train, demo or compare wrote");
  says({"report", empty},
       empty +
           ": no metrics.jsonl in it; expected a folder that dsmoe train, demo or compare wrote");
  says({"eval", golden("released"), "--tokens", "1,2,3"},
       "--tokens: no such file: 1,2,3; expected a file of token ids");
}

TEST(Cli, AnUnknownCommandIsNamed) {
  EXPECT_NE(run_dsmoe({"genrate", "-p", "x"}).err.find("genrate: no such command"),
            std::string::npos);
}

TEST(Cli, WrongUsageExitsWith2) {
  const ScratchFolder scratch;
  const std::string model = golden("released"), out = (scratch / "out").string();
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {},
           {"nonsense"},
           {"info"},
           {"info", model, "--no-such-flag"},
           {"logits", model},
           {"logits", model, "-o", out},
           {"logits", model, "--tokens", "1", "--tokens-file", "f", "-o", out},
           {"logits", model, "--tokens", "1", "-o", out, "--threads", "0"},
           {"logits", model, "--tokens", "1", "-o", out, "--dtype", "fp8"},
           {"logits", model, "--tokens", "1", "-o", out, "--device", "cuda"},
           {"logits", model, "--tokens", "1", "-o", out, "--context", "257"},
           {"eval", model},
           {"eval", model, "--tokens", "f", "--stride", "-1"}}) {
    const Ran ran = run_dsmoe(arguments);
    expect_refused(ran, 2, "");
    EXPECT_FALSE(std::filesystem::exists(out));
  }
  expect_refused(run_dsmoe({"info", model}, {.environment = {"DSMOE_ISA=pdp11"}}), 2, "pdp11");
}

// Before a model is loaded or a corpus read.
TEST(Cli, NumbersThatAreNoneAreWrongUsage) {
  const std::string model = golden("released");
  const auto generate = [&](const std::string& flag, const std::string& value) {
    return run_dsmoe({"generate", model, "--tokens", "1", flag, value});
  };
  expect_refused(generate("--seed", "99999999999999999999"), 2,
                 "--seed: expected a whole number from 0 to 18446744073709551615, got 999");
  expect_refused(generate("--seed", "-1"), 2, "from 0 to 18446744073709551615, got -1");
  expect_refused(generate("--seed", "0x10"), 2, "got 0x10");
  expect_refused(generate("--seed", ""), 2, "--seed");
  expect_refused(generate("--max-tokens", "99999999999999999999"), 2, "whole number");
  expect_refused(generate("--max-tokens", "0"), 2, "whole number from 1 on, got 0");
  expect_refused(generate("--max-tokens", "1.5"), 2, "whole number, got 1.5");
  expect_refused(generate("--context", "0"), 2, "from 1 to 16777216, got 0");
  expect_refused(generate("--temperature", "-1"), 2,
                 "--temperature: expected a number from 0 to 100, got -1");
  for (const char* flag : {"--temperature", "--top-p", "--min-p", "--repetition-penalty",
                           "--presence-penalty", "--frequency-penalty"}) {
    for (const char* value : {"nan", "inf", "1e999", "1000", "warm"}) {
      expect_refused(generate(flag, value), 2, flag);
    }
  }
  expect_refused(generate("--top-k", "-1"), 2, "from 0 on, got -1");
  for (const char* flag :
       {"--lr", "--clip", "--weight-decay", "--bias-rate", "--z-loss", "--device-loss"}) {
    for (const char* value : {"nan", "-1"}) {
      expect_refused(run_dsmoe({"train", "--data", "/no/such", "--out", "/no/such", flag, value}),
                     2, flag);
    }
  }
  expect_refused(run_dsmoe({"serve", model, "--port", "70000"}), 2, "from 0 to 65535, got 70000");
  expect_refused(run_dsmoe({"bench", model, "--batch", "1,x"}), 2, "got x");
}

TEST(CliInfo, PrintsTheReleasedModelsNumbers) {
  const std::string config = std::string(DSMOE_SOURCE_DIR) + "/configs/deepseek-moe-16b.json";
  // A forced tier: the others are told as passed over, in words.
  const Ran forced = run_dsmoe({"info", config}, {.environment = {"DSMOE_ISA=ref"}});
  EXPECT_NE(forced.out.find("  ref     runs\n"), std::string::npos) << forced.out;
  EXPECT_TRUE(std::all_of(forced.out.begin(), forced.out.end(), [](char c) {
    return c == '\n' || (c >= ' ' && c <= '~');
  })) << forced.out;
  const Ran ran = run_dsmoe({"info", config});
  EXPECT_EQ(ran.code, 0);
  for (const char* text :
       {"16,375,728,128", "2,828,650,496", "229,376 bytes", "64 routed x 1408 (6 per token)",
        "none (config only)", "weights in int4", "  ref     "}) {
    EXPECT_NE(ran.out.find(text), std::string::npos) << text << "\n" << ran.out;
  }
  const Json json = Json::parse(run_dsmoe({"info", config, "--json"}).out);
  EXPECT_EQ(json["parameters"], 16375728128);
  EXPECT_EQ(json["active_parameters"], 2828650496);
  EXPECT_EQ(json["kv_bytes_per_token"], 229376);
  EXPECT_EQ(json["memory_bytes"]["bf16"], 32751456256);
  EXPECT_EQ(json["tensors"], 5466);
  EXPECT_TRUE(json["weights"].is_null());
  EXPECT_EQ(json["cpu_tiers"].back()["tier"], "ref");
  for (const char c : ran.out) EXPECT_TRUE(c == '\n' || (c >= 0x20 && c < 0x7f)) << int(c);
  EXPECT_EQ(json["layers"].size(), 2u);
  // 6 * (2.83e9 active less the embedding) and attention: the paper's 74.4 T FLOPs per 4096 tokens.
  EXPECT_NEAR(json["training_flops_per_token"].get<double>() * 4096, 74.4e12, 2e12);
}

// Heads that are not as wide as the model together: training is three forward passes but for the
// router, which the paper leaves out.
TEST(CliInfo, CountsTheWorkOfNarrowAndWideHeads) {
  for (const char* name : {"gqa", "seven_heads", "odd", "released"}) {
    const Json json = Json::parse(run_dsmoe({"info", golden(name), "--json"}).out);
    EXPECT_NEAR(json["training_flops_per_token"].get<double>() /
                    json["forward_flops_per_token"].get<double>(),
                3.0, 0.03)
        << name;
  }
}

TEST(CliInfo, DescribesWeightsWhereThereAreAny) {
  const Ran ran = run_dsmoe({"info", golden("v3_bf16")});
  EXPECT_EQ(ran.code, 0);
  EXPECT_NE(ran.out.find("53 tensors in 2 files"), std::string::npos) << ran.out;
  EXPECT_NE(ran.out.find("sigmoid scores"), std::string::npos) << ran.out;
  // Only files that hold the weights count, whatever their names.
  const BrokenModel stray("released");
  write_file(stray.file("model-old.safetensors"), "");
  const Ran beside = run_dsmoe({"info", stray.folder()});
  EXPECT_NE(beside.out.find(" in 1 file,"), std::string::npos) << beside.out;
  const BrokenModel without("released");
  std::filesystem::remove(without.file("model.safetensors"));
  EXPECT_EQ(run_dsmoe({"info", without.folder()}).code, 0);
}

// As of a folder without permission: the file system's own refusal is no fault of the program.
TEST(CliFolders, WhatCannotBeExaminedIsNamed) {
  const std::string name(300, 'a');
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"report", name}, {"serve", name}}) {
    const Ran ran = run_dsmoe(command);
    EXPECT_EQ(ran.code, 1);
    EXPECT_NE(ran.err.find("dsmoe: cannot examine " + name), std::string::npos) << ran.err;
    EXPECT_EQ(ran.err.find("please report"), std::string::npos) << ran.err;
  }
}

TEST(CliInfo, RefusesBrokenFolders) {
  expect_refused(run_dsmoe({"info", "/no/such/folder"}), 1, "/no/such/folder");
  const BrokenModel model("released");
  write_file(model.file("config.json"), "{\"vocab_size\": }");
  expect_refused(run_dsmoe({"info", model.folder()}), 1, "config.json");
  write_file(model.file("config.json"), "");
  expect_refused(run_dsmoe({"info", model.folder()}), 1, "config.json");
  const BrokenModel cut("released");
  write_file(cut.file("model.safetensors"),
             read_file(cut.file("model.safetensors")).substr(0, 1000));
  expect_refused(run_dsmoe({"info", cut.folder()}), 1, "model.safetensors");
}

TEST(CliLogits, EqualTheGolden) {
  const ScratchFolder scratch;
  const std::string out = (scratch / "out.safetensors").string();
  const Golden expected("released");
  const std::string tokens = joined(expected.integers("tokens"));
  ASSERT_EQ(run_dsmoe({"logits", golden("released"), "--tokens", tokens, "-o", out}).code, 0);
  const auto file = store::SafetensorsFile::open(out);
  for (const store::TensorEntry& entry : file.tensors()) {
    ASSERT_EQ(entry.shape, expected.file.at(entry.name).shape) << entry.name;
  }
  ASSERT_EQ(file.tensors().size(), 5u);
  const auto bytes = [&](const char* name) { return file.bytes(file.at(name)); };
  const auto expected_bytes = expected.file.bytes(expected.file.at("layers.2.topk_index"));
  EXPECT_TRUE(std::ranges::equal(bytes("layers.2.topk_index"), expected_bytes));
  const auto* logits = reinterpret_cast<const float*>(bytes("logits").data());
  const std::vector<double> found(logits, logits + file.at("logits").shape.num_elements());
  EXPECT_LE(relative_error(found, expected.values("logits")), 1e-5);

  // The same bytes from a file of tokens, whatever the number of threads.
  const std::string list = (scratch / "tokens").string(), again = (scratch / "again").string();
  write_file(list, fmt::format("[{}]\n", tokens));
  ASSERT_EQ(run_dsmoe({"logits", golden("released"), "--tokens-file", list, "-o", again,
                       "--threads", "3"})
                .code,
            0);
  EXPECT_EQ(read_file(again), read_file(out));
  // Fewer experts: another answer, in narrower tensors.
  ASSERT_EQ(run_dsmoe({"logits", golden("released"), "--tokens", tokens, "-o", again,
                       "--num-experts-per-tok", "1"})
                .code,
            0);
  EXPECT_EQ(store::SafetensorsFile::open(again).at("layers.1.topk_index").shape[1], 1);
}

TEST(CliLogits, LongInputsRunInChunks) {
  const ScratchFolder scratch;
  const BrokenModel model("released");
  Json config = Json::parse(read_file(model.file("config.json")));
  config["max_position_embeddings"] = 2000;
  write_file(model.file("config.json"), config.dump());
  std::string tokens;
  for (int i = 0; i < 1300; ++i) tokens += fmt::format("{} ", i * 7 % 67);
  const std::string list = (scratch / "tokens").string(), whole = (scratch / "whole").string(),
                    part = (scratch / "part").string();
  write_file(list, tokens);
  ASSERT_EQ(run_dsmoe({"logits", model.folder(), "--tokens-file", list, "-o", whole}).code, 0);
  write_file(list, tokens.substr(0, tokens.find("0 ", 200) + 2));
  ASSERT_EQ(run_dsmoe({"logits", model.folder(), "--tokens-file", list, "-o", part}).code, 0);
  const auto all = store::SafetensorsFile::open(whole), some = store::SafetensorsFile::open(part);
  const auto prefix = some.bytes(some.at("logits"));
  EXPECT_TRUE(std::ranges::equal(prefix, all.bytes(all.at("logits")).first(prefix.size())));
  EXPECT_EQ(all.at("logits").shape[0], 1300);
}

TEST(CliLogits, RefusesBadInput) {
  const ScratchFolder scratch;
  const std::string out = (scratch / "out.safetensors").string();
  const auto logits = [&](const std::string& model, const std::string& tokens,
                          std::vector<std::string> more = {}) {
    std::vector<std::string> arguments{"logits", model, "--tokens", tokens, "-o", out};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_dsmoe(arguments);
  };
  const std::string model = golden("released");
  expect_refused(logits("/no/such/folder", "1"), 1, "/no/such/folder");
  expect_refused(logits(model, "1,67"), 1, "0 to 66");
  expect_refused(logits(model, "1,-3"), 1, "between 0 and");
  expect_refused(logits(model, "99999999999"), 1, "between 0 and");
  expect_refused(logits(model, "1,x"), 1, "'x'");
  expect_refused(logits(model, "1 2]"), 1, "end of the list");
  expect_refused(logits(model, ""), 1, "no token ids");
  expect_refused(logits(model, joined(std::vector<int32_t>(257, 1))), 1, "257");
  expect_refused(logits(model, "1", {"--num-experts-per-tok", "9"}), 1, "1 to 8");
  expect_refused(logits(golden("dense"), "1", {"--num-experts-per-tok", "2"}), 1, "no MoE layer");
  expect_refused(logits(golden("v2_groups"), "1", {"--num-experts-per-tok", "1000"}), 1, "1 to ");
  const BrokenModel no_weights("released");
  std::filesystem::remove(no_weights.file("model.safetensors"));
  expect_refused(logits(no_weights.folder(), "1"), 1, "safetensors");
  expect_refused(run_dsmoe({"logits", model, "--tokens", "1", "-o", "/no/such/folder/x"}), 1,
                 "/no/such/folder");
  EXPECT_FALSE(std::filesystem::exists(out));
}

// Overwrites a stored tensor with NaN.
void fill_with_nan(const std::string& path, const std::string& tensor) {
  std::string bytes = read_file(path);
  const auto file = store::SafetensorsFile::open(path);
  const store::TensorEntry& entry = file.at(tensor);
  ASSERT_EQ(entry.dtype, tensor::DType::F32);
  const float nan = std::nanf("");
  for (uint64_t i = 0; i < entry.num_bytes; i += 4) std::memcpy(&bytes[entry.offset + i], &nan, 4);
  write_file(path, bytes);
}

TEST(CliLogits, RefusesWeightsThatAreNotNumbers) {
  const ScratchFolder scratch;
  for (const char* tensor : {"model.layers.1.mlp.gate.weight", "lm_head.weight"}) {
    const BrokenModel model("released");
    fill_with_nan(model.file("model.safetensors"), tensor);
    const std::string out = (scratch / "out.safetensors").string();
    expect_refused(run_dsmoe({"logits", model.folder(), "--tokens", "1,2", "-o", out}), 1,
                   "finite");
    EXPECT_FALSE(std::filesystem::exists(out));
    write_file((scratch / "tokens").string(), "1,2,3");
    expect_refused(
        run_dsmoe({"eval", model.folder(), "--quiet", "--tokens", (scratch / "tokens").string()}),
        1, "finite");
  }
}

TEST(CliEval, StreamEqualsTheGolden) {
  const ScratchFolder scratch;
  const Json expected = Json::parse(read_file(golden("eval") + "/eval.json"));
  for (const Json& stream : expected["streams"]) {
    const std::string file = (scratch / "tokens").string();
    write_file(file, joined(stream["tokens"].get<std::vector<int32_t>>()));
    const Ran ran =
        run_dsmoe({"eval", golden("eval"), "--tokens", file, "--dtype", "fp32", "--window",
                   stream["window"].dump(), "--stride", stream["stride"].dump(), "--json"});
    ASSERT_EQ(ran.code, 0) << ran.err;
    const Json found = Json::parse(ran.out);
    EXPECT_EQ(found["scored"], stream["counted"]);
    EXPECT_NEAR(found["nats_per_token"].get<double>(), stream["nats_per_token"].get<double>(),
                1e-5);
    EXPECT_NEAR(std::log(found["perplexity"].get<double>()), stream["nats_per_token"].get<double>(),
                1e-5);
  }
}

TEST(CliEval, PairsEqualTheGolden) {
  const ScratchFolder scratch;
  const Json expected = Json::parse(read_file(golden("eval") + "/eval.json"));
  std::string lines;
  for (const Json& pair : expected["pairs"]) {
    lines +=
        Json{{"context_ids", pair["context"]}, {"continuation_ids", pair["continuation"]}}.dump() +
        "\n";
  }
  const std::string file = (scratch / "pairs.jsonl").string();
  write_file(file, lines + "\n");
  const Ran ran = run_dsmoe({"eval", golden("eval"), "--pairs", file, "--dtype", "fp32", "--json"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  std::istringstream out(ran.out);
  std::string line;
  std::size_t count = 0;
  for (; std::getline(out, line); ++count) {
    const Json found = Json::parse(line);
    EXPECT_NEAR(found["loglikelihood"].get<double>(),
                expected["pairs"][count]["loglikelihood"].get<double>(), 1e-4);
    EXPECT_EQ(found["greedy"], expected["pairs"][count]["greedy"]);
  }
  EXPECT_EQ(count, expected["pairs"].size());
}

TEST(CliEval, RefusesBadInput) {
  const ScratchFolder scratch;
  const std::string file = (scratch / "input").string();
  const auto eval = [&](const char* kind, const std::string& content,
                        std::vector<std::string> more = {}) {
    write_file(file, content);
    std::vector<std::string> arguments{"eval", golden("eval"), kind, file};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_dsmoe(arguments);
  };
  expect_refused(eval("--tokens", ""), 1, "no token ids");
  expect_refused(eval("--tokens", "5"), 1, "at least 2");
  expect_refused(eval("--tokens", "5 61"), 1, "0 to 60");
  expect_refused(eval("--tokens", "1,2,3", {"--window", "25"}), 1, "25");
  expect_refused(eval("--tokens", "1,2,3", {"--window", "4", "--stride", "5"}), 1, "stride");
  expect_refused(eval("--tokens", "1,2,3", {"--num-experts-per-tok", "7"}), 1, "1 to 6");
  expect_refused(eval("--pairs", ""), 1, "no pairs");
  expect_refused(eval("--pairs", "{}\n"), 1, ":1: ");
  expect_refused(eval("--pairs", "\n[1]"), 1, ":2: ");
  expect_refused(eval("--pairs", "{\"context_ids\": [1], \"continuation_ids\": []}"), 1,
                 "no tokens");
  expect_refused(eval("--pairs", "{\"context_ids\": [1], \"continuation_ids\": [1.5]}"), 1, "1.5");
  expect_refused(eval("--pairs", "{\"context_ids\": [1], \"continuation_ids\": [99]}"), 1, "99");
  expect_refused(run_dsmoe({"eval", golden("eval"), "--tokens", "/no/such/file"}), 1,
                 "/no/such/file");
  expect_refused(run_dsmoe({"eval", golden("eval"), "--tokens", scratch.path().string()}), 1,
                 scratch.path().string());
}

// Loading a model takes minutes: a mistake in the input is told before, even where the weights are
// missing.
TEST(CliEval, ReadsItsInputBeforeTheModel) {
  const ScratchFolder scratch;
  std::filesystem::copy_file(golden("eval") + "/config.json", scratch / "config.json");
  const std::string folder = scratch / "";
  const std::string file = scratch / "input";
  write_file(file, "5 61");
  expect_refused(run_dsmoe({"eval", folder, "--tokens", file}), 1, "0 to 60");
  expect_refused(run_dsmoe({"eval", folder, "--pairs", file}), 1, "input:1");
  write_file(file, "5 6");
  expect_refused(run_dsmoe({"eval", folder, "--tokens", file}), 1, "safetensors");
}

TEST(CliBench, MeasuresFoldersAndBareConfigs) {
  for (const std::string& model : {golden("released"), golden("released") + "/config.json"}) {
    const Ran ran = run_dsmoe({"bench", model, "--prompt", "8", "--generate", "3", "--batch", "1,2",
                               "--repetitions", "2", "--no-limits", "--json"});
    ASSERT_EQ(ran.code, 0) << ran.err;
    const Json json = parse_json(ran.out, "bench");
    ASSERT_EQ(json["results"].size(), 3u);
    for (const Json& result : json["results"]) {
      EXPECT_GT(result["tokens_per_second"].get<double>(), 0);
      EXPECT_EQ(result["samples"].size(), 2u);
      EXPECT_GT(result["experts_per_layer"].get<double>(), 0);
      EXPECT_GT(result["bytes_read_at_least"].get<double>(), 0);
    }
    EXPECT_EQ(json["results"][2]["batch"], 2);
  }
  // Random weights of every format spread the tokens of a prompt over all experts.
  for (const char* weights : {"bf16", "int8", "int4"}) {
    const Ran ran =
        run_dsmoe({"bench", DSMOE_SOURCE_DIR "/configs/demo.json", "--weights", weights, "--prompt",
                   "256", "--generate", "0", "--repetitions", "1", "--no-limits", "--json"});
    ASSERT_EQ(ran.code, 0) << ran.err;
    EXPECT_EQ(parse_json(ran.out, "bench")["results"][0]["experts_per_layer"], 16) << weights;
  }
  const Ran table = run_dsmoe({"bench", golden("released"), "--prompt", "0", "--generate", "2",
                               "--repetitions", "1", "--no-limits"});
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_NE(table.out.find("| tg2"), std::string::npos) << table.out;
  expect_refused(run_dsmoe({"bench", golden("released"), "--prompt", "100000"}), 2, "context");
  expect_refused(run_dsmoe({"bench", golden("released"), "--layers", "1"}), 2, "--layers");
  expect_refused(run_dsmoe({"bench", golden("released"), "--prompt", "0", "--generate", "0"}), 2,
                 "nothing to measure");
  expect_refused(run_dsmoe({"bench", "/no/such/model"}), 1, "/no/such/model");
}

TEST(Cli, AFullDiskIsAnError) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"info", golden("released")}, {"--help"}}) {
    expect_refused(run_dsmoe(arguments, {.out_file = "/dev/full"}), 1, "standard output");
  }
}

}  // namespace
}  // namespace dsmoe::testing

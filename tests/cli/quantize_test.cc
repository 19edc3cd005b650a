// dsmoe quantize end to end: the folder, the report, and what it refuses.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "base/json.h"
#include "base/scratch_folder.h"
#include "cli/program.h"
#include "support/golden.h"

namespace dsmoe::testing {
namespace {

std::string golden(const std::string& name) { return (goldens_folder() / name).string(); }

TEST(Quantize, WritesAFolderAndReportsItsQuality) {
  const ScratchFolder scratch;
  const std::string tokens = (scratch / "tokens.txt").string();
  write_file(tokens, "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20");
  std::map<std::string, double> divergence;
  for (const std::string format : {"int8", "int4"}) {
    const std::string out = (scratch / format).string();
    const Ran ran = run_dsmoe({"quantize", golden("released_bf16"), "--to", format, "-o", out,
                               "--tokens", tokens, "--json", "--quiet"});
    ASSERT_EQ(ran.code, 0) << ran.err;
    const Json report = parse_json(ran.out, "report");
    EXPECT_EQ(report["tokens"], 19);
    EXPECT_GT(report["kl_divergence"].get<double>(), 0);
    divergence[format] = report["kl_divergence"].get<double>();
    EXPECT_GT(report["perplexity"].get<double>(), 1);
    EXPECT_FALSE(report["tensors"].empty());
    for (const Json& tensor : report["tensors"]) {
      EXPECT_GT(tensor["relative_error"].get<double>(), 0) << tensor.dump();
    }
    const Json config = parse_json(read_file(out + "/config.json"), "config.json");
    EXPECT_EQ(config["quantization_config"]["projections"], format);
    EXPECT_EQ(config["quantization_config"]["head"], "int8");
    const Ran logits = run_dsmoe({"logits", out, "--tokens", "1,2,3"});
    EXPECT_EQ(logits.code, 0) << logits.err;
    const Ran info = run_dsmoe({"info", out});
    EXPECT_EQ(info.code, 0) << info.err;
  }
  // A step of int8 is a 16th as wide, its squared error a 256th; rounding to bf16 adds to both.
  EXPECT_LT(divergence["int8"] * 16, divergence["int4"]);
  const Ran again = run_dsmoe({"quantize", (scratch / "int8").string(), "--to", "int4", "-o",
                               (scratch / "again").string(), "--no-compare"});
  EXPECT_EQ(again.code, 1);
  EXPECT_NE(again.err.find("already"), std::string::npos) << again.err;
  EXPECT_FALSE(std::filesystem::exists(scratch / "again"));
  const Ran over = run_dsmoe({"quantize", golden("released_bf16"), "--to", "int4", "-o",
                              (scratch / "int8").string(), "--no-compare"});
  EXPECT_EQ(over.code, 1);
  EXPECT_NE(over.err.find("already exists"), std::string::npos) << over.err;
}

TEST(Quantize, ComparesWithinTheContextAskedFor) {
  const ScratchFolder scratch;
  const std::string tokens = (scratch / "tokens.txt").string();
  write_file(tokens, "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20");
  const Ran ran = run_dsmoe({"quantize", golden("released_bf16"), "--to", "int8", "-o",
                             (scratch / "out").string(), "--tokens", tokens, "--context", "8",
                             "--json", "--quiet"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(parse_json(ran.out, "report")["tokens"], 19);
}

TEST(Quantize, AFileWithoutANameIsNotTheBuiltInText) {
  const ScratchFolder scratch;
  for (const std::string flag : {"--tokens", "--text"}) {
    const std::string out = (scratch / "out").string();
    const Ran ran =
        run_dsmoe({"quantize", golden("released_bf16"), "--to", "int8", "-o", out, flag, ""});
    EXPECT_EQ(ran.code, 1) << flag << ": " << ran.out;
    EXPECT_FALSE(std::filesystem::exists(out));
  }
}

// A vocabulary without tokens: no text is ever long enough.
TEST(Quantize, ATokenizerThatMakesNoTokensIsRefused) {
  const ScratchFolder scratch;
  const std::string model = (scratch / "model").string(), out = (scratch / "out").string();
  std::filesystem::create_directory(model);
  std::filesystem::copy(golden("released_bf16"), model);
  write_file(model + "/tokenizer.json",
             R"({"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}})");
  for (const char* eos : {"null", "1"}) {
    Json config = parse_json(read_file(golden("released_bf16") + "/config.json"), "config.json");
    config["bos_token_id"] = nullptr;
    config["eos_token_id"] = parse_json(eos, "id");
    write_file(model + "/config.json", config.dump());
    const Ran ran = run_dsmoe({"quantize", model, "--to", "int8", "-o", out, "--quiet"});
    EXPECT_EQ(ran.code, 1) << ran.out;
    EXPECT_NE(ran.err.find("the tokenizer makes no tokens"), std::string::npos) << ran.err;
    EXPECT_FALSE(std::filesystem::exists(out));
  }
  const Ran probe = run_dsmoe({"probe", model, "--quiet"});
  EXPECT_EQ(probe.code, 1) << probe.out;
  EXPECT_NE(probe.err.find("the tokenizer makes no tokens"), std::string::npos) << probe.err;
}

TEST(Quantize, WrongUsageExitsWith2) {
  const ScratchFolder scratch;
  const std::string out = (scratch / "out").string();
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"quantize", golden("odd")},
                                             {"quantize", golden("odd"), "--to", "int3", "-o", out},
                                             {"quantize", golden("odd"), "--to", "int8"}}) {
    EXPECT_EQ(run_dsmoe(arguments).code, 2);
  }
  EXPECT_FALSE(std::filesystem::exists(out));
}

}  // namespace
}  // namespace dsmoe::testing

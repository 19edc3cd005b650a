// dsmoe convert end to end: a trained tokenizer and a template go along, and every command takes
// the file.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/json.h"
#include "base/scratch_folder.h"
#include "cli/program.h"
#include "support/golden.h"

namespace dsmoe::testing {
namespace {

class Convert : public ::testing::Test {
 protected:
  // The demo's model with random weights, a tokenizer trained here, and a template.
  static void SetUpTestSuite() {
    scratch_ = std::make_unique<ScratchFolder>();
    const Ran ran = run_dsmoe({"demo", "--random", "-o", path("model"), "--quiet"});
    ASSERT_EQ(ran.code, 0) << ran.err;
    write_file(path("text"), "The cat sat on the mat; naïve 12345 <|end_of_sentence|> x\n\n  y");
    std::string corpus;
    for (int i = 0; i < 50; ++i) corpus += "The cat sat on the mat. The dog met the cat.\n";
    write_file(path("corpus"), corpus);
    out_of({"tokenizer", "train", path("corpus"), "--vocab-size", "270", "-o", path("model")});
    write_file(path("model") + "/chat_template.jinja",
               "{% for m in messages %}{{ m.content }}{% endfor %}");
  }
  static void TearDownTestSuite() { scratch_.reset(); }

  static std::string path(const std::string& name) { return (*scratch_ / name).string(); }
  static std::string out_of(const std::vector<std::string>& arguments) {
    const Ran ran = run_dsmoe(arguments);
    EXPECT_EQ(ran.code, 0) << ran.err;
    return ran.out;
  }

  static std::unique_ptr<ScratchFolder> scratch_;
};
std::unique_ptr<ScratchFolder> Convert::scratch_;

TEST_F(Convert, EveryCommandTakesTheFile) {
  const std::string model = path("model"), file = path("a.gguf"), folder = path("back");
  out_of({"convert", model, "-o", file, "--quiet"});
  out_of({"convert", file, "-o", folder, "--quiet"});
  for (const std::string& other : {file, folder}) {
    EXPECT_EQ(out_of({"tokenizer", "encode", other, path("text")}),
              out_of({"tokenizer", "encode", model, path("text")}));
    EXPECT_EQ(out_of({"eval", other, "--text", path("text"), "--json"}),
              out_of({"eval", model, "--text", path("text"), "--json"}));
    EXPECT_EQ(
        out_of({"generate", other, "-p", "The", "--max-tokens", "8", "--seed", "3", "--quiet"}),
        out_of({"generate", model, "-p", "The", "--max-tokens", "8", "--seed", "3", "--quiet"}));
    const Json info = parse_json(out_of({"info", other, "--json"}), "info");
    const Json expected = parse_json(out_of({"info", model, "--json"}), "info");
    EXPECT_EQ(info["parameters"], expected["parameters"]);
  }
  EXPECT_EQ(read_file(folder + "/chat_template.jinja"), read_file(model + "/chat_template.jinja"));
  EXPECT_EQ(run_dsmoe({"quantize", file, "--to", "int8", "-o", path("int8"), "--no-compare"}).code,
            0);
}

TEST_F(Convert, BlocksBecomeAFolderOfNumbers) {
  const std::string file = path("q8.gguf");
  out_of({"convert", path("model"), "--type", "q8_0", "-o", file, "--quiet"});
  out_of({"convert", file, "-o", path("numbers"), "--quiet"});
  const auto eval = [&](const std::string& model) {
    return out_of({"eval", model, "--text", path("text"), "--json", "--dtype", "fp32"});
  };
  EXPECT_EQ(eval(file), eval(path("numbers")));
  EXPECT_NE(eval(file), eval(path("model")));
  const Json config = parse_json(read_file(path("numbers") + "/config.json"), "config.json");
  EXPECT_EQ(config.value("torch_dtype", config.value("dtype", "")), "float32");
}

TEST_F(Convert, RefusesWhatItCannotDo) {
  const Ran folder = run_dsmoe({"convert", path("model"), "--to", "folder", "-o", path("x")});
  EXPECT_EQ(folder.code, 2);
  EXPECT_NE(folder.err.find("is a model folder already"), std::string::npos) << folder.err;
  const Ran dense =
      run_dsmoe({"convert", (goldens_folder() / "dense").string(), "-o", path("x.gguf")});
  EXPECT_EQ(dense.code, 1);
  EXPECT_NE(dense.err.find("a model without experts"), std::string::npos) << dense.err;
  EXPECT_FALSE(std::filesystem::exists(path("x.gguf")));
  write_file(path("cut.gguf"), "GGUF\3");
  const Ran cut = run_dsmoe({"info", path("cut.gguf")});
  EXPECT_EQ(cut.code, 1);
  EXPECT_NE(cut.err.find("is it cut?"), std::string::npos) << cut.err;
}

}  // namespace
}  // namespace dsmoe::testing

// What stands around a text is one rule: a folder that asks for BOS in tokenizer_config.json, as
// DeepSeek-V3's does, is served as one that asks for it in tokenizer.json.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/json.h"
#include "base/scratch_folder.h"
#include "cli/program.h"

namespace dsmoe::testing {
namespace {

namespace fs = std::filesystem;

constexpr const char* kText = "The cat sat on the mat. The dog sat on the log. They met one day.\n";
constexpr const char* kConfig =
    R"({"model_type": "deepseek", "architectures": ["DeepseekForCausalLM"],
  "torch_dtype": "bfloat16", "vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 2,
  "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 64,
  "moe_intermediate_size": 32, "n_routed_experts": 4, "n_shared_experts": 1,
  "num_experts_per_tok": 2, "first_k_dense_replace": 1, "moe_layer_freq": 1,
  "norm_topk_prob": false, "scoring_func": "softmax", "aux_loss_alpha": 0.001, "seq_aux": true,
  "hidden_act": "silu", "max_position_embeddings": 128, "initializer_range": 0.3,
  "rms_norm_eps": 1e-6, "rope_theta": 10000, "tie_word_embeddings": false, "bos_token_id": 0,
  "eos_token_id": 1})";
constexpr const char* kBos = "<|begin_of_sentence|>";

// Folders of one random model: "file" says BOS in tokenizer.json, "config" as V3's does, "none"
// does not say it.
class FrameModel : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    scratch_ = std::make_unique<ScratchFolder>();
    write_file(path("model.json"), kConfig);
    write_file(path("corpus.txt"), kText);
    ASSERT_EQ(run_dsmoe({"demo", "--random", "-o", path("file"), "--seed", "3", "--quiet",
                         "--config", path("model.json")})
                  .code,
              0);
    const Ran ran = run_dsmoe({"tokenizer", "train", path("corpus.txt"), "--vocab-size", "300",
                               "-o", path("file"), "--threads", "1"});
    ASSERT_EQ(ran.code, 0) << ran.err;
    write_file(path("file/chat_template.jinja"),
               "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}:");
    for (const char* name : {"config", "none"}) {
      fs::copy(path("file"), path(name), fs::copy_options::recursive);
      edit(std::string(name) + "/tokenizer.json",
           {{"post_processor",
             {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", false}}}});
    }
    edit("config/tokenizer_config.json",
         {{"tokenizer_class", "LlamaTokenizerFast"},
          {"add_bos_token", true},
          {"bos_token", {{"__type", "AddedToken"}, {"content", kBos}, {"lstrip", false}}}});
  }
  static void TearDownTestSuite() { scratch_.reset(); }

  static std::string path(const std::string& name) { return (*scratch_ / name).string(); }
  static void edit(const std::string& file, const Json& changes) {
    Json json = Json::parse(read_file(path(file)));
    json.update(changes);
    write_file(path(file), json.dump());
  }
  static Ran run(std::vector<std::string> arguments, const std::string& input = "") {
    arguments.insert(arguments.end(), {"--threads", "1"});
    const Ran ran = run_dsmoe(arguments, {.input = input});
    EXPECT_EQ(ran.code, 0) << ran.err;
    return ran;
  }
  static std::string encoded(const std::string& folder, const std::string& text) {
    return run_dsmoe({"tokenizer", "encode", path(folder), "-t", text}).out;
  }
  // Of pairs: {"context": .., "continuation": ..}, one line each.
  static std::string scores(const std::string& folder, const std::vector<Json>& pairs,
                            const std::vector<std::string>& more = {}) {
    std::string lines;
    for (const Json& pair : pairs) lines += pair.dump() + "\n";
    write_file(path("pairs.jsonl"), lines);
    std::vector<std::string> arguments{"eval", path(folder), "--pairs", path("pairs.jsonl"),
                                       "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments).out;
  }

  static std::unique_ptr<ScratchFolder> scratch_;
};
std::unique_ptr<ScratchFolder> FrameModel::scratch_;

TEST_F(FrameModel, EncodingSaysWhereBosComesFrom) {
  const Ran ran = run_dsmoe({"tokenizer", "encode", path("config"), "-t", "The cat"});
  EXPECT_EQ(ran.out, encoded("file", "The cat"));
  EXPECT_EQ(ran.out, "0 " + encoded("none", "The cat"));
  EXPECT_NE(ran.err.find("a text begins with \"<|begin_of_sentence|>\" (0)"), std::string::npos)
      << ran.err;
  const Ran none = run_dsmoe({"tokenizer", "encode", path("none"), "-t", "The cat"});
  EXPECT_NE(none.err.find("add_bos_token is true, but \"PreTrainedTokenizerFast\" leaves that to "
                          "tokenizer.json, which adds none"),
            std::string::npos)
      << none.err;
}

TEST_F(FrameModel, InfoSaysWhatStandsAroundAText) {
  const auto around = [&](const char* folder) {
    return Json::parse(run_dsmoe({"info", path(folder), "--json"}).out)["around_text"];
  };
  EXPECT_EQ(
      around("config"),
      Json({{"before", {0}}, {"after", Json::array()}, {"said_by", "tokenizer_config.json"}}));
  EXPECT_EQ(around("file")["said_by"], "tokenizer.json");
  EXPECT_EQ(around("none")["before"], Json::array());
  EXPECT_NE(run_dsmoe({"info", path("config")}).out.find("a text "), std::string::npos);
}

TEST_F(FrameModel, EveryCommandBeginsATextAlike) {
  const auto generated = [&](const char* folder) {
    return run({"generate", path(folder), "-p", "The cat", "--seed", "1", "--max-tokens", "12"})
        .out;
  };
  EXPECT_EQ(generated("config"), generated("file"));
  EXPECT_NE(generated("config"), generated("none"));
  const auto evaluated = [&](const char* folder) {
    return run({"eval", path(folder), "--text", path("corpus.txt"), "--json"}).out;
  };
  EXPECT_EQ(evaluated("config"), evaluated("file"));
  const auto quantised = [&](const char* folder) {
    return Json::parse(run({"quantize", path(folder), "--to", "int8", "--json", "--text",
                            path("corpus.txt"), "-o", path(std::string("int8-") + folder)})
                           .out)["perplexity"];
  };
  EXPECT_EQ(quantised("config"), quantised("file"));
  // transformers before 4.47 reads templates there only.
  const Json written = Json::parse(read_file(path("int8-file/tokenizer_config.json")));
  EXPECT_EQ(written.value("chat_template", ""), read_file(path("file/chat_template.jinja")));
}

// As apply_chat_template: what the template wrote is all.
TEST_F(FrameModel, ATemplateThatWritesBosGetsNoSecondOne) {
  const auto prompt = [&](const char* folder) {
    const std::string err = run({"chat", path(folder), "--max-tokens", "1"}, "The cat\n").err;
    return err.substr(err.find("prompt "), err.find(" tokens") - err.find("prompt "));
  };
  const std::string ids = encoded("file", "The cat:");
  const auto count = std::count(ids.begin(), ids.end(), ' ') + 1;
  EXPECT_EQ(prompt("config"), "prompt " + std::to_string(count));
  EXPECT_EQ(prompt("none"), "prompt " + std::to_string(count));
}

TEST_F(FrameModel, PairsBeginAsTheHarnessBeginsThem) {
  const Json pair{{"context", "The cat"}, {"continuation", " sat"}};
  const Json with_bos{{"context", std::string(kBos) + "The cat"}, {"continuation", " sat"}};
  const std::string plain = scores("file", {pair}, {"--bos", "no"});
  const std::string begun = scores("file", {with_bos}, {"--bos", "no"});
  EXPECT_NE(plain, begun);
  for (const char* folder : {"file", "config"}) {
    EXPECT_EQ(scores(folder, {pair}), begun) << "auto: as the tokenizer does";
    EXPECT_EQ(scores(folder, {with_bos}), begun) << "a text that begins with BOS gets no second";
    EXPECT_EQ(scores(folder, {with_bos}, {"--bos", "yes"}), begun);
    EXPECT_EQ(scores(folder, {pair}, {"--bos", "no"}), plain);
  }
  EXPECT_EQ(scores("none", {pair}), plain);
  EXPECT_EQ(scores("none", {pair}, {"--bos", "yes"}), begun);
  // An empty context stands for BOS, once.
  const Json empty{{"context", ""}, {"continuation", "The cat"}};
  const Json empty_with_bos{{"context", ""}, {"continuation", std::string(kBos) + "The cat"}};
  for (const char* folder : {"file", "none"}) {
    for (const char* bos : {"auto", "no", "yes"}) {
      EXPECT_EQ(scores(folder, {empty}, {"--bos", bos}),
                scores(folder, {empty_with_bos}, {"--bos", bos}));
    }
  }
}

TEST_F(FrameModel, ABosThatTheTokenizerHasNotIsRefused) {
  fs::copy(path("none"), path("nameless"), fs::copy_options::recursive);
  edit("nameless/tokenizer_config.json", {{"bos_token", nullptr}});
  write_file(path("pairs.jsonl"), R"({"context": "a", "continuation": "b"})");
  const Ran ran =
      run_dsmoe({"eval", path("nameless"), "--pairs", path("pairs.jsonl"), "--bos", "yes"});
  EXPECT_EQ(ran.code, 1);
  EXPECT_NE(ran.err.find("--bos yes: the tokenizer has no BOS"), std::string::npos) << ran.err;
}

// A text is measured as train would read it, or not at all.
TEST_F(FrameModel, BrokenTextIsNotMeasured) {
  write_file(path("broken.txt"), "one line\nThe \xff cat\n");
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"eval", path("file")},
        {"quantize", path("file"), "--to", "int8", "-o", path("no-int8")}}) {
    std::vector<std::string> arguments = command;
    arguments.insert(arguments.end(), {"--text", path("broken.txt")});
    const Ran ran = run_dsmoe(arguments);
    EXPECT_EQ(ran.code, 1);
    EXPECT_NE(ran.err.find("broken.txt: line 2, byte offset 13: byte 0xff is not valid UTF-8"),
              std::string::npos)
        << ran.err;
  }
}

}  // namespace
}  // namespace dsmoe::testing

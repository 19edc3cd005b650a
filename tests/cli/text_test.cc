// demo, generate, chat and eval --text end to end, on a random model with a trained tokenizer.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/json.h"
#include "base/scratch_folder.h"
#include "cli/program.h"

namespace dsmoe::testing {
namespace {

constexpr const char* kText =
    "The cat sat on the mat. The dog sat on the log. One day the cat and the dog met, and they "
    "sat on the mat together. \"Where is the log?\" said the cat. \"In the fog,\" said the dog.\n";

// Weights far above what training starts from, so that the model has preferences to show.
constexpr const char* kConfig =
    R"({"model_type": "deepseek", "architectures": ["DeepseekForCausalLM"],
  "torch_dtype": "bfloat16", "vocab_size": 512, "hidden_size": 128, "num_hidden_layers": 4,
  "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 384,
  "moe_intermediate_size": 64, "n_routed_experts": 16, "n_shared_experts": 2,
  "num_experts_per_tok": 4, "first_k_dense_replace": 1, "moe_layer_freq": 1,
  "norm_topk_prob": false, "scoring_func": "softmax", "aux_loss_alpha": 0.001, "seq_aux": true,
  "hidden_act": "silu", "max_position_embeddings": 512, "initializer_range": 0.2,
  "rms_norm_eps": 1e-6, "rope_theta": 10000, "tie_word_embeddings": false, "bos_token_id": 0,
  "eos_token_id": 1})";

// A random model of 512 tokens whose tokenizer was trained on kText, made once for all tests.
class TextModel : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    scratch_ = std::make_unique<ScratchFolder>();
    write_file(path("config.json"), kConfig);
    ASSERT_EQ(random_model(model(), "3").code, 0);
    write_file(path("corpus.txt"), kText);
    const Ran ran = run_dsmoe({"tokenizer", "train", path("corpus.txt"), "--vocab-size", "512",
                               "-o", model(), "--threads", "1"});
    ASSERT_EQ(ran.code, 0) << ran.err;
    write_file(
        path("template.jinja"),
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:");
  }
  static void TearDownTestSuite() { scratch_.reset(); }

  static std::string path(const std::string& name) { return (*scratch_ / name).string(); }
  static std::string model() { return path("model"); }
  static Ran random_model(const std::string& folder, const std::string& seed) {
    return run_dsmoe({"demo", "--random", "-o", folder, "--seed", seed, "--quiet", "--config",
                      path("config.json")});
  }

  // One thread unless the caller says otherwise: many short forward passes on a busy machine.
  static Ran run(std::vector<std::string> arguments, const std::vector<std::string>& more,
                 const RunOptions& options = {}) {
    arguments.insert(arguments.end(), more.begin(), more.end());
    if (std::find(more.begin(), more.end(), "--threads") == more.end()) {
      arguments.insert(arguments.end(), {"--threads", "1"});
    }
    return run_dsmoe(arguments, options);
  }
  static Ran generate(const std::vector<std::string>& more) {
    return run({"generate", model(), "-p", "The cat", "--max-tokens", "20"}, more);
  }
  static Ran chat(const std::string& input, const std::vector<std::string>& more = {}) {
    return run({"chat", model(), "--max-tokens", "12", "--seed", "1", "--chat-template",
                path("template.jinja")},
               more, {.input = input});
  }

  static std::unique_ptr<ScratchFolder> scratch_;
};
std::unique_ptr<ScratchFolder> TextModel::scratch_;

TEST_F(TextModel, DemoIsDeterministicAndNeverOverwrites) {
  const ScratchFolder scratch;
  const std::string again = (scratch / "again").string();
  ASSERT_EQ(random_model(again, "3").code, 0);
  EXPECT_EQ(read_file(again + "/model.safetensors"), read_file(model() + "/model.safetensors"));
  EXPECT_NE(read_file(again + "/model.safetensors"), "");
  const Ran refused = random_model(again, "3");
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.err.find("again"), std::string::npos) << refused.err;
  const std::string other = (scratch / "other").string();
  ASSERT_EQ(random_model(other, "4").code, 0);
  EXPECT_NE(read_file(other + "/model.safetensors"), read_file(again + "/model.safetensors"));
}

// A zstd frame of one raw block: magic, one byte of size, the block's header and bytes.
std::string zstd_frame(const std::string& text) {
  std::string frame("\x28\xb5\x2f\xfd\x20", 5);
  frame += static_cast<char>(text.size());
  const std::size_t header = text.size() << 3 | 1;
  for (int i = 0; i < 3; ++i) frame += static_cast<char>(header >> (8 * i));
  return frame + text;
}

// Compressed bytes and JSON's keys are no words of a language.
TEST_F(TextModel, TokenizersAreTrainedOnTheFilesThatTrainReads) {
  const ScratchFolder scratch;
  const std::string text = std::string(kText).substr(0, 200);
  const auto trained = [&](const std::string& name, const std::string& bytes) {
    write_file((scratch / name).string(), bytes);
    const std::string out = (scratch / ("of-" + name)).string();
    const Ran ran = run_dsmoe({"tokenizer", "train", (scratch / name).string(), "--vocab-size",
                               "300", "-o", out, "--threads", "1"});
    return ran.code == 0 ? read_file(out + "/tokenizer.json") : ran.err;
  };
  const std::string plain = trained("a.txt", text);
  EXPECT_NE(plain.find("merges"), std::string::npos) << plain;
  EXPECT_EQ(trained("a.txt.zst", zstd_frame(text)), plain);
  EXPECT_EQ(trained("a.jsonl", Json{{"text", text}}.dump() + "\n"), plain);
  EXPECT_EQ(trained("b.txt", text + "<|endoftext|>"), plain) << "what ends documents is no word";
  const Ran counted = run_dsmoe({"tokenizer", "train", (scratch / "a.jsonl").string(),
                                 "--vocab-size", "300", "-o", (scratch / "n").string(), "--json"});
  EXPECT_EQ(Json::parse(counted.out)["bytes"], text.size());
  const std::string gzip = trained("a.gz", "\x1f\x8b" + text);
  EXPECT_NE(gzip.find("looks like gzip"), std::string::npos) << gzip;
}

TEST_F(TextModel, ATokenizerIsNeverOverwritten) {
  const std::string before = read_file(model() + "/tokenizer.json");
  const Ran ran =
      run_dsmoe({"tokenizer", "train", path("corpus.txt"), "--vocab-size", "300", "-o", model()});
  EXPECT_EQ(ran.code, 1);
  EXPECT_NE(ran.err.find("has a tokenizer.json"), std::string::npos) << ran.err;
  EXPECT_EQ(read_file(model() + "/tokenizer.json"), before);
  // A folder with a tokenizer of another kind keeps what it says of it, its chat template perhaps.
  const ScratchFolder other;
  write_file((other / "tokenizer_config.json").string(), "{}");
  const Ran again = run_dsmoe({"tokenizer", "train", path("corpus.txt"), "--vocab-size", "300",
                               "-o", other.path().string()});
  EXPECT_EQ(again.code, 1);
  EXPECT_NE(again.err.find("has a tokenizer_config.json"), std::string::npos) << again.err;
  EXPECT_EQ(read_file((other / "tokenizer_config.json").string()), "{}");
}

// A download that did not finish leaves links to nothing: they are told, not passed over.
TEST_F(TextModel, ALinkToNothingIsNamed) {
  const ScratchFolder scratch;
  std::filesystem::copy(model(), scratch / "copy");
  const std::string copy = (scratch / "copy").string();
  const auto refusal = [&](const std::string& name, const std::vector<std::string>& arguments) {
    const std::filesystem::path file = scratch / "copy" / name;
    const std::string before = std::filesystem::exists(file) ? read_file(file.string()) : "";
    std::filesystem::remove(file);
    std::filesystem::create_symlink("gone", file);
    const Ran ran = run_dsmoe(arguments);
    EXPECT_EQ(ran.code, 1) << name;
    EXPECT_NE(ran.err.find("cannot open " + file.string()), std::string::npos) << ran.err;
    std::filesystem::remove(file);
    if (!before.empty()) write_file(file.string(), before);
  };
  refusal("model.safetensors", {"info", copy});
  refusal("model.safetensors", {"logits", copy, "--tokens", "1"});
  refusal("tokenizer.json", {"generate", copy, "-p", "x"});
  refusal("chat_template.jinja", {"chat", copy});
}

TEST_F(TextModel, ATokenizerThatCannotBeWrittenIsNotTrained) {
  const Ran ran = run_dsmoe({"tokenizer", "train", path("corpus.txt"), "--vocab-size", "300", "-o",
                             path("corpus.txt") + "/x"});
  EXPECT_EQ(ran.code, 1);
  EXPECT_NE(ran.err.find("cannot create"), std::string::npos) << ran.err;
  EXPECT_EQ(ran.err.find("merge"), std::string::npos) << ran.err;
  const Ran missing = run_dsmoe(
      {"tokenizer", "train", path("no such file"), "--vocab-size", "300", "-o", path("out")});
  EXPECT_EQ(missing.code, 1);
  EXPECT_NE(missing.err.find("no such file"), std::string::npos) << missing.err;
  EXPECT_FALSE(std::filesystem::exists(path("out")));
  EXPECT_EQ(run_dsmoe({"tokenizer", "train", path("corpus.txt"), "--vocab-size", "300", "-o",
                       path("out"), "--max-length", "-3"})
                .code,
            2);
}

TEST_F(TextModel, GenerateRepeatsForAnyThreads) {
  const Ran first = generate({"--seed", "5", "--threads", "1"});
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_GT(first.out.size(), 10u);
  EXPECT_NE(first.err.find("tokens/s"), std::string::npos) << first.err;
  EXPECT_EQ(generate({"--seed", "5", "--threads", "3"}).out, first.out);
  EXPECT_NE(generate({"--seed", "6"}).out, first.out);
  EXPECT_EQ(generate({"--seed", "5", "--quiet"}).err, "");
}

TEST_F(TextModel, GenerateJsonHasTextTokensAndSeed) {
  const Ran ran = generate({"--json", "--show-experts"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json json = Json::parse(ran.out);
  EXPECT_EQ(json["answer_tokens"], json["tokens"].size());
  ASSERT_EQ(json["experts"].size(), json["tokens"].size());
  EXPECT_EQ(json["experts"].back()["layers"].size(), 3u);
  EXPECT_EQ(json["experts"][0]["layers"][0]["index"].size(), 4u);
  // The seed it chose gives the same answer again.
  const Json again = Json::parse(generate({"--json", "--seed", json["seed"].dump()}).out);
  EXPECT_EQ(again["text"], json["text"]);
}

TEST_F(TextModel, StopStringsAreNeverShown) {
  const Json whole = Json::parse(generate({"--json", "--seed", "5", "--ignore-eos"}).out);
  const std::string text = whole["text"];
  ASSERT_GT(text.size(), 10u);
  // Two characters of plain text, not at the start.
  const auto is_plain = [](char c) { return c >= ' ' && c < 0x7f; };
  std::size_t at = 3;
  while (at + 1 < text.size() && !(is_plain(text[at]) && is_plain(text[at + 1]))) ++at;
  ASSERT_LT(at + 1, text.size()) << text;
  const std::string stop = text.substr(at, 2);
  const Json cut =
      Json::parse(generate({"--json", "--seed", "5", "--ignore-eos", "--stop", stop}).out);
  EXPECT_EQ(cut["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(cut["stop"], stop);
  EXPECT_EQ(cut["finish_reason"], "stop");
  EXPECT_EQ(whole["finish_reason"], "length");
}

TEST_F(TextModel, OptionsChangeTheAnswer) {
  // Long enough that the plain answer repeats itself, or penalties would have nothing to do.
  const auto answer = [](const std::vector<std::string>& more) {
    return run({"generate", model(), "-p", "The cat", "--max-tokens", "150"}, more);
  };
  const std::vector<std::string> greedy{"--temperature", "0", "--ignore-eos"};
  const std::string plain = answer(greedy).out;
  EXPECT_EQ(answer(greedy).out, plain);
  for (const std::vector<std::string>& option :
       std::vector<std::vector<std::string>>{{"--repetition-penalty", "5"},
                                             {"--frequency-penalty", "50"},
                                             {"--num-experts-per-tok", "1"},
                                             {"--logit-bias", "300:100"}}) {
    std::vector<std::string> arguments = greedy;
    arguments.insert(arguments.end(), option.begin(), option.end());
    EXPECT_NE(answer(arguments).out, plain) << option[0];
  }
  for (const std::vector<std::string>& option : std::vector<std::vector<std::string>>{
           {"--top-k", "1"}, {"--top-p", "0"}, {"--min-p", "1"}}) {
    std::vector<std::string> arguments{"--seed", "9", "--ignore-eos"};
    arguments.insert(arguments.end(), option.begin(), option.end());
    EXPECT_EQ(answer(arguments).out, plain) << option[0];
  }
}

TEST_F(TextModel, ShowExpertsIsATableWithoutColourInAFile) {
  const Ran ran = generate({"--seed", "5", "--show-experts", "3", "--ignore-eos"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(ran.out.find("token"), std::string::npos);
  EXPECT_NE(ran.out.find("layer 3"), std::string::npos) << ran.out;
  EXPECT_EQ(ran.out.find('\x1b'), std::string::npos);
}

TEST_F(TextModel, GenerateRefusesBadInput) {
  const auto refused = [&](std::vector<std::string> more, int code, const std::string& fault) {
    const Ran ran = generate(std::move(more));
    EXPECT_EQ(ran.code, code) << ran.err;
    EXPECT_NE(ran.err.find(fault), std::string::npos) << ran.err;
    EXPECT_EQ(ran.out, "");
  };
  refused({"--temperature", "-1"}, 2, "--temperature");
  refused({"--top-p", "2"}, 2, "--top-p");
  refused({"--top-k", "x"}, 2, "top-k");
  refused({"--logit-bias", "1=2"}, 2, "ID:BIAS");
  refused({"--logit-bias", "512:1"}, 1, "0 to 511");
  refused({"--stop", ""}, 1, "stop string");
  refused({"--num-experts-per-tok", "17"}, 1, "1 to 16");
  refused({"--min-p", "-1"}, 2, "--min-p");
  refused({"--tokens", "1"}, 2, "got --prompt and --tokens");
  // As "$IDS" gives it where IDS is not set: not another kind of prompt.
  for (const std::string flag : {"--tokens", "--prompt-file"}) {
    const Ran nothing = run_dsmoe({"generate", model(), flag, "", "--max-tokens", "3"});
    EXPECT_EQ(nothing.code, 1) << flag << ": " << nothing.out;
  }
  const std::string long_prompt = path("long.txt");
  std::string text;
  for (int i = 0; i < 3000; ++i) text += "zq ";
  write_file(long_prompt, text);
  const Ran ran = run_dsmoe({"generate", model(), "--prompt-file", long_prompt});
  EXPECT_EQ(ran.code, 1);
  EXPECT_NE(ran.err.find("context of 512"), std::string::npos) << ran.err;
}

TEST_F(TextModel, GenerateWithoutATokenizerSpeaksInNumbers) {
  const std::string bare = path("bare");
  ASSERT_EQ(random_model(bare, "1").code, 0);
  const Ran ran =
      run_dsmoe({"generate", bare, "--tokens", "1,2", "--max-tokens", "3", "--ignore-eos"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(std::count(ran.out.begin(), ran.out.end(), ' '), 2);
  const Ran refused = run_dsmoe({"generate", bare, "-p", "hello"});
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.err.find("tokenizer.json"), std::string::npos) << refused.err;
  write_file(bare + "/tokenizer.json", "{");
  EXPECT_EQ(run_dsmoe({"generate", bare, "--tokens", "1,2"}).code, 1);
}

TEST_F(TextModel, ChatAnswersEachLineAndReusesThePrefix) {
  const Ran ran = chat("The cat sat\nThe dog sat\n");
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(ran.err.find("kept"), std::string::npos) << ran.err;  // of the second prompt
  EXPECT_EQ(chat("The cat sat\nThe dog sat\n", {"--threads", "3"}).out, ran.out);
  // The second answer depends on the first turn; /reset forgets it.
  const std::string alone = chat("The dog sat\n").out;
  EXPECT_FALSE(ran.out.ends_with(alone));
  EXPECT_TRUE(chat("The cat sat\n/reset\nThe dog sat\n").out.ends_with(alone));
}

TEST_F(TextModel, ChatSavesOnceAndNeverOverOthers) {
  const std::string file = path("saved.json");
  const Ran ran = chat("Hello\n/save " + file + "\nAgain\n/save " + file + "\n/exit\nnot reached\n",
                       {"--system", "Be brief"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json saved = Json::parse(read_file(file));
  ASSERT_EQ(saved.size(), 5u);
  EXPECT_EQ(saved[0]["role"], "system");
  EXPECT_EQ(saved[3]["content"], "Again");
  EXPECT_EQ(saved[4]["role"], "assistant");
  const std::string other = path("other.json");
  const Ran emptied = chat("Hello\n/save " + other + "\n/reset\n/save " + other + "\n");
  EXPECT_NE(emptied.err.find("nothing to save"), std::string::npos) << emptied.err;
  EXPECT_EQ(Json::parse(read_file(other))[0]["content"], "Hello");
  const std::string third = path("third.json");
  const Ran anew = chat("Hello\n/save " + third + "\n/reset\nHi\n/save " + third + "\n");
  EXPECT_NE(anew.err.find("exists"), std::string::npos) << anew.err;
  EXPECT_EQ(Json::parse(read_file(third))[0]["content"], "Hello");
  const Ran refused = chat("Hello\n/save " + file + "\n");
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.err.find("exists"), std::string::npos) << refused.err;
}

TEST_F(TextModel, ChatHelpAndFaults) {
  EXPECT_NE(chat("/help\n").out.find("/reset"), std::string::npos);
  EXPECT_EQ(chat("/nonsense\n").code, 1);
  EXPECT_EQ(chat("").code, 0);
  const Ran no_template = run_dsmoe({"chat", model()}, {.input = "hi\n"});
  EXPECT_EQ(no_template.code, 1);
  EXPECT_NE(no_template.err.find("--chat-template"), std::string::npos) << no_template.err;
}

TEST_F(TextModel, ChatSaysWhenTheContextEndedAnAnswer) {
  const auto told = [](const std::string& max_tokens) {
    const Ran ran = run({"chat", model(), "--chat-template", path("template.jinja")},
                        {"--context", "24", "--max-tokens", max_tokens, "--logit-bias", "1:-1000"},
                        {.input = "The cat\n"});
    EXPECT_EQ(ran.code, 0) << ran.err;
    return ran.err.find("the context of 24 tokens is full") != std::string::npos;
  };
  EXPECT_TRUE(told("100"));
  EXPECT_FALSE(told("1"));
}

TEST_F(TextModel, EvalTextCountsEveryByte) {
  const Ran ran = run_dsmoe(
      {"eval", model(), "--text", path("corpus.txt"), "--json", "--quiet", "--threads", "1"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json json = Json::parse(ran.out);
  EXPECT_EQ(json["bytes"], std::string(kText).size());
  EXPECT_EQ(json["scored"].get<int64_t>() + 1, json["tokens"].get<int64_t>());  // behind bos
  EXPECT_NEAR(json["bits_per_byte"].get<double>(),
              json["nats"].get<double>() / 0.6931471805599453 /
                  static_cast<double>(std::string(kText).size()),
              1e-9);
  // The same tokens, given as ids.
  const Ran ids = run_dsmoe({"tokenizer", "encode", model(), path("corpus.txt"), "--no-special"});
  write_file(path("ids.txt"), "0 " + ids.out);
  const Json by_ids = Json::parse(run_dsmoe({"eval", model(), "--tokens", path("ids.txt"), "--json",
                                             "--quiet", "--threads", "1"})
                                      .out);
  EXPECT_EQ(by_ids["nats"], json["nats"]);
  EXPECT_FALSE(by_ids.contains("bits_per_byte"));
  write_file(path("empty.txt"), "");
  EXPECT_EQ(run_dsmoe({"eval", model(), "--text", path("empty.txt")}).code, 1);
}

TEST_F(TextModel, DecodeGivesBackWhatEncodePrints) {
  const Ran ids = run_dsmoe({"tokenizer", "encode", model(), path("corpus.txt"), "--no-special"});
  ASSERT_EQ(ids.code, 0) << ids.err;
  EXPECT_EQ(run_dsmoe({"tokenizer", "decode", model()}, {.input = ids.out}).out, kText);
  EXPECT_EQ(run_dsmoe({"tokenizer", "decode", model(), "-i", "[]"}).out, "");
  const auto refusal = [&](const char* text) {
    const Ran ran = run_dsmoe({"tokenizer", "decode", model(), "-i", text});
    EXPECT_EQ(ran.code, 1);
    EXPECT_EQ(ran.out, "");
    return ran.err;
  };
  EXPECT_NE(refusal("1 512").find("token 512 is beyond the vocabulary of "), std::string::npos);
  EXPECT_NE(refusal("1 x").find("expected a token id, found 'x'"), std::string::npos);
}

TEST_F(TextModel, EvalPairsOfTextSplitAsTheHarnessDoes) {
  const auto score = [&](const Json& pair) {
    write_file(path("pairs.jsonl"), pair.dump() + "\n");
    const Ran ran = run_dsmoe({"eval", model(), "--pairs", path("pairs.jsonl"), "--bos", "no",
                               "--json", "--quiet", "--threads", "1"});
    EXPECT_EQ(ran.code, 0) << ran.err;
    return Json::parse(ran.out);
  };
  const auto encode = [&](const std::string& text) {
    return Json::parse(
        run_dsmoe({"tokenizer", "encode", model(), "-t", text, "--no-special", "--json"})
            .out)["ids"];
  };
  // White space at the end of the context belongs to the continuation.
  const Json spaced = score({{"context", "The cat "}, {"continuation", "sat"}});
  EXPECT_EQ(spaced, score({{"context", "The cat"}, {"continuation", " sat"}}));
  EXPECT_EQ(spaced,
            score({{"context_ids", encode("The cat")}, {"continuation_ids", encode(" sat")}}));
  for (const char* space : {"\u3000", "\u00a0\n", "\x1c"}) {  // all that Python's rstrip() takes
    EXPECT_EQ(score({{"context", std::string("The cat") + space}, {"continuation", "sat"}}),
              score({{"context", "The cat"}, {"continuation", std::string(space) + "sat"}}));
  }
  EXPECT_EQ(score({{"context", ""}, {"continuation", "The"}}),
            score({{"context_ids", {0}}, {"continuation_ids", encode("The")}}));
}

}  // namespace
}  // namespace dsmoe::testing

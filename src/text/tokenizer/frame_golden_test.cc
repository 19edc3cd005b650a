// BOS and EOS around a text against transformers 4 (oracle/make_frame_goldens.py).
#include <gtest/gtest.h>

#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/scratch_folder.h"
#include "text/tokenizer/tokenizer.h"

namespace dsmoe::text {
namespace {

Json read_goldens() {
  std::ifstream file(std::string(DSMOE_SOURCE_DIR) + "/src/text/testdata/frames.json");
  std::stringstream text;
  text << file.rdbuf();
  return parse_json(text.str(), "frames.json");
}

class Frames : public ::testing::Test {
 protected:
  Frames() : goldens_(read_goldens()), head_(goldens_["head"]) { set_log_level(LogLevel::quiet); }
  ~Frames() override { set_log_level(LogLevel::info); }

  // A folder for each post-processor.
  Tokenizer load(const std::string& post_processor, const std::optional<Json>& config) const {
    const std::filesystem::path folder = scratch_ / post_processor;
    if (std::filesystem::create_directory(folder)) {
      std::ofstream(folder / "tokenizer.json") << head_["files"][post_processor];
    }
    if (config) std::ofstream(folder / "tokenizer_config.json") << *config;
    return Tokenizer::from_file(folder.string());
  }
  Json config_of(const Json& row) const {
    Json config = head_["names"][row[3].get<std::string>()];
    config["tokenizer_class"] = row[0];
    if (row[1] != "absent") config["add_bos_token"] = row[1];
    if (row[2] != "absent") config["add_eos_token"] = row[2];
    return config;
  }
  std::string refusal(const Json& config) const {
    try {
      load("bos", config);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::input);
      return error.what();
    }
    return "no error";
  }

  Json goldens_;
  const Json& head_;
  ScratchFolder scratch_;
};

TEST_F(Frames, AreThoseOfTransformers4) {
  constexpr int k4 = 5, k5 = 6;
  int compared = 0, versions_differ = 0;
  for (const Json& row : goldens_["rows"]) {
    if (row[k4].is_null()) continue;  // transformers 4 refuses the folder
    // It makes up tokens for names that the file has not; no model has a row for them.
    if (row[k4].front() > 5 || row[k4].back() > 5) continue;
    ++compared;
    const Tokenizer tokenizer = load(row[4], config_of(row));
    EXPECT_EQ(Json(tokenizer.encode("Hi")), row[k4]) << row;
    EXPECT_EQ(tokenizer.encode("Hi", {.add_special = AddSpecial::no}), std::vector<int32_t>{4});
    versions_differ += row[k4] != row[k5] ? 1 : 0;
  }
  EXPECT_GE(compared, 800);
  EXPECT_GE(versions_differ, 200);  // the table can tell the two rules apart
}

// tokenizer.json decides, but for the classes that transformers 4 treats apart.
TEST_F(Frames, NeedNoConfig) {
  EXPECT_EQ(load("bos", std::nullopt).frame().before, std::vector<int32_t>{0});
  EXPECT_EQ(load("none", std::nullopt).frame().before, std::vector<int32_t>{});
  EXPECT_EQ(load("bos", Json::object()).frame().said_by, "tokenizer.json");
}

TEST_F(Frames, OfAFileAreThoseOfItsFolder) {
  load("none", Json{{"tokenizer_class", "LlamaTokenizerFast"}, {"bos_token", "<b>"}});
  const Tokenizer tokenizer = Tokenizer::from_file((scratch_ / "none/tokenizer.json").string());
  EXPECT_EQ(tokenizer.frame().before, std::vector<int32_t>{5});
  EXPECT_EQ(tokenizer.frame().said_by, "tokenizer_config.json");
  EXPECT_EQ(describe_frame(tokenizer), "begins with \"<b>\" (5)");
}

// Without a word on add_bos_token a missing token is no error: tokenizer.json decides.
TEST_F(Frames, OfAClassWithoutItsTokenAreThoseOfTheFile) {
  const Json no_token{{"tokenizer_class", "LlamaTokenizerFast"}, {"bos_token", nullptr}};
  EXPECT_EQ(load("bos", no_token).frame().before, std::vector<int32_t>{0});
}

TEST_F(Frames, ThatCannotBeAreRefused) {
  Json config{{"tokenizer_class", "LlamaTokenizerFast"}, {"add_bos_token", true}};
  config["bos_token"] = nullptr;
  EXPECT_NE(refusal(config).find("\"add_bos_token\" is true, but \"bos_token\" is null"),
            std::string::npos)
      << refusal(config);
  config["bos_token"] = "<x>";
  EXPECT_NE(refusal(config).find("tokenizer.json has no token \"<x>\""), std::string::npos)
      << refusal(config);
  config["add_bos_token"] = 1;
  EXPECT_NE(refusal(config).find("\"add_bos_token\" must be true or false, not number"),
            std::string::npos)
      << refusal(config);
}

}  // namespace
}  // namespace dsmoe::text

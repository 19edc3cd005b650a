// Four kinds of tokenizer.json against what PyPI `tokenizers` made of the same texts
// (oracle/make_tokenizer_goldens.py).
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/utf8.h"
#include "text/tokenizer/tokenizer.h"

namespace dsmoe::text {
namespace {

std::string testdata(const std::string& name) {
  return std::string(DSMOE_SOURCE_DIR) + "/src/text/testdata/" + name;
}

const Json& cases() {
  static const Json kCases = [] {
    std::ifstream file(testdata("cases.json"), std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    return parse_json(text.str(), "cases.json");
  }();
  return kCases;
}

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::vector<std::string> texts() {
  std::vector<std::string> out;
  for (const Json& hex : cases()["texts"]) out.push_back(from_hex(hex.get<std::string>()));
  return out;
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
}

class TokenizerGolden : public testing::TestWithParam<const char*> {
 protected:
  TokenizerGolden()
      : tokenizer_(Tokenizer::from_file(testdata(std::string(GetParam()) + ".json"))),
        golden_(cases()["kinds"][GetParam()]) {}

  Tokenizer tokenizer_;
  const Json& golden_;
};

constexpr EncodeOptions kPlain{.add_special = AddSpecial::no};

TEST(TokenizerGoldenData, HasAtLeast300TextsWithBrokenOnes) {
  int num_broken = 0;
  for (const std::string& text : texts()) num_broken += is_valid_utf8(text) ? 0 : 1;
  EXPECT_GE(texts().size(), 300U);
  EXPECT_GE(num_broken, 30);
}

TEST_P(TokenizerGolden, IdsEqualTheOracle) {
  const std::vector<std::string> all = texts();
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(tokenizer_.encode(all[i], kPlain), golden_["ids"][i].get<std::vector<std::int32_t>>())
        << "text " << i << ": " << Json(replace_ill_formed(all[i]));
  }
}

TEST_P(TokenizerGolden, SpecialTokensAreAddedAsThePostProcessorSays) {
  EXPECT_EQ(tokenizer_.encode("Hello world"),
            golden_["with_special"].get<std::vector<std::int32_t>>());
  EXPECT_NE(tokenizer_.encode("Hello world"), tokenizer_.encode("Hello world", kPlain));
}

TEST_P(TokenizerGolden, DecodingEqualsTheOracle) {
  const std::vector<std::string> all = texts();
  for (const auto& [key, skip] :
       {std::pair("decoded", SkipSpecial::no), {"skipped", SkipSpecial::yes}}) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!is_valid_utf8(all[i])) continue;
      const auto ids = golden_["ids"][i].get<std::vector<std::int32_t>>();
      std::string got =
          tokenizer_.decode(ids, {.skip_special = skip, .ill_formed = IllFormed::replace});
      const auto odd = golden_[key].find(std::to_string(i));
      const std::string want = odd == golden_[key].end() ? all[i] : odd->get<std::string>();
      // The one difference (docs/tokenizer.md): the oracle decodes added tokens that look like byte
      // symbols as bytes.
      if (std::string_view(GetParam()) == "deepseek") {
        for (const char* token : {"ø", "ö", "ÿ"}) replace_all(got, token, kReplacement);
      }
      EXPECT_EQ(Json(got), Json(want)) << key << " of text " << i << ": " << Json(all[i]);
    }
  }
}

TEST_P(TokenizerGolden, StreamingEqualsDecodingAndNeverSplitsACharacter) {
  for (const std::string& text : texts()) {
    const bool text_is_valid = is_valid_utf8(text);
    const std::vector<std::int32_t> ids = tokenizer_.encode(text);
    for (const IllFormed ill_formed : {IllFormed::keep, IllFormed::replace}) {
      StreamDecoder stream(tokenizer_, {.ill_formed = ill_formed});
      std::string joined;
      for (const std::int32_t id : ids) {
        const std::string piece = stream.push(id);
        const bool must_be_valid = text_is_valid || ill_formed == IllFormed::replace;
        EXPECT_TRUE(!must_be_valid || is_valid_utf8(piece)) << Json(replace_ill_formed(text));
        joined += piece;
      }
      joined += stream.finish();
      EXPECT_EQ(joined, tokenizer_.decode(ids, {.ill_formed = ill_formed}));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, TokenizerGolden,
                         testing::Values("deepseek", "gpt2", "llama", "metaspace"),
                         [](const auto& kind) { return std::string(kind.param); });

// Strip rules and prefixes aside, every byte comes back.
TEST(TokenizerRoundTrip, IsExactForBytesOfAnyKind) {
  const Tokenizer gpt2 = Tokenizer::from_file(testdata("gpt2.json"));
  const Tokenizer llama = Tokenizer::from_file(testdata("llama.json"));
  for (const std::string& text : texts()) {
    if (text.find("<|") != std::string::npos || text.find("mask") != std::string::npos) continue;
    if (text.find("<keep>") != std::string::npos || text.find("s>") != std::string::npos) continue;
    const std::string prefixed =
        is_valid_utf8(text.substr(0, 1)) || text.empty() ? text : "x" + text;
    const std::string from_gpt2 = gpt2.decode(gpt2.encode(prefixed, kPlain));
    const bool had_space = prefixed.empty() || prefixed.front() == ' ';
    EXPECT_EQ(from_gpt2, had_space ? prefixed : " " + prefixed);
    if (text.find("\xE2\x96\x81") != std::string::npos || text.find("Day") != std::string::npos)
      continue;
    if (text.find("<0x") != std::string::npos || text.find("unk") != std::string::npos) continue;
    EXPECT_EQ(llama.decode(llama.encode(text, kPlain)), text);
  }
}

}  // namespace
}  // namespace dsmoe::text

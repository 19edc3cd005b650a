// Single components of tokenizer.json against PyPI `tokenizers`
// (oracle/make_tokenizer_components.py).
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/utf8.h"
#include "text/tokenizer/byte_alphabet.h"
#include "text/tokenizer/decoder.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/tokenizer_components.h"
#include "text/unicode.h"

namespace dsmoe::text {
namespace {

Json read_cases(const char* family) {
  std::ifstream file(std::string(DSMOE_SOURCE_DIR) + "/src/text/testdata/components.json",
                     std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return parse_json(text.str(), "components.json")[family];
}

void note_recent(const std::string& text, RegexScratch& scratch) {
  ASSERT_TRUE(is_valid_utf8(text));
  scratch.has_recent = has_recent(text);
}

class Collect final : public PieceSink {
 public:
  void piece(std::string_view text) override { pieces.emplace_back(text); }
  std::vector<std::string> pieces;
};

TEST(ComponentGoldens, PreTokenizers) {
  int num_components = 0;
  for (const Json& component : read_cases("pre_tokenizers")) {
    ++num_components;
    TokenizerParts parts;
    ASSERT_NO_THROW(read_pre_tokenizer(component["json"], "json", parts)) << component["json"];
    const PreTokenizer pre_tokenizer(std::move(parts.pre_tokenizer));
    PreTokenizer::Scratch scratch;
    for (const Json& one : component["cases"]) {
      const auto text = one[0].get<std::string>();
      note_recent(text, scratch.regex);
      Collect collect;
      pre_tokenizer.run(text, start_of_text(text), scratch, collect);
      if (parts.model.byte_level) {
        for (std::string& piece : collect.pieces) piece = to_byte_symbols(piece);
      }
      EXPECT_EQ(Json(collect.pieces), one[1]) << component["json"] << " on " << one[0];
    }
  }
  EXPECT_GE(num_components, 100);
}

TEST(ComponentGoldens, Normalizers) {
  int num_components = 0;
  for (const Json& component : read_cases("normalizers")) {
    ++num_components;
    std::vector<NormalizerStep> steps;
    read_normalizer(component["json"], "json", steps);
    const Normalizer normalizer(std::move(steps));
    Normalizer::Scratch scratch;
    RegexScratch regex;
    for (const Json& one : component["cases"]) {
      const auto text = one[0].get<std::string>();
      note_recent(text, regex);
      PieceStart start = start_of_text(text);
      EXPECT_EQ(Json(std::string(normalizer.apply(text, start, scratch, regex))), one[1])
          << component["json"] << " on " << one[0];
    }
  }
  EXPECT_GE(num_components, 8);
}

// Long runs of marks are sorted, not searched.
TEST(ComponentGoldens, ManyMarksAreQuick) {
  std::string text = "a";
  for (int i = 0; i < 200000; ++i) text += i % 2 == 0 ? "\u0315" : "\u0323";
  std::vector<NormalizerStep> steps;
  read_normalizer(Json{{"type", "NFC"}}, "json", steps);
  Normalizer::Scratch scratch;
  RegexScratch regex;
  PieceStart start = start_of_text(text);
  const auto normal = Normalizer(std::move(steps)).apply(text, start, scratch, regex);
  EXPECT_TRUE(normal.starts_with("\u1ea1\u0323\u0323"));
  EXPECT_TRUE(normal.ends_with("\u0315\u0315"));
}

// Which piece is the first of a text, behind normalizers that move it.
TEST(ComponentGoldens, FirstPieces) {
  int num_pairs = 0;
  for (const Json& pair : read_cases("first_pieces")) {
    ++num_pairs;
    const Tokenizer tokenizer = Tokenizer::from_json(pair["json"].dump(), "json");
    for (const Json& one : pair["cases"]) {
      std::string written;
      for (const std::int32_t id : tokenizer.encode(one[0].get<std::string>())) {
        written += *tokenizer.id_to_token(id);
      }
      EXPECT_EQ(Json(written), one[1])
          << pair["json"]["normalizer"] << pair["json"]["pre_tokenizer"] << " on " << one[0];
    }
  }
  EXPECT_GE(num_pairs, 60);
}

TEST(ComponentGoldens, Decoders) {
  int num_components = 0;
  for (const Json& component : read_cases("decoders")) {
    ++num_components;
    DecoderSteps steps;
    read_decoder(component["json"], "json", steps);
    RegexScratch regex;
    for (const Json& one : component["cases"]) {
      StreamStrip strip(steps.whole_text);
      std::string text;
      TokenPlace place = TokenPlace::first;
      for (const Json& token : one[0]) {
        strip.push(decode_token(steps, token.get<std::string>(), place, regex), text);
        place = TokenPlace::later;
      }
      strip.finish(text);
      EXPECT_EQ(Json(replace_ill_formed(text)), one[1]) << component["json"] << " on " << one[0];
    }
  }
  EXPECT_GE(num_components, 12);
}

}  // namespace
}  // namespace dsmoe::text

// Training: determinism, ids, refusals, and that what was trained encodes as it was trained.
#include "text/tokenizer/bpe_train.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/scratch_folder.h"
#include "base/utf8.h"
#include "text/tokenizer/tokenizer.h"

namespace dsmoe::text {
namespace {

std::string corpus() {
  std::string text;
  unsigned state = 1;
  const char* words[] = {"the ", "river", " was", " low", "\n",  " it's",
                         " 42",  "ü",     "中文", " the", "ing", ", "};
  while (text.size() < 3'000'000) {
    state = state * 1664525 + 1013904223;
    text += words[(state >> 20) % 12];
  }
  return text;
}

BpeTrainOptions options(std::int32_t vocab_size) {
  BpeTrainOptions result{.vocab_size = vocab_size};
  result.special.bos = SpecialToken{.content = "<s>", .id = 0};
  result.special.eos = SpecialToken{.content = "</s>", .id = vocab_size - 1};
  result.special.pad = result.special.eos;
  return result;
}

std::string train(const std::string& text, int threads, const BpeTrainOptions& how) {
  ThreadPool pool(threads);
  WordCounts counts(how.special.contents());
  counts.add_text(text, pool);
  return to_tokenizer_json(train_bpe(counts, how));
}

TEST(BpeTrain, TheSameForAnyNumberOfThreads) {
  const std::string text = corpus();
  const std::string one = train(text, 1, options(320));
  EXPECT_EQ(one, train(text, 2, options(320)));
  EXPECT_EQ(one, train(text, 5, options(320)));
  EXPECT_NE(one, train(text + " river river", 1, options(321)));
}

TEST(BpeTrain, AFileReadInPiecesIsTheText) {
  const ScratchFolder scratch;
  const std::string path = (scratch / "corpus.txt").string();
  const std::string text = corpus();
  std::ofstream(path, std::ios::binary) << text;
  ThreadPool pool(2);
  WordCounts from_file({});
  from_file.add_file(path, pool);
  WordCounts from_text({});
  from_text.add_text(text, pool);
  EXPECT_EQ(from_file.sorted(), from_text.sorted());
  EXPECT_EQ(from_file.num_bytes(), text.size());
  std::filesystem::remove(path);
  EXPECT_THROW(from_file.add_file(path, pool), Error);
}

// A few bytes of a compressed file can stand for a word of any length, and merging takes memory for
// all of it.
TEST(BpeTrain, LongWordsAreCountedInPieces) {
  ThreadPool pool(2);
  WordCounts counts({});
  std::string text;
  for (int i = 0; i < 10000; ++i) text += "\xE2\x82\xAC";  // of three bytes
  counts.add_text(text + " " + std::string(4096, 'a'), pool);
  std::string all;
  for (const auto& [word, count] : counts.sorted()) {
    EXPECT_LE(word.size(), 4096u);
    EXPECT_TRUE(is_valid_utf8(word));
    for (int64_t i = 0; i < count; ++i) all += word;
  }
  EXPECT_EQ(all.size(), text.size() + 1 + 4096);
}

TEST(BpeTrain, SpecialTokensKeepTheirIdsAndBytesAndMergesFillTheRest) {
  const Tokenizer tokenizer = Tokenizer::from_json(train(corpus(), 1, options(300)), "trained");
  EXPECT_EQ(tokenizer.vocab_size(), 300);
  EXPECT_EQ(tokenizer.token_to_id("<s>"), 0);
  EXPECT_EQ(tokenizer.token_to_id("</s>"), 299);
  EXPECT_TRUE(tokenizer.is_special(0));
  EXPECT_TRUE(tokenizer.is_special(299));
  for (int b = 0; b < 256; ++b) {
    EXPECT_EQ(tokenizer.id_to_bytes(b + 1), std::string(1, static_cast<char>(b)));
  }
  for (int id = 257; id < 299; ++id) EXPECT_GT(tokenizer.id_to_bytes(id).value().size(), 1U);
  EXPECT_EQ(tokenizer.encode("x").front(), 0);  // BOS
}

TEST(BpeTrain, EveryByteComesBack) {
  const Tokenizer tokenizer = Tokenizer::from_json(train(corpus(), 1, options(300)), "trained");
  std::string all;
  for (int b = 255; b >= 0; --b) all.push_back(static_cast<char>(b));
  all += "the river \xE4\xBD";
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(all), {.skip_special = SkipSpecial::yes}), all);
}

TEST(BpeTrain, TheMostFrequentPairComesFirstAndTiesGoToTheSmallerIds) {
  ThreadPool pool(1);
  WordCounts counts({});
  counts.add_text("zz zz zz ba ba ab ab", pool);
  const TrainedBpe trained = train_bpe(counts, {.vocab_size = 259});
  ASSERT_EQ(trained.merges.size(), 3U);
  EXPECT_EQ(trained.merges[0], std::pair(std::string("z"), std::string("z")));
  // Four pairs occur twice now: (" ", "a"), (" ", "b"), ("a", "b"), ("b", "a").
  EXPECT_EQ(trained.merges[1], std::pair(std::string(" "), std::string("a")));
  EXPECT_EQ(trained.merges[2], std::pair(std::string(" "), std::string("b")));
}

TEST(BpeTrain, SpecialTokensInTheTextAreNotLearned) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "ab<end>ab ";
  BpeTrainOptions how{.vocab_size = 300};
  how.special.eos = SpecialToken{.content = "<end>", .id = 0};
  const Tokenizer tokenizer = Tokenizer::from_json(train(text, 1, how), "trained");
  for (int id = 1; id < tokenizer.vocab_size(); ++id) {
    const std::string bytes = tokenizer.id_to_bytes(id).value_or("");
    EXPECT_TRUE(bytes.find("end") == std::string::npos) << bytes;
  }
}

TEST(BpeTrain, StopsWhenTheTextHasNoMorePairs) {
  const Json file = parse_json(train("ab ab", 1, {.vocab_size = 1000}), "trained");
  EXPECT_LT(file["model"]["vocab"].size(), 270U);
  EXPECT_EQ(file["model"]["vocab"].size(), 256 + file["model"]["merges"].size());
}

TEST(BpeTrain, WrongOptionsAreRefused) {
  const auto refusal = [](const BpeTrainOptions& how) -> std::string {
    try {
      check_train_options(how);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refusal(options(258)), "accepted");
  EXPECT_NE(refusal(options(257)).find("too small"), std::string::npos);
  BpeTrainOptions how = options(300);
  how.special.bos->id = 300;
  EXPECT_NE(refusal(how).find("ids of this vocabulary are 0 to 299"), std::string::npos);
  how = options(300);
  how.special.bos->id = 299;
  EXPECT_NE(refusal(how).find("clashes"), std::string::npos);
  how = options(300);
  how.special.bos->content = "";
  EXPECT_NE(refusal(how).find("needs text"), std::string::npos);
  for (const char* symbol : {"a", "\u0120", "\u00e9"}) {  // as bytes are written
    how.special.bos->content = symbol;
    EXPECT_NE(refusal(how).find("one of the 256 bytes"), std::string::npos) << symbol;
  }
  how.special.bos->content = "\u4e2d";
  EXPECT_EQ(refusal(how), "accepted");
  EXPECT_NE(refusal(options(-5)).find("too small"), std::string::npos);
}

TEST(BpeTrain, TheConfigNamesTheTokens) {
  const TrainedBpe trained{.special = options(300).special};
  const Json config = parse_json(to_tokenizer_config_json(trained, 2048), "config");
  EXPECT_EQ(config["bos_token"], "<s>");
  EXPECT_EQ(config["pad_token"], "</s>");
  EXPECT_EQ(config["add_bos_token"], true);
  EXPECT_EQ(config["model_max_length"], 2048);
}

}  // namespace
}  // namespace dsmoe::text

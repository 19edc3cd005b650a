// The DeepSeek tokenizer of the shared folder: every case exact, and whole files back byte for
// byte.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/json.h"
#include "text/tokenizer/tokenizer.h"

namespace dsmoe::text {
namespace {

std::string shared(const std::string& name) {
  const char* folder = std::getenv("DSMOE_SHARED_DIR");
  return std::string(folder == nullptr ? "../shared" : folder) + "/data/" + name;
}

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

constexpr EncodeOptions kPlain{.add_special = AddSpecial::no};

TEST(DeepseekTokenizer, AllCasesAreExact) {
  const Tokenizer tokenizer = Tokenizer::from_file(shared("deepseek-tokenizer"));
  const Json cases = parse_json(read(shared("deepseek-tokenizer/cases.json")), "cases.json");
  EXPECT_GE(cases.size(), 20U);
  for (const Json& one : cases) {
    const auto text = one["text"].get<std::string>();
    const std::vector<std::int32_t> ids = tokenizer.encode(text, kPlain);
    EXPECT_EQ(Json(ids), one["ids"]) << one["text"];
    EXPECT_EQ(tokenizer.decode(ids), text);
  }
}

TEST(DeepseekTokenizer, AddsBosAndNoEos) {
  const Tokenizer tokenizer = Tokenizer::from_file(shared("deepseek-tokenizer"));
  EXPECT_EQ(tokenizer.vocab_size(), 100015);
  const std::vector<std::int32_t> ids = tokenizer.encode("3");
  EXPECT_EQ(ids, (std::vector<std::int32_t>{100000, 18}));
  EXPECT_EQ(tokenizer.decode(ids, {.skip_special = SkipSpecial::yes}), "3");
}

TEST(DeepseekTokenizer, FilesComeBackByteForByte) {
  const Tokenizer tokenizer = Tokenizer::from_file(shared("deepseek-tokenizer"));
  for (const char* name : {"tinyshakespeare.txt", "wikitext-2-test.txt", "gsm8k-test.jsonl"}) {
    const std::string text = read(shared(name));
    const std::vector<std::int32_t> ids = tokenizer.encode(text, kPlain);
    EXPECT_TRUE(tokenizer.decode(ids) == text) << name;
    EXPECT_LT(ids.size(), text.size() / 2) << name;
  }
}

}  // namespace
}  // namespace dsmoe::text

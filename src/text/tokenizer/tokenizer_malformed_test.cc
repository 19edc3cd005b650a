// Tokenizer files that must be refused, each with words that name the fault.
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "text/tokenizer/tokenizer.h"

namespace dsmoe::text {
namespace {

constexpr std::string_view kGood = R"({
  "version": "1.0", "truncation": null, "padding": null,
  "added_tokens": [{"id": 3, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": true}],
  "normalizer": null,
  "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\\s+"}, "behavior": "Isolated", "invert": false},
  "post_processor": {"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [3], "tokens": ["<s>"]}}},
  "decoder": {"type": "Fuse"},
  "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})";

// The good file with the value at `pointer` (RFC 6901) replaced.
std::string with(const std::string& pointer, const std::string& value) {
  Json file = parse_json(kGood, "good");
  file[Json::json_pointer(pointer)] = parse_json(value, "value");
  return file.dump();
}

std::string without(const std::string& parent, const std::string& key) {
  Json file = parse_json(kGood, "good");
  file[Json::json_pointer(parent)].erase(key);
  return file.dump();
}

std::string refusal(const std::string& json) {
  try {
    Tokenizer::from_json(json, "file.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::input) << error.what();
    return error.what();
  }
  return "accepted";
}

TEST(MalformedTokenizer, TheGoodFileIsAccepted) {
  const Tokenizer tokenizer = Tokenizer::from_json(kGood, "file.json");
  EXPECT_EQ(tokenizer.encode("ab"), (std::vector<std::int32_t>{3, 2}));
}

struct Case {
  std::string json;
  std::string says;  // must occur in the message
};

TEST(MalformedTokenizer, EachFaultIsNamed) {
  const std::string deep = std::string(100, '[') + std::string(100, ']');
  const std::vector<Case> cases = {
      {"", "not valid JSON"},
      {"{", "not valid JSON"},
      {"[]", "expected a JSON object"},
      {"{\"model\": 1, \"model\": 2}", "appears twice"},
      {deep, "nested deeper"},
      {"{\"a\": \"\xFF\"}", "not valid JSON"},
      {without("", "model"), "\"model\" is missing"},
      {with("/version", "\"2.0\""), "version"},
      {with("/padding", "{\"length\": 5}"), "padding"},
      {with("/padding", "{}"), "padding"},
      {with("/model", "[]"), "model: expected a JSON object"},
      {with("/model/type", "\"WordPiece\""), "WordPiece"},
      {with("/model/type", "\"Unigram\""), "Unigram"},
      {with("/model/dropout", "0.1"), "model.dropout"},
      {with("/model/continuing_subword_prefix", "\"##\""), "continuing_subword_prefix"},
      {with("/model/end_of_word_suffix", "\"</w>\""), "end_of_word_suffix"},
      {with("/model/unk_token", "\"<unk>\""), "unk_token \"<unk>\""},
      {with("/model/unk_token", "7"), "unk_token"},
      {with("/model/fuse_unk", "\"yes\""), "fuse_unk: expected true or false"},
      {with("/model/novelty", "1"), "\"novelty\" is not supported"},
      {without("/model", "vocab"), "\"vocab\" is missing"},
      {without("/model", "merges"), "\"merges\" is missing"},
      {with("/model/vocab", "[]"), "model.vocab: expected an object"},
      {with("/model/vocab/a", "-1"), "expected a token id"},
      {with("/model/vocab/a", "1.5"), "expected a token id"},
      {with("/model/vocab/a", "99999999999"), "expected a token id"},
      {with("/model/vocab/a", "\"0\""), "expected a token id"},
      {with("/model/vocab/a", "1"), "have the same id 1"},
      {with("/model/merges", "{}"), "model.merges: expected a list"},
      {with("/model/merges/0", "\"ab\""), "merges[0]"},
      {with("/model/merges/0", "\"a b c\""), "merges[0]"},
      {with("/model/merges/0", "[\"a\"]"), "merges[0]"},
      {with("/model/merges/0", "[\"a\", 1]"), "merges[0]"},
      {with("/model/merges/0", "\"a c\""), "needs the token \"c\""},
      {with("/model/merges/0", "\"b a\""), "needs the token \"ba\""},
      {with("/added_tokens", "{}"), "added_tokens: expected a list"},
      {with("/added_tokens/0", "\"<s>\""), "added_tokens[0]: expected a JSON object"},
      {with("/added_tokens/0/content", "\"\""), "added_tokens[0].content"},
      {with("/added_tokens/0/content", "\"" + std::string(1025, 'a') + "\""),
       "added token 3 has 1025 bytes"},
      {with("/added_tokens/0/content", "\"ab\""), "has id 3 here and 2"},
      {with("/added_tokens/0/id", "1"), "id 1 of \"<s>\" belongs to \"b\""},
      {with("/added_tokens/0/id", "-3"), "expected a token id"},
      {with("/added_tokens/0/special", "1"), "special: expected true or false"},
      {with("/added_tokens/0/colour", "1"), "colour"},
      {with("/added_tokens/1", "{\"id\": 4, \"content\": \"<s>\"}"), "listed twice"},
      {with("/added_tokens/1", "{\"id\": 3, \"content\": \"<t>\"}"), "same id 3"},
      {with("/normalizer", "{\"type\": \"NFKC\"}"), "the normalizer \"NFKC\" is not supported"},
      {with("/normalizer", "{\"type\": \"Precompiled\"}"), "Precompiled"},
      {with("/normalizer", "{}"), "normalizer: the field \"type\" is missing"},
      {with("/normalizer",
            "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Lowercase\"}]}"),
       "normalizers[0]: the normalizer \"Lowercase\""},
      {with("/normalizer",
            "{\"type\": \"Replace\", \"pattern\": {\"String\": \"\"}, \"content\": \"x\"}"),
       "not empty"},
      {with("/normalizer",
            "{\"type\": \"Prepend\", \"prepend\": \"" + std::string(2000, 'x') + "\"}"),
       "more than the limit"},
      {with("/pre_tokenizer/type", "\"BertPreTokenizer\""), "BertPreTokenizer"},
      {with("/pre_tokenizer/behavior", "\"Sideways\""), "behavior: expected Removed"},
      {with("/pre_tokenizer/pattern", "{}"), "\"String\" is missing"},
      {with("/pre_tokenizer/pattern", "{\"Glob\": \"*\"}"), "Glob"},
      {with("/pre_tokenizer/pattern/Regex", "\"(a\""), "not closed"},
      {with("/pre_tokenizer/pattern/Regex", "\"a)\""), "unmatched ')'"},
      {with("/pre_tokenizer/pattern/Regex", "\"[a\""), "unexpected end"},
      {with("/pre_tokenizer/pattern/Regex", "\"*a\""), "nothing to repeat"},
      {with("/pre_tokenizer/pattern/Regex", "\"[a-z&&[^b]]\""), "intersection"},
      {with("/pre_tokenizer/pattern/Regex", R"re("(?i)(?:[a\\p{Lu}]+)")re"),
       "in a class under (?i)"},
      {with("/pre_tokenizer/pattern/Regex", "\"(a)\\\\1\""), "escape \\1"},
      {with("/pre_tokenizer/pattern/Regex", "\"\\\\p{Nonsense}\""), "does not compile"},
      {with("/pre_tokenizer/pattern/Regex", "\"a{2}+\""), "read differently"},
      {with("/pre_tokenizer/pattern/Regex", "\"(?<=a+)b\""), "does not compile"},
      {with("/pre_tokenizer/pattern/Regex", "\"" + std::string(20000, 'a') + "\""),
       "more than the limit"},
      {with("/pre_tokenizer/pattern/Regex", "\"" + std::string(150, '(') + "\""), "nested deeper"},
      {with("/pre_tokenizer",
            "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"ByteLevel\"}, {\"type\": "
            "\"Digits\"}]}"),
       "ByteLevel must come last"},
      {with("/pre_tokenizer", "{\"type\": \"Metaspace\", \"replacement\": \"__\"}"),
       "exactly one character"},
      {with("/pre_tokenizer",
            "{\"type\": \"Metaspace\", \"replacement\": \"_\", \"prepend_scheme\": \"last\"}"),
       "always, first or never"},
      {with("/pre_tokenizer",
            "{\"type\": \"Metaspace\", \"replacement\": \"_\", \"add_prefix_space\": false, "
            "\"prepend_scheme\": "
            "\"first\"}"),
       "add_prefix_space is false"},
      {with("/post_processor/type", "\"BertProcessing\""), "BertProcessing"},
      {with("/post_processor/single", "[]"), "exactly once, got it 0 times"},
      {with("/post_processor/single/1/Sequence/id", "\"B\""), "expected \"A\""},
      {with("/post_processor/single/0/SpecialToken/id", "\"<t>\""), "\"<t>\" is missing"},
      {with("/post_processor/special_tokens/<s>/ids/0", "\"x\""), "expected a token id"},
      {with("/decoder/type", "\"WordPiece\""), "the decoder \"WordPiece\" is not supported"},
      {with("/decoder", "{\"type\": \"Strip\", \"content\": \" \", \"start\": -1, \"stop\": 0}"),
       "start: expected a number"},
      {with("/decoder",
            "{\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Fuse\"}, {\"type\": "
            "\"ByteFallback\"}]}"),
       "behind Fuse"},
  };
  EXPECT_GE(cases.size(), 60U);
  for (const Case& one : cases) {
    const std::string message = refusal(one.json);
    EXPECT_NE(message.find(one.says), std::string::npos)
        << "wanted: " << one.says << "\ngot: " << message;
    EXPECT_EQ(message.rfind("file.json", 0), 0U) << message;
  }
}

TEST(MalformedTokenizer, AMissingFileIsAnIoError) {
  try {
    Tokenizer::from_file("/nonexistent/tokenizer.json");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::io);
  }
}

}  // namespace
}  // namespace dsmoe::text

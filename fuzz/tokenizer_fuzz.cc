// Tokenizer: any tokenizer.json loads or is refused by Error, any bytes encode, and decoding and
// streaming agree.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/utf8.h"
#include "text/pattern/regex.h"
#include "text/tokenizer/bpe_train.h"
#include "text/tokenizer/tokenizer.h"

namespace {

using namespace dsmoe::text;
using dsmoe::is_valid_utf8;
using dsmoe::replace_ill_formed;

constexpr std::string_view kLlama = R"({"added_tokens": [
  {"id": 300, "content": "<s>", "special": true, "normalized": false},
  {"id": 301, "content": "mask", "single_word": true, "lstrip": true, "rstrip": true, "normalized": true}],
  "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "_"},
    {"type": "Replace", "pattern": {"String": " "}, "content": "_"}]},
  "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "_"}, "content": " "},
    {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 1}]},
  "model": {"type": "BPE", "byte_fallback": true, "unk_token": "?", "fuse_unk": true,
    "vocab": {"?": 0, "_": 1, "a": 2, "b": 3, "_a": 4, "ab": 5, "_ab": 6, "aa": 7, "<0x00>": 8, "<0xFF>": 9},
    "merges": ["_ a", "a b", "_a b", "a a"]}})";

constexpr std::string_view kMetaspace = R"({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
    {"type": "Split", "pattern": {"Regex": "\\s+(?!\\S)|\\p{L}+$"}, "behavior": "MergedWithNext", "invert": true},
    {"type": "Digits"}, {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first"}]},
  "decoder": {"type": "Metaspace", "replacement": "_"},
  "model": {"type": "BPE", "vocab": {"_": 1, "a": 2, "_a": 4, "1": 5, "11": 6}, "merges": ["_ a", "1 1"]}})";

Tokenizer trained() {
  BpeTrainOptions options{.vocab_size = 300};
  options.special.bos = SpecialToken{.content = "<s>", .id = 0};
  dsmoe::ThreadPool pool(1);
  WordCounts counts(options.special.contents());
  counts.add_text("the river was low, the river was low; it's 1234 \u4E2D\u6587 \u4E2D\u6587",
                  pool);
  return Tokenizer::from_json(to_tokenizer_json(train_bpe(counts, options)), "trained");
}

void check(bool condition) {
  if (!condition) std::abort();
}

void check_text(const Tokenizer& tokenizer, std::string_view text) {
  const std::vector<std::int32_t> ids = tokenizer.encode(text);
  check(ids == tokenizer.encode(text));  // now from the cache
  tokenizer.encode(text, {.add_special = AddSpecial::no, .parse_special = ParseSpecial::no});
  StreamDecoder stream(tokenizer, {.ill_formed = IllFormed::replace});
  std::string joined;
  for (const std::int32_t id : ids) joined += stream.push(id);
  joined += stream.finish();
  check(is_valid_utf8(joined));
  check(joined == tokenizer.decode(ids, {.ill_formed = IllFormed::replace}));
}

void check_round_trip(const Tokenizer& tokenizer, std::string_view text) {
  check_text(tokenizer, text);
  check(tokenizer.decode(tokenizer.encode(text, {.add_special = AddSpecial::no})) == text);
}

// Up to the first zero byte a pattern, behind it the text.
void check_pattern(std::string_view input) {
  const std::size_t zero = std::min(input.find('\0'), input.size());
  const std::string text = replace_ill_formed(input.substr(std::min(zero + 1, input.size())));
  const Regex regex(input.substr(0, zero), "fuzz");
  RegexScratch scratch;
  Span match;
  for (std::size_t at = 0; at < text.size() && regex.find(text, at, scratch, match);) {
    check(match.begin >= at && match.end >= match.begin && match.end <= text.size());
    at = match.end + (match.empty() ? 1 : 0);
    while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) ++at;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  static const Tokenizer byte_level = trained();
  static const Tokenizer llama = Tokenizer::from_json(kLlama, "llama");
  static const Tokenizer metaspace = Tokenizer::from_json(kMetaspace, "metaspace");
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    switch (data[0]) {
      case '0':
        check_round_trip(byte_level, input);
        break;
      case '1':
        check_text(llama, input);
        break;
      case '2':
        check_text(metaspace, input);
        break;
      case '3':
        check_pattern(input);
        break;
      default: {
        const std::string_view file(reinterpret_cast<const char*>(data), size);
        const Tokenizer tokenizer = Tokenizer::from_json(file, "fuzz");
        check_text(tokenizer, "ab <s> aab  \xE4\xBD 12 \n it's \u4E2D\u6587\xFF");
        check_text(tokenizer, input.substr(0, 64));
      }
    }
  } catch (const dsmoe::Error&) {
  }
  return 0;
}

// Text to token ids and back, as a tokenizer.json says.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/tokenizer_config.h"

namespace dsmoe::text {

struct TokenizerParts;

enum class AddSpecial { yes, no };
enum class SkipSpecial { yes, no };
enum class IllFormed { keep, replace };

struct EncodeOptions {
  // The tokenizer's frame() around the text: BOS for DeepSeek.
  AddSpecial add_special = AddSpecial::yes;
  // Whether "<s>" inside the text is the token or five characters. Text from strangers: no.
  ParseSpecial parse_special = ParseSpecial::yes;
};

struct DecodeOptions {
  SkipSpecial skip_special = SkipSpecial::no;
  // Tokens can be parts of characters. keep: the exact bytes. replace: always valid UTF-8, with
  // U+FFFD.
  IllFormed ill_formed = IllFormed::keep;
};

// Immutable and safe to share between threads. docs/tokenizer.md says what is supported; everything
// else is refused by name with Error(input).
class Tokenizer {
 public:
  // `path` is a tokenizer.json, a folder that holds one, or a GGUF file. The tokenizer_config.json
  // beside it has a say in the frame.
  static Tokenizer from_file(const std::string& path);
  // The file alone.
  static Tokenizer from_json(std::string_view json, std::string_view what);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Any bytes. Ids equal those of PyPI `tokenizers` wherever the text is valid UTF-8; broken bytes
  // become byte tokens where the vocabulary has them and U+FFFD where it has not.
  std::vector<std::int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;

  // Ids without a token decode to nothing: models may have more rows than the tokenizer has tokens.
  std::string decode(std::span<const std::int32_t> ids, const DecodeOptions& options = {}) const;

  // What stands around every text that begins a prompt or a document.
  const TextFrame& frame() const;

  // One above the highest id.
  std::int32_t vocab_size() const;
  // By the written form ("Ġthe" in a byte-level file).
  std::optional<std::int32_t> token_to_id(std::string_view token) const;
  std::optional<std::string> id_to_token(std::int32_t id) const;
  // The bytes a token adds to a text that has begun; nothing for unused ids.
  std::optional<std::string> id_to_bytes(std::int32_t id) const;
  bool is_special(std::int32_t id) const;

 private:
  friend class StreamDecoder;
  struct State;
  explicit Tokenizer(std::unique_ptr<State> state);
  std::unique_ptr<const State> state_;
};

// "begins with "<s>" (0)": the frame in words.
std::string describe_frame(const Tokenizer& tokenizer);

// decode() one id at a time. The pieces, joined, are exactly decode() of all ids, and no piece ends
// inside a UTF-8 character that later ids may complete. The tokenizer must outlive it.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, const DecodeOptions& options = {});
  ~StreamDecoder();
  StreamDecoder(StreamDecoder&&) noexcept;
  StreamDecoder& operator=(StreamDecoder&&) noexcept;

  std::string push(std::int32_t id);
  // The rest, complete or not; the decoder is ready for another text then.
  std::string finish();

 private:
  struct Progress;
  std::unique_ptr<Progress> progress_;
};

}  // namespace dsmoe::text

// Decoders of tokenizer.json: from a token's written form to the bytes it stands for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/tokenizer/normalizer.h"

namespace dsmoe::text {

struct ByteLevelDecoder {};     // byte_alphabet.h
struct ByteFallbackDecoder {};  // <0x41>
struct MetaspaceDecoder {
  std::string replacement;
  bool strips_first = true;  // prepend_scheme is not "never"
};
// Removes up to `start` characters `content` on the left and up to `stop` on the right.
struct StripDecoder {
  std::string content;  // one character
  std::size_t start = 0;
  std::size_t stop = 0;
};
using TokenDecoder = std::variant<ByteLevelDecoder, ByteFallbackDecoder, MetaspaceDecoder,
                                  StripDecoder, ReplaceStep>;

struct DecoderSteps {
  std::vector<TokenDecoder> per_token;
  std::optional<StripDecoder> whole_text;  // a Strip behind Fuse or ByteLevel
  bool joins_with_space = false;           // no decoder in the file
};

enum class TokenPlace { first, later };

// Token by token: no step looks at a neighbour, which is what makes streaming exact.
std::string decode_token(const DecoderSteps& steps, std::string_view token, TokenPlace place,
                         RegexScratch& scratch);

// The same for an added token, whose written form is text and never symbols of bytes.
std::string decode_literal_token(const DecoderSteps& steps, std::string_view token,
                                 TokenPlace place, RegexScratch& scratch);

// Whether decode_token() gives different bytes at the start of a text.
bool depends_on_place(const DecoderSteps& steps);

// DecoderSteps::whole_text over a stream of bytes.
class StreamStrip {
 public:
  explicit StreamStrip(const std::optional<StripDecoder>& strip);
  // Appends to `out` what is certain to stay.
  void push(std::string_view bytes, std::string& out);
  // The end: what was held back beyond the right strip.
  void finish(std::string& out);

 private:
  StripDecoder strip_;
  std::size_t left_to_strip_;
  bool at_start_ = true;
  std::string pending_;       // may turn out to be part of a stripped character
  std::size_t num_held_ = 0;  // stripped characters that may be at the end
};

}  // namespace dsmoe::text

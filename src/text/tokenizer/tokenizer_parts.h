// What a tokenizer.json says, as data: read by tokenizer_json.cc, put to work by tokenizer.cc.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/decoder.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/pre_tokenizer.h"
#include "text/tokenizer/tokenizer_config.h"

namespace dsmoe::text {

struct TokenizerParts {
  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer;
  BpeConfig model;  // byte_level is set by the pre-tokenizer
  std::vector<AddedToken> added_tokens;
  TextFrame frame;  // of the post-processor
  DecoderSteps decoder;
};

// Ids in tokenizer files are below this.
inline constexpr std::int32_t kMaxTokenId = (1 << 21) - 1;

// GPT-2's pre-tokenizer pattern, which ByteLevel uses and train_bpe() trains with.
inline constexpr std::string_view kGpt2Pattern =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

// Throws Error(input), starting with `what`, for everything that is wrong or not supported.
TokenizerParts parse_tokenizer_json(std::string_view json, std::string_view what);

}  // namespace dsmoe::text

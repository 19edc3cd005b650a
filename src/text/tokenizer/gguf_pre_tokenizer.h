// The pre-tokenizers that GGUF files call by name, as tokenizer.json describes them.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"

namespace dsmoe::text {

struct NamedPreTokenizer {
  std::string name;  // of tokenizer.ggml.pre
  Json normalizer;   // null: none
  Json pre_tokenizer;
};

// nullptr: a name that is not known.
const NamedPreTokenizer* find_pre_tokenizer(std::string_view name);
// The one that cuts texts as these components of a tokenizer.json do; nullptr: none.
const NamedPreTokenizer* match_pre_tokenizer(const Json& normalizer, const Json& pre_tokenizer);
std::string names_of_pre_tokenizers();

}  // namespace dsmoe::text

// The tokenizer in a GGUF file's metadata, as the files of a model folder, and back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "store/gguf/gguf_file.h"
#include "store/gguf/gguf_writer.h"

namespace dsmoe::text {

bool has_gguf_tokenizer(const store::gguf::File& file);

// tokenizer.json, tokenizer_config.json or chat_template.jinja; nullopt where the metadata has
// nothing to say in it, and for every other name. Throws Error(input) that names the key for what
// is wrong, and for kinds of tokenizers that are not read.
std::optional<std::string> gguf_text_file(const store::gguf::File& file, std::string_view name);

struct VocabularyRequest {
  std::string_view tokenizer_json;
  std::string_view what;  // its name in messages
  // What stands around a text, as Tokenizer::frame() has it.
  const struct TextFrame& frame;
  int64_t vocab_size = 0;  // rows of the embedding; ids without a token become unused ones
  std::optional<int64_t> bos_token_id;
  std::optional<int64_t> eos_token_id;
};

// Throws Error(input), starting with `what`, for what the metadata cannot say: it names
// pre-tokenizers and does not describe them.
void add_vocabulary(const VocabularyRequest& request, store::gguf::Metadata& metadata);

}  // namespace dsmoe::text

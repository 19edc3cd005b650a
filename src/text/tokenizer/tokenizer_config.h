// tokenizer_config.json of a folder: special tokens as text, and what it says about BOS and EOS.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "base/json.h"

namespace dsmoe::text {

inline constexpr const char* kTokenizerConfigFile = "tokenizer_config.json";

// Of a model folder or a GGUF file; nullopt when there is none.
std::optional<Json> read_tokenizer_config(const std::filesystem::path& model);

// The special tokens of tokenizer_config.json as text; absent or null ones are nullopt, as is every
// one without the file.
struct SpecialTokenTexts {
  std::optional<std::string> bos = {};
  std::optional<std::string> eos = {};
  std::optional<std::string> pad = {};
  std::optional<std::string> unk = {};
};
SpecialTokenTexts load_special_tokens(const std::filesystem::path& model);

// What stands around a text: BOS before it, as a rule.
struct TextFrame {
  std::vector<std::int32_t> before;
  std::vector<std::int32_t> after;
  std::string said_by = "tokenizer.json";
};

// tokenizer.json's own frame, unless `config` (the JSON of the file `what`) names a class that
// makes its frame of add_bos_token and add_eos_token, as transformers 4 does. docs/tokenizer.md has
// the rule. `id_of` gives the id of a token's text. Throws Error(input) for a token that is asked
// for and does not exist.
TextFrame choose_frame(TextFrame of_tokenizer_json, const Json& config, const std::string& what,
                       FunctionRef<std::optional<std::int32_t>(std::string_view)> id_of);

// The text of a tokenizer_config.json, the file `what`, with `chat_template` in it unless it has
// one: transformers before 4.47 knows no chat_template.jinja and silently takes another template.
std::string with_chat_template(const std::string& config_json, const std::string& what,
                               std::string_view chat_template);

}  // namespace dsmoe::text

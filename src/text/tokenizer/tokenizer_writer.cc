// tokenizer.json and tokenizer_config.json of a trained tokenizer, byte for byte the same for the
// same tokens.
#include <fmt/core.h>

#include <map>
#include <string>

#include "base/json.h"
#include "text/tokenizer/bpe_train.h"
#include "text/tokenizer/byte_alphabet.h"

namespace dsmoe::text {
namespace {

std::string quoted(const std::string& text) { return Json(text).dump(); }

std::string added_tokens(const SpecialTokens& special) {
  std::string out;
  for (const SpecialToken& token : special.distinct()) {
    out += fmt::format(
        "{}\n    {{\"id\": {}, \"content\": {}, \"single_word\": false, \"lstrip\": false, "
        "\"rstrip\": "
        "false, \"normalized\": false, \"special\": true}}",
        out.empty() ? "" : ",", token.id, quoted(token.content));
  }
  return out + (out.empty() ? "" : "\n  ");
}

std::string post_processor(const std::optional<SpecialToken>& bos) {
  if (!bos) return "null";
  const std::string name = quoted(bos->content);
  const std::string piece =
      fmt::format("{{\"SpecialToken\": {{\"id\": {}, \"type_id\": 0}}}}", name);
  return fmt::format(
      "{{\n    \"type\": \"TemplateProcessing\",\n"
      "    \"single\": [{0}, {{\"Sequence\": {{\"id\": \"A\", \"type_id\": 0}}}}],\n"
      "    \"pair\": [{0}, {{\"Sequence\": {{\"id\": \"A\", \"type_id\": 0}}}}, {{\"Sequence\": "
      "{{\"id\": "
      "\"B\", \"type_id\": 0}}}}],\n"
      "    \"special_tokens\": {{{1}: {{\"id\": {1}, \"ids\": [{2}], \"tokens\": [{1}]}}}}\n  }}",
      piece, name, bos->id);
}

constexpr std::string_view kByteLevel =
    "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": "
    "true}";

}  // namespace

std::string to_tokenizer_json(const TrainedBpe& trained) {
  // Special tokens are in the vocabulary too: other readers number the ones that are not by
  // themselves.
  std::map<std::int32_t, std::string> by_id;
  for (const auto& [id, bytes] : trained.vocab) by_id.emplace(id, to_byte_symbols(bytes));
  for (const SpecialToken& token : trained.special.distinct())
    by_id.emplace(token.id, token.content);

  std::string out = "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n";
  out += fmt::format("  \"added_tokens\": [{}],\n  \"normalizer\": null,\n",
                     added_tokens(trained.special));
  out += fmt::format("  \"pre_tokenizer\": {},\n  \"post_processor\": {},\n  \"decoder\": {},\n",
                     kByteLevel, post_processor(trained.special.bos), kByteLevel);
  out +=
      "  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": null,\n"
      "    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n    "
      "\"fuse_unk\": false,\n"
      "    \"byte_fallback\": false,\n    \"ignore_merges\": false,\n    \"vocab\": {";
  const char* separator = "\n";
  for (const auto& [id, token] : by_id) {
    out += fmt::format("{}      {}: {}", separator, quoted(token), id);
    separator = ",\n";
  }
  out += "\n    },\n    \"merges\": [";
  separator = "\n";
  for (const auto& [left, right] : trained.merges) {
    out += fmt::format("{}      {}", separator,
                       quoted(to_byte_symbols(left) + " " + to_byte_symbols(right)));
    separator = ",\n";
  }
  return out + (trained.merges.empty() ? "]\n  }\n}\n" : "\n    ]\n  }\n}\n");
}

std::string to_tokenizer_config_json(const TrainedBpe& trained, std::int32_t model_max_length) {
  const auto name = [](const std::optional<SpecialToken>& token) {
    return token ? Json(token->content) : Json(nullptr);
  };
  Json config;
  config["add_bos_token"] = trained.special.bos.has_value();
  config["add_eos_token"] = false;
  config["bos_token"] = name(trained.special.bos);
  config["eos_token"] = name(trained.special.eos);
  config["pad_token"] = name(trained.special.pad);
  config["unk_token"] = nullptr;
  config["clean_up_tokenization_spaces"] = false;
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  if (model_max_length > 0) config["model_max_length"] = model_max_length;
  return config.dump(2) + "\n";
}

}  // namespace dsmoe::text

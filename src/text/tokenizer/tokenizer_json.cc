// Reads tokenizer.json component by component; what is not known here is refused by name.
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/utf8.h"
#include "text/tokenizer/json_fields.h"
#include "text/tokenizer/tokenizer_components.h"
#include "text/tokenizer/tokenizer_parts.h"

namespace dsmoe::text {
namespace {

// Which token has which id; null views where none has.
using TokenOfId = std::vector<std::string_view>;

// GPT-style files write a merge as "left right"; the space itself never occurs inside a token of
// those.
std::pair<std::string, std::string> read_merge(const Json& merge, const JsonFields& model,
                                               std::size_t merge_idx) {
  if (merge.is_string()) {
    const auto& text = merge.get_ref<const std::string&>();
    const std::size_t space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
      return {text.substr(0, space), text.substr(space + 1)};
    }
  } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
             merge[1].is_string()) {
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  }
  fail(ErrorKind::input, "{}.merges[{}]: expected \"left right\" or [\"left\", \"right\"]",
       model.path(), merge_idx);
}

void read_merges(const JsonFields& model, BpeConfig& config) {
  const Json& merges = model.require("merges");
  if (!merges.is_array()) model.refuse("merges", "a list");
  config.merges.reserve(merges.size());
  for (std::size_t i = 0; i < merges.size(); ++i) {
    // A header line that some converters leave in.
    const bool is_header =
        merges[i].is_string() && merges[i].get_ref<const std::string&>().rfind("#version", 0) == 0;
    if (!is_header) config.merges.push_back(read_merge(merges[i], model, i));
  }
}

// The views point into the JSON.
TokenOfId read_vocab(const JsonFields& model, BpeConfig& config) {
  const Json& vocab = model.require("vocab");
  if (!vocab.is_object()) model.refuse("vocab", "an object of tokens and ids");
  TokenOfId token_of_id;
  config.vocab.reserve(vocab.size());
  for (const auto& [token, id_json] : vocab.get_ref<const Json::object_t&>()) {
    if (!is_token_id(id_json)) {
      refuse_token_id(id_json, fmt::format("{}.vocab[{}]", model.path(), in_quotes(token)));
    }
    const auto id = id_json.get<std::int32_t>();
    const auto slot = static_cast<std::size_t>(id);
    if (slot >= token_of_id.size()) token_of_id.resize(slot + 1);
    if (token_of_id[slot].data() != nullptr) {
      fail(ErrorKind::input, "{}.vocab: the tokens {} and {} have the same id {}", model.path(),
           in_quotes(token_of_id[slot]), in_quotes(token), id);
    }
    token_of_id[slot] = token;
    config.vocab.emplace(token, id);
  }
  return token_of_id;
}

BpeConfig read_model(const Json& json, const std::string& path, TokenOfId& token_of_id) {
  const JsonFields model(json, path);
  // Files older than the "type" field of models have merges and a vocabulary all the same.
  const std::string type = model.find("type") != nullptr ? model.string("type") : "BPE";
  if (type != "BPE") {
    fail(ErrorKind::input, "{}: the model type {} is not supported; only BPE is", path,
         in_quotes(type));
  }
  model.allow_only({"type", "dropout", "unk_token", "continuing_subword_prefix",
                    "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges", "vocab",
                    "merges"});
  if (const Json* dropout = model.find("dropout"); dropout != nullptr && *dropout != 0) {
    model.refuse("dropout", "null (random merges are not supported)");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (model.find(key) != nullptr && !model.string(key).empty()) {
      model.refuse(key, "null or \"\" (not supported)");
    }
  }
  BpeConfig config;
  if (model.find("unk_token") != nullptr) config.unk_token = model.string("unk_token");
  config.fuse_unk = model.boolean("fuse_unk", false);
  config.byte_fallback = model.boolean("byte_fallback", false);
  config.ignore_merges = model.boolean("ignore_merges", false);
  token_of_id = read_vocab(model, config);
  read_merges(model, config);
  return config;
}

std::vector<AddedToken> read_added_tokens(const JsonFields& file, const BpeConfig& model,
                                          const TokenOfId& token_of_id) {
  std::vector<AddedToken> tokens;
  if (file.find("added_tokens") == nullptr) return tokens;
  std::map<std::string, std::int32_t> id_of;
  std::map<std::int32_t, std::string> content_of;
  file.for_each("added_tokens", [&](const Json& json, const std::string& path) {
    const JsonFields fields(json, path);
    fields.allow_only(
        {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token{.id = fields.id("id"),
                     .content = fields.string("content"),
                     .single_word = fields.boolean("single_word", false),
                     .lstrip = fields.boolean("lstrip", false),
                     .rstrip = fields.boolean("rstrip", false),
                     .normalized = fields.boolean("normalized", true),
                     .special = fields.boolean("special", false)};
    if (token.content.empty()) fields.refuse("content", "text");
    const auto in_model = model.vocab.find(token.content);
    if (in_model != model.vocab.end() && in_model->second != token.id) {
      fail(ErrorKind::input, "{}: {} has id {} here and {} in model.vocab", path,
           in_quotes(token.content), token.id, in_model->second);
    }
    const auto slot = static_cast<std::size_t>(token.id);
    const bool is_taken = slot < token_of_id.size() && token_of_id[slot].data() != nullptr;
    if (is_taken && token_of_id[slot] != token.content) {
      fail(ErrorKind::input, "{}: id {} of {} belongs to {} in model.vocab", path, token.id,
           in_quotes(token.content), in_quotes(token_of_id[slot]));
    }
    if (!id_of.try_emplace(token.content, token.id).second) {
      fail(ErrorKind::input, "{}: {} is listed twice", path, in_quotes(token.content));
    }
    if (const auto [other, fresh] = content_of.try_emplace(token.id, token.content); !fresh) {
      fail(ErrorKind::input, "{}: {} and {} have the same id {}", path, in_quotes(other->second),
           in_quotes(token.content), token.id);
    }
    tokens.push_back(std::move(token));
  });
  return tokens;
}

// A byte-level model whose vocabulary lacks bytes would fall back to the bytes of their stand-ins.
void check_byte_fallback(const TokenizerParts& parts, const std::string& what) {
  if (!parts.model.byte_level || !parts.model.byte_fallback) return;
  fail(ErrorKind::input,
       "{}: model.byte_fallback together with a ByteLevel pre-tokenizer is not supported", what);
}

}  // namespace

TokenizerParts parse_tokenizer_json(std::string_view json_text, std::string_view what) {
  const Json json = parse_json(json_text, what);
  const JsonFields file(json, std::string(what));
  if (file.find("padding") != nullptr) {
    file.refuse("padding", "null (not supported: encoding does not pad)");
  }
  if (file.find("truncation") != nullptr) {
    log_info("{}: truncation is passed over: no text is cut here", what);
  }
  if (file.find("version") != nullptr && file.string("version") != "1.0") {
    file.refuse("version", "\"1.0\"");
  }
  TokenizerParts parts;
  TokenOfId token_of_id;
  parts.model = read_model(file.require("model"), fmt::format("{}: model", what), token_of_id);
  parts.added_tokens = read_added_tokens(file, parts.model, token_of_id);
  const auto path = [&](const char* key) { return fmt::format("{}: {}", what, key); };
  if (const Json* normalizer = file.find("normalizer")) {
    read_normalizer(*normalizer, path("normalizer"), parts.normalizer);
  }
  if (const Json* pre_tokenizer = file.find("pre_tokenizer")) {
    read_pre_tokenizer(*pre_tokenizer, path("pre_tokenizer"), parts);
  }
  check_byte_fallback(parts, std::string(what));
  if (const Json* post_processor = file.find("post_processor")) {
    read_post_processor(*post_processor, path("post_processor"), parts);
  }
  if (const Json* decoder = file.find("decoder")) {
    read_decoder(*decoder, path("decoder"), parts.decoder);
  } else {
    parts.decoder.joins_with_space = true;
  }
  return parts;
}

}  // namespace dsmoe::text

// Keys of tokenizer.ggml to fields of tokenizer.json and back.
#include "text/tokenizer/gguf_vocabulary.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/utf8.h"
#include "text/tokenizer/gguf_pre_tokenizer.h"
#include "text/tokenizer/tokenizer_config.h"
#include "text/tokenizer/tokenizer_parts.h"

namespace dsmoe::text {
namespace {

using store::gguf::File;
using store::gguf::Metadata;

constexpr const char* kModel = "tokenizer.ggml.model";
constexpr const char* kPre = "tokenizer.ggml.pre";
constexpr const char* kTokens = "tokenizer.ggml.tokens";
constexpr const char* kTypes = "tokenizer.ggml.token_type";
constexpr const char* kMerges = "tokenizer.ggml.merges";
constexpr const char* kAddBos = "tokenizer.ggml.add_bos_token";
constexpr const char* kAddEos = "tokenizer.ggml.add_eos_token";
constexpr const char* kTemplate = "tokenizer.chat_template";
constexpr const char* kByteLevelModel = "gpt2";

// As the format numbers them.
enum class TokenType : int32_t { normal = 1, unknown, control, user_defined, unused, byte };

std::string quoted(std::string_view text) { return Json(text).dump(); }

// Tokens by id, checked.
class GgufVocabulary {
 public:
  explicit GgufVocabulary(const File& file) : file_(file) {
    if (const auto model = file.text(kModel); model != kByteLevelModel) {
      file.refuse(kModel, "\"gpt2\": byte pairs are the only kind that is read",
                  in_quotes(model.value_or("")));
    }
    auto tokens = file.texts(kTokens);
    if (!tokens) file.refuse_absent(kTokens);
    tokens_ = std::move(*tokens);
    if (tokens_.size() > static_cast<std::size_t>(kMaxTokenId)) {
      file.refuse(kTokens, fmt::format("at most {} tokens", kMaxTokenId),
                  std::to_string(tokens_.size()));
    }
    types_ = file.integers(kTypes).value_or(
        std::vector<int64_t>(tokens_.size(), static_cast<int64_t>(TokenType::normal)));
    if (types_.size() != tokens_.size()) {
      file.refuse(kTypes, fmt::format("a type for each of the {} tokens", tokens_.size()),
                  std::to_string(types_.size()));
    }
    for (std::size_t id = 0; id < types_.size(); ++id) {
      const auto least = static_cast<int64_t>(TokenType::normal);
      const auto most = static_cast<int64_t>(TokenType::unused);
      if (types_[id] < least || types_[id] > most) {
        file.refuse(fmt::format("{}[{}]", kTypes, id), "1 to 5", std::to_string(types_[id]));
      }
    }
  }

  std::size_t size() const { return tokens_.size(); }
  std::string_view token(std::size_t id) const { return tokens_[id]; }
  bool is(std::size_t id, TokenType type) const { return types_[id] == static_cast<int64_t>(type); }
  bool is_used(std::size_t id) const { return !is(id, TokenType::unused); }
  bool is_added(std::size_t id) const { return is_used(id) && !is(id, TokenType::normal); }

  std::optional<std::size_t> id_at(const char* key) const {
    const auto id = file_.integer(key);
    if (!id) return std::nullopt;
    if (*id < 0 || *id >= std::ssize(tokens_) || !is_used(static_cast<std::size_t>(*id))) {
      file_.refuse(key, "the id of a token", std::to_string(*id));
    }
    return static_cast<std::size_t>(*id);
  }

 private:
  const File& file_;
  std::vector<std::string_view> tokens_;
  std::vector<int64_t> types_;
};

constexpr const char* kBosId = "tokenizer.ggml.bos_token_id";
constexpr const char* kEosId = "tokenizer.ggml.eos_token_id";
constexpr const char* kPadId = "tokenizer.ggml.padding_token_id";

std::string special_piece(std::string_view token) {
  return fmt::format(R"({{"SpecialToken": {{"id": {}, "type_id": 0}}}})", quoted(token));
}

std::string post_processor(const File& file, const GgufVocabulary& tokens) {
  std::vector<std::string> single = {R"({"Sequence": {"id": "A", "type_id": 0}})"};
  std::map<std::size_t, std::string_view> special;
  const auto around = [&](const char* flag, const char* key, auto place) {
    if (!file.boolean(flag).value_or(false)) return;
    const auto id = tokens.id_at(key);
    if (!id) file.refuse_absent(key);
    single.insert(place(), special_piece(tokens.token(*id)));
    special.emplace(*id, tokens.token(*id));
  };
  around(kAddBos, kBosId, [&] { return single.begin(); });
  around(kAddEos, kEosId, [&] { return single.end(); });
  if (special.empty()) return "null";
  std::string pieces, definitions;
  for (const std::string& piece : single) pieces += (pieces.empty() ? "" : ", ") + piece;
  for (const auto& [id, token] : special) {
    definitions += fmt::format(R"({0}{1}: {{"id": {1}, "ids": [{2}], "tokens": [{1}]}})",
                               definitions.empty() ? "" : ", ", quoted(token), id);
  }
  return fmt::format(R"({{"type": "TemplateProcessing", "single": [{0}], "pair": [{0}, )"
                     R"({{"Sequence": {{"id": "B", "type_id": 1}}}}], "special_tokens": {{{1}}}}})",
                     pieces, definitions);
}

std::string added_tokens(const GgufVocabulary& tokens) {
  std::string list;
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    if (!tokens.is_added(id)) continue;
    list += fmt::format(
        R"({}
    {{"id": {}, "content": {}, "single_word": false, "lstrip": false, "rstrip": false, )"
        R"("normalized": false, "special": {}}})",
        list.empty() ? "" : ",", id, quoted(tokens.token(id)),
        !tokens.is(id, TokenType::user_defined));
  }
  return list;
}

// Added tokens too: other readers number those that are not in it by themselves.
std::string vocab(const File& file, const GgufVocabulary& tokens) {
  std::set<std::string_view> seen;
  std::string list;
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    if (!tokens.is_used(id)) continue;
    if (!seen.insert(tokens.token(id)).second) {
      file.refuse(fmt::format("{}[{}]", kTokens, id), "a token of its own",
                  in_quotes(tokens.token(id)) + " once more");
    }
    list += fmt::format("{}\n      {}: {}", list.empty() ? "" : ",", quoted(tokens.token(id)), id);
  }
  return list;
}

std::string merges(const File& file) {
  const auto pairs = file.texts(kMerges);
  if (!pairs) file.refuse_absent(kMerges);
  std::string list;
  for (const std::string_view pair : *pairs) {
    list += fmt::format("{}\n      {}", list.empty() ? "" : ",", quoted(pair));
  }
  return list;
}

std::string tokenizer_json(const File& file) {
  const GgufVocabulary tokens(file);
  const std::string pre = file.text(kPre).value_or("");
  const NamedPreTokenizer* named = find_pre_tokenizer(pre);
  if (named == nullptr) file.refuse(kPre, "one of " + names_of_pre_tokenizers(), in_quotes(pre));
  return fmt::format(
      R"({{
  "version": "1.0",
  "truncation": null,
  "padding": null,
  "added_tokens": [{}],
  "normalizer": {},
  "pre_tokenizer": {},
  "post_processor": {},
  "decoder": {{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}},
  "model": {{
    "type": "BPE",
    "dropout": null,
    "unk_token": null,
    "continuing_subword_prefix": null,
    "end_of_word_suffix": null,
    "fuse_unk": false,
    "byte_fallback": false,
    "ignore_merges": false,
    "vocab": {{{}
    }},
    "merges": [{}
    ]
  }}
}}
)",
      added_tokens(tokens), named->normalizer.dump(), named->pre_tokenizer.dump(),
      post_processor(file, tokens), vocab(file, tokens), merges(file));
}

std::string tokenizer_config_json(const File& file) {
  const GgufVocabulary tokens(file);
  const auto name = [&](const char* key) {
    const auto id = tokens.id_at(key);
    return id ? Json(tokens.token(*id)) : Json(nullptr);
  };
  Json config;
  config["add_bos_token"] = file.boolean(kAddBos).value_or(false);
  config["add_eos_token"] = file.boolean(kAddEos).value_or(false);
  config["bos_token"] = name(kBosId);
  config["eos_token"] = name(kEosId);
  config["pad_token"] = name(kPadId);
  config["unk_token"] = nullptr;
  config["clean_up_tokenization_spaces"] = false;
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  const std::string text = config.dump(2) + "\n";
  const auto chat_template = file.text(kTemplate);
  return chat_template ? with_chat_template(text, kTokenizerConfigFile, *chat_template) : text;
}

// One token, or none; the format has a flag for it and an id.
bool stands_around(const VocabularyRequest& request, const std::vector<std::int32_t>& ids,
                   const std::optional<int64_t>& id, const char* where) {
  if (ids.empty()) return false;
  if (ids.size() == 1 && id == ids.front()) return true;
  fail(ErrorKind::input,
       "{}: GGUF puts at most the model's {} a text, and this tokenizer puts {} tokens there",
       request.what, where, ids.size());
}

}  // namespace

bool has_gguf_tokenizer(const File& file) {
  const auto model = file.text(kModel);
  return model && *model != "none" && *model != "no_vocab";
}

std::optional<std::string> gguf_text_file(const File& file, std::string_view name) {
  if (name == "chat_template.jinja") return file.text(kTemplate);
  if (!has_gguf_tokenizer(file)) return std::nullopt;
  if (name == "tokenizer.json") return tokenizer_json(file);
  if (name == kTokenizerConfigFile) return tokenizer_config_json(file);
  return std::nullopt;
}

void add_vocabulary(const VocabularyRequest& request, Metadata& metadata) {
  const TokenizerParts parts = parse_tokenizer_json(request.tokenizer_json, request.what);
  const Json json = parse_json(request.tokenizer_json, request.what);
  const auto refuse = [&](const std::string& what) {
    fail(ErrorKind::input, "{}: GGUF cannot say {}", request.what, what);
  };
  const Json none;
  const auto component = [&](const char* key) -> const Json& {
    return json.contains(key) ? json[key] : none;
  };
  const NamedPreTokenizer* named =
      match_pre_tokenizer(component("normalizer"), component("pre_tokenizer"));
  if (named == nullptr) {
    refuse("its normalizer and pre-tokenizer: the names it has for them are " +
           names_of_pre_tokenizers());
  }
  if (!component("decoder").is_object() || component("decoder").value("type", "") != "ByteLevel") {
    refuse("a decoder that is not ByteLevel");
  }
  if (parts.model.byte_fallback || parts.model.ignore_merges || parts.model.unk_token) {
    refuse("byte_fallback, ignore_merges or unk_token with this pre-tokenizer");
  }
  std::vector<std::string> tokens(static_cast<std::size_t>(request.vocab_size));
  std::vector<int32_t> types(tokens.size(), static_cast<int32_t>(TokenType::unused));
  const auto put = [&](int32_t id, const std::string& token, TokenType type) {
    if (id >= request.vocab_size) {
      refuse(fmt::format("token {}, which is beyond the model's vocab_size ({})", id,
                         request.vocab_size));
    }
    tokens[static_cast<std::size_t>(id)] = token;
    types[static_cast<std::size_t>(id)] = static_cast<int32_t>(type);
  };
  for (const auto& [token, id] : parts.model.vocab) put(id, token, TokenType::normal);
  for (const AddedToken& token : parts.added_tokens) {
    if (token.lstrip || token.rstrip || token.single_word) {
      refuse(
          fmt::format("lstrip, rstrip or single_word of the token {}", in_quotes(token.content)));
    }
    put(token.id, token.content, token.special ? TokenType::control : TokenType::user_defined);
  }
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    if (types[id] == static_cast<int32_t>(TokenType::unused))
      tokens[id] = fmt::format("[PAD{}]", id);
  }
  std::vector<std::string> merges;
  merges.reserve(parts.model.merges.size());
  for (const auto& [left, right] : parts.model.merges) {
    if (left.find(' ') != std::string::npos || right.find(' ') != std::string::npos) {
      refuse("a merge of tokens with spaces");
    }
    merges.push_back(left + " " + right);
  }
  metadata.text(kModel, kByteLevelModel);
  metadata.text(kPre, named->name);
  metadata.texts(kTokens, tokens);
  metadata.integers(kTypes, types);
  metadata.texts(kMerges, merges);
  metadata.boolean(
      kAddBos, stands_around(request, request.frame.before, request.bos_token_id, "BOS before"));
  metadata.boolean(kAddEos,
                   stands_around(request, request.frame.after, request.eos_token_id, "EOS behind"));
}

}  // namespace dsmoe::text

// Reads the few fields of tokenizer_config.json that change what a model is given.
#include "text/tokenizer/tokenizer_config.h"

#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/utf8.h"
#include "text/text_files.h"

namespace dsmoe::text {
namespace {

// Large vocabularies list every added token there; the largest known files are below 2 MB.
constexpr std::size_t kMaxConfigBytes = std::size_t{64} << 20;

std::optional<std::string> token_text(const Json& config, const char* key,
                                      const std::string& what) {
  if (!config.contains(key) || config[key].is_null()) return std::nullopt;
  const Json& token = config[key];
  if (token.is_string()) return token.get<std::string>();
  if (token.is_object() && token.contains("content") && token["content"].is_string()) {
    return token["content"].get<std::string>();
  }
  fail(ErrorKind::input, "{}: \"{}\" must be a string or an object with a string \"content\"", what,
       key);
}

std::string tokenizer_class(const Json& config) {
  const auto found = config.find("tokenizer_class");
  return found != config.end() && found->is_string() ? found->get<std::string>() : "";
}

// The classes whose constructors in transformers 4 replace the post-processor of tokenizer.json.
bool makes_its_own_frame(std::string name) {
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  return name == "LlamaTokenizer" || name == "CodeLlamaTokenizer" || name == "GemmaTokenizer";
}

struct Edge {
  const char* flag;   // add_bos_token
  const char* token;  // bos_token
  bool by_default;
  const char* default_token;
  const char* gemma_token;  // the default of that class
};
constexpr Edge kBos{"add_bos_token", "bos_token", true, "<s>", "<bos>"};
constexpr Edge kEos{"add_eos_token", "eos_token", false, "</s>", "<eos>"};

enum class Flag { absent, no, yes };

Flag read_flag(const Json& config, const Edge& edge, const std::string& what) {
  const auto found = config.find(edge.flag);
  if (found == config.end()) return Flag::absent;
  if (found->is_null()) return Flag::no;
  if (!found->is_boolean()) {
    fail(ErrorKind::input, "{}: \"{}\" must be true or false, not {}", what, edge.flag,
         found->type_name());
  }
  return found->get<bool>() ? Flag::yes : Flag::no;
}

using IdOf = FunctionRef<std::optional<std::int32_t>(std::string_view)>;

// The token of one edge, if any; nullopt: nothing asks for one that is there, the file decides.
std::optional<std::vector<std::int32_t>> tokens_of(const Json& config, const Edge& edge,
                                                   const std::string& what, IdOf id_of) {
  const Flag flag = read_flag(config, edge, what);
  if (flag == Flag::no || (flag == Flag::absent && !edge.by_default)) {
    return std::vector<std::int32_t>{};
  }
  std::optional<std::string> token = token_text(config, edge.token, what);
  if (!config.contains(edge.token)) {
    const bool is_gemma = tokenizer_class(config).starts_with("Gemma");
    token = is_gemma ? edge.gemma_token : edge.default_token;
  }
  const auto id = token ? id_of(*token) : std::nullopt;
  if (id) return std::vector<std::int32_t>{*id};
  if (flag == Flag::absent) return std::nullopt;
  fail(ErrorKind::input, "{}: \"{}\" is true, but {}; name a token of tokenizer.json as \"{}\"",
       what, edge.flag,
       token ? fmt::format("tokenizer.json has no token {}", in_quotes(*token))
             : fmt::format("\"{}\" is null", edge.token),
       edge.token);
}

// A flag that nobody obeys is worth a line: transformers says nothing.
void note_unheeded(const Json& config, const Edge& edge, const std::string& what,
                   const std::vector<std::int32_t>& of_file) {
  const Flag flag = read_flag(config, edge, what);
  if (flag == Flag::absent || (flag == Flag::yes) == !of_file.empty()) return;
  const std::string name = tokenizer_class(config);
  log_info("{}: {} is {}, but {} leaves that to tokenizer.json, which adds {}", what, edge.flag,
           flag == Flag::yes ? "true" : "false",
           name.empty() ? "a file without tokenizer_class" : in_quotes(name),
           of_file.empty() ? "none" : "one");
}

}  // namespace

std::optional<Json> read_tokenizer_config(const std::filesystem::path& model) {
  const auto file = read_text_file(model, kTokenizerConfigFile, kMaxConfigBytes);
  if (!file) return std::nullopt;
  Json config = parse_json(file->bytes, file->what);
  if (!config.is_object()) {
    fail(ErrorKind::input, "{}: expected a JSON object, found {}", file->what, config.type_name());
  }
  return config;
}

SpecialTokenTexts load_special_tokens(const std::filesystem::path& model) {
  const auto config = read_tokenizer_config(model);
  if (!config) return {};
  const std::string what = (model / kTokenizerConfigFile).string();
  return {.bos = token_text(*config, "bos_token", what),
          .eos = token_text(*config, "eos_token", what),
          .pad = token_text(*config, "pad_token", what),
          .unk = token_text(*config, "unk_token", what)};
}

TextFrame choose_frame(TextFrame of_tokenizer_json, const Json& config, const std::string& what,
                       IdOf id_of) {
  if (!makes_its_own_frame(tokenizer_class(config))) {
    note_unheeded(config, kBos, what, of_tokenizer_json.before);
    note_unheeded(config, kEos, what, of_tokenizer_json.after);
    return of_tokenizer_json;
  }
  auto before = tokens_of(config, kBos, what, id_of);
  auto after = tokens_of(config, kEos, what, id_of);
  if (!before || !after) return of_tokenizer_json;
  return {
      .before = std::move(*before), .after = std::move(*after), .said_by = kTokenizerConfigFile};
}

std::string with_chat_template(const std::string& config_json, const std::string& what,
                               std::string_view chat_template) {
  const Json config = parse_json(config_json, what);
  const auto found = config.find("chat_template");
  const bool has_one = found != config.end() && !found->is_null();
  if (!config.is_object() || has_one || !is_valid_utf8(chat_template)) return config_json;
  auto ordered = nlohmann::ordered_json::parse(config_json);  // the file keeps its order
  ordered["chat_template"] = chat_template;
  return ordered.dump(2) + "\n";
}

}  // namespace dsmoe::text

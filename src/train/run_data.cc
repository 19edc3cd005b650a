// Tokenizer and corpus of a training run.
#include "train/run_data.h"

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/progress.h"
#include "base/utf8.h"
#include "data/content_hash.h"
#include "store/gguf/gguf_file.h"
#include "text/text_files.h"

namespace dsmoe::train {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxTokenizerBytes = std::size_t{256} << 20;

// A tokenizer.json by itself, neither a model folder nor a GGUF file.
bool is_tokenizer_file(const fs::path& path) {
  return !fs::is_directory(path) && !store::gguf::is_gguf(path);
}

// The folder, or the GGUF file.
fs::path tokenizer_folder(const TokenizerRequest& request, const model::ModelConfig& config,
                          ThreadPool& pool) {
  if (!request.given.empty()) {
    const fs::path path = request.given;
    return !is_tokenizer_file(path) ? path : path.has_parent_path() ? path.parent_path() : ".";
  }
  if (!request.init.empty() && text::has_tokenizer(request.init)) return request.init;
  if (!request.data.empty()) {
    ensure_tokenizer({.run = request.run,
                      .data = request.data,
                      .separator = request.separator,
                      .keys = request.keys,
                      .found = request.found,
                      .cancelled = request.cancelled},
                     config, pool);
  }
  return request.run;
}

std::string token_text(const text::Tokenizer& tokenizer, std::optional<int64_t> id) {
  return id ? tokenizer.id_to_token(static_cast<int32_t>(*id)).value_or("") : "";
}

std::map<std::string, std::string> files_for_checkpoints(const fs::path& folder,
                                                         const std::string& tokenizer_json,
                                                         const text::Tokenizer& tokenizer,
                                                         const model::ModelConfig& config) {
  std::map<std::string, std::string> files{{"tokenizer.json", tokenizer_json}};
  for (const char* name : {"tokenizer_config.json", "generation_config.json", "chat_template.jinja",
                           "special_tokens_map.json"}) {
    if (auto file = text::read_text_file(folder, name, kMaxTokenizerBytes)) {
      files[name] = std::move(file->bytes);
    }
  }
  Json generation = {{"eos_token_id", eos_of(config)}};
  if (config.bos_token_id) generation["bos_token_id"] = *config.bos_token_id;
  files.try_emplace("generation_config.json", generation.dump(2) + "\n");
  if (!files.contains("tokenizer_config.json")) {
    Json tokens = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                   {"model_max_length", config.max_position_embeddings},
                   {"eos_token", token_text(tokenizer, eos_of(config))}};
    if (config.bos_token_id) tokens["bos_token"] = token_text(tokenizer, config.bos_token_id);
    files["tokenizer_config.json"] = tokens.dump(2) + "\n";
  }
  return files;
}

// A config made for another tokenizer would begin and end every document with some word of it, and
// teach a model that no prompt looks like.
void check_special_id(const fs::path& folder, const text::Tokenizer& tokenizer, const char* role,
                      std::optional<int64_t> id, const std::string& named) {
  if (!id) return;
  const std::string text = token_text(tokenizer, id);
  if (!text.empty() && (tokenizer.is_special(static_cast<int32_t>(*id)) || text == named)) return;
  const std::string fault =
      text.empty()
          ? fmt::format("the config's {}_token_id {} is no token of the tokenizer", role, *id)
          : fmt::format("the config's {}_token_id {} is the word {} of the tokenizer", role, *id,
                        in_quotes(text));
  const std::optional<int32_t> own = named.empty() ? std::nullopt : tokenizer.token_to_id(named);
  if (own) {
    fail(ErrorKind::input, "{}: {}, whose own is {} with id {}; set that in the config",
         folder.string(), fault, in_quotes(named), *own);
  }
  if (text.empty()) fail(ErrorKind::input, "{}: {}", folder.string(), fault);
  log_warning("{}: {}, no special token", folder.string(), fault);
}

// Name of a tool, or of a call of one.
std::string name_in(const OrderedJson& object) {
  const OrderedJson& function = object.contains("function") ? object["function"] : object;
  return function.is_object() ? function.value("name", "") : "";
}

// A template without a place for something would train on a conversation that nobody had.
void check_said(const OrderedJson& message, std::string_view rendered) {
  const auto role = message["role"].get<std::string>();
  if (rendered.empty() && !data::text_of(message).empty()) {
    fail(ErrorKind::input, "the chat template leaves out messages of role {}", in_quotes(role));
  }
  for (const OrderedJson& call : message.value("tool_calls", OrderedJson::array())) {
    if (rendered.find(name_in(call)) != std::string_view::npos) continue;
    fail(ErrorKind::input,
         "the chat template leaves out \"tool_calls\"; give a model's that has them");
  }
}

void check_offered(const OrderedJson& tools, const std::string& rendered) {
  for (const OrderedJson& tool : tools) {
    if (rendered.find(name_in(tool)) != std::string::npos) continue;
    fail(ErrorKind::input, "the chat template leaves out \"tools\"; give a model's that has them");
  }
}

// A conversation, message by message. An assistant's answer counts, the words that introduce it do
// not. Answers of tools that follow each other are one part: templates put them together.
class ChatRenderer {
 public:
  ChatRenderer(const text::ChatTemplate& chat_template, const text::ChatInput& base)
      : template_(chat_template), input_(base) {}

  std::vector<data::DocumentPart> render(const data::Chat& chat) {
    if (!chat.tools.empty()) input_.extra["tools"] = chat.tools;
    const OrderedJson& messages = chat.messages;
    for (std::size_t i = 0; i < messages.size(); ++i) {
      const bool answers = messages[i]["role"] == "assistant";
      if (answers) add(Introduces::yes, false);
      input_.messages.push_back(messages[i]);
      const auto is_tool = [&](std::size_t k) {
        return k < messages.size() && messages[k]["role"] == "tool";
      };
      if (is_tool(i) && is_tool(i + 1)) continue;
      const std::size_t before = whole_.size();
      add(Introduces::no, answers);
      check_said(messages[i], std::string_view(whole_).substr(before));
    }
    check_offered(chat.tools, whole_);
    return std::move(parts_);
  }

 private:
  enum class Introduces : bool { no, yes };

  void add(Introduces introduces, bool counted) {
    input_.add_generation_prompt = introduces == Introduces::yes;
    std::string whole = template_.render(input_);
    if (!whole.starts_with(whole_)) {
      fail(
          ErrorKind::input,
          "the chat template rewrites earlier messages when one is added; it cannot be trained on");
    }
    if (whole.size() > whole_.size()) {
      parts_.push_back(
          {.text = whole.substr(whole_.size()), .counted = counted, .ends_turn = counted});
    }
    whole_ = std::move(whole);
  }

  const text::ChatTemplate& template_;
  text::ChatInput input_;
  std::string whole_;
  std::vector<data::DocumentPart> parts_;
};

}  // namespace

RunTokenizer prepare_tokenizer(const TokenizerRequest& request, const model::ModelConfig& config,
                               ThreadPool& pool) {
  const fs::path folder = tokenizer_folder(request, config, pool);
  const bool is_file = !request.given.empty() && is_tokenizer_file(request.given);
  const bool is_gguf = store::gguf::is_gguf(folder);
  const fs::path path = is_file   ? fs::path(request.given)
                        : is_gguf ? folder
                                  : folder / "tokenizer.json";
  const std::string json =
      is_gguf ? text::read_text_file(path, "tokenizer.json", kMaxTokenizerBytes).value().bytes
              : read_small_file(path, kMaxTokenizerBytes);
  text::Tokenizer tokenizer = text::Tokenizer::from_file(path.string());
  if (tokenizer.vocab_size() > config.vocab_size) {
    fail(ErrorKind::input, "{}: {} token ids, but the config's vocab_size is {}", path.string(),
         tokenizer.vocab_size(), config.vocab_size);
  }
  if (!request.run.empty()) {
    const text::SpecialTokenTexts named = text::load_special_tokens(folder);
    check_special_id(folder, tokenizer, "bos", config.bos_token_id, named.bos.value_or(""));
    check_special_id(folder, tokenizer, "eos", eos_of(config), named.eos.value_or(""));
    if (config.bos_token_id && tokenizer.frame().before.empty()) {
      log_info("{}: the tokenizer puts no BOS before a text, so documents begin without one",
               folder.string());
    }
  }
  std::optional<text::ChatTemplate> own = text::load_chat_template(folder);
  auto files = files_for_checkpoints(folder, json, tokenizer, config);
  if (!own) {
    own = text::ChatTemplate::parse(text::deepseek_chat_template(), "chat template");
    files["chat_template.jinja"] = std::string(text::deepseek_chat_template());
  }
  std::string& tokens = files.at(text::kTokenizerConfigFile);
  tokens = text::with_chat_template(tokens, text::kTokenizerConfigFile, own->source());
  return {.tokenizer = std::move(tokenizer),
          .folder = folder,
          .files = std::move(files),
          .chat_template = *own};
}

std::vector<int32_t> token_bytes(const RunTokenizer& tokenizer, const model::ModelConfig& config) {
  std::vector<int32_t> bytes(static_cast<std::size_t>(config.vocab_size), 0);
  for (int32_t id = 0; id < static_cast<int32_t>(bytes.size()); ++id) {
    if (tokenizer.tokenizer.is_special(id)) continue;
    // Some decoders drop a space at the very beginning: the second of two has all its bytes.
    const int32_t twice[] = {id, id};
    const text::Tokenizer& decoder = tokenizer.tokenizer;
    bytes[static_cast<std::size_t>(id)] = static_cast<int32_t>(
        decoder.decode(twice).size() - decoder.decode(std::span(twice).first(1)).size());
  }
  return bytes;
}

data::Encoder encoder_of(const RunTokenizer& tokenizer, const model::ModelConfig& config) {
  const auto encode = [&tokens = tokenizer.tokenizer](std::string_view text,
                                                      text::ParseSpecial special) {
    return tokens.encode(text, {.add_special = text::AddSpecial::no, .parse_special = special});
  };
  data::Encoder encoder{
      .encode = [=](std::string_view text) { return encode(text, text::ParseSpecial::no); },
      .encode_rendered =
          [=](std::string_view text) { return encode(text, text::ParseSpecial::yes); },
      .vocab_size = config.vocab_size,
      .eos = eos_of(config),
      .hash = data::content_hash(tokenizer.files.at("tokenizer.json"))};
  // Documents begin as prompts do.
  const std::vector<int32_t>& before = tokenizer.tokenizer.frame().before;
  if (before.size() > 1) {
    fail(ErrorKind::input, "the tokenizer puts {} tokens before a text; documents begin with one",
         before.size());
  }
  if (!before.empty()) encoder.bos = before.front();
  return encoder;
}

data::BuiltCorpus prepare_corpus(const CorpusRequest& request, const RunTokenizer& tokenizer,
                                 const model::ModelConfig& config) {
  const data::Encoder encoder = encoder_of(tokenizer, config);
  text::ChatInput chat;
  chat.eos_token = token_text(tokenizer.tokenizer, encoder.eos);
  if (config.bos_token_id) chat.bos_token = token_text(tokenizer.tokenizer, config.bos_token_id);
  data::CorpusOptions options;
  options.cache_folder = request.cache;
  options.reader.separator = request.separator;
  options.reader.keys = request.keys;
  options.reader.render_chat = [&](const data::Chat& conversation) {
    return ChatRenderer(tokenizer.chat_template, chat).render(conversation);
  };
  options.chat_template_hash = data::content_hash(tokenizer.chat_template.source());
  options.inputs = request.inputs;

  std::unique_ptr<Progress> progress;
  options.poll = [cancelled = request.cancelled] {
    if (cancelled != nullptr && *cancelled) throw DataInterrupted();
  };
  options.progress = [&](const data::BuildProgress& state) {
    options.poll();
    if (!progress) {
      progress = std::make_unique<Progress>(ProgressOptions{
          .label = "tokens", .total = static_cast<int64_t>(state.bytes_total), .unit = "bytes"});
    }
    progress->update(static_cast<int64_t>(state.bytes_done),
                     fmt::format("{} documents, {} tokens", state.num_documents, state.num_tokens));
  };
  return data::build_corpus(options, encoder);
}

}  // namespace dsmoe::train

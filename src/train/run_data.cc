// Tokenizer and corpus of a training run.
#include "train_data.h"

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/progress.h"
#include "base/utf8.h"
#include "data/content_hash.h"
#include "interrupt.h"

namespace dsmoe::app {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxTokenizerBytes = std::size_t{256} << 20;

fs::path tokenizer_folder(const TokenizerRequest& request, const model::ModelConfig& config,
                          ThreadPool& pool) {
  if (!request.given.empty()) {
    const fs::path path = request.given;
    return fs::is_directory(path) ? path : path.has_parent_path() ? path.parent_path() : ".";
  }
  if (!request.init.empty() && fs::exists(fs::path(request.init) / "tokenizer.json")) {
    return request.init;
  }
  if (!request.data.empty()) {
    ensure_tokenizer({.run = request.run,
                      .data = request.data,
                      .separator = request.separator,
                      .found = request.found},
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
    if (fs::exists(folder / name)) {
      files[name] = read_small_file(folder / name, kMaxTokenizerBytes);
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

// One part per message; an assistant's answer counts, the words that introduce it do not.
std::vector<data::DocumentPart> render_chat(const text::ChatTemplate& chat_template,
                                            const text::ChatInput& base,
                                            std::span<const data::ChatMessage> messages) {
  std::vector<data::DocumentPart> parts;
  text::ChatInput input = base;
  std::string before;
  const auto add = [&](const std::string& whole, bool counted) {
    if (!whole.starts_with(before)) {
      fail(
          ErrorKind::input,
          "the chat template rewrites earlier messages when one is added; it cannot be trained on");
    }
    if (whole.size() > before.size()) {
      parts.push_back(
          {.text = whole.substr(before.size()), .counted = counted, .ends_turn = counted});
    }
    before = whole;
  };
  for (const data::ChatMessage& message : messages) {
    const bool answers = message.role == "assistant";
    if (answers) {
      input.add_generation_prompt = true;
      add(chat_template.render(input), false);
    }
    input.messages.push_back({{"role", message.role}, {"content", message.content}});
    input.add_generation_prompt = false;
    add(chat_template.render(input), answers);
  }
  return parts;
}

}  // namespace

TrainTokenizer prepare_tokenizer(const TokenizerRequest& request, const model::ModelConfig& config,
                                 ThreadPool& pool) {
  const fs::path folder = tokenizer_folder(request, config, pool);
  const bool is_file = !request.given.empty() && !fs::is_directory(request.given);
  const fs::path path = is_file ? fs::path(request.given) : folder / "tokenizer.json";
  const std::string json = read_small_file(path, kMaxTokenizerBytes);
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
  return {.tokenizer = std::move(tokenizer), .files = std::move(files), .chat_template = *own};
}

data::Encoder encoder_of(const TrainTokenizer& tokenizer, const model::ModelConfig& config) {
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

data::BuiltCorpus prepare_corpus(const CorpusRequest& request, const TrainTokenizer& tokenizer,
                                 const model::ModelConfig& config) {
  const data::Encoder encoder = encoder_of(tokenizer, config);
  text::ChatInput chat;
  chat.eos_token = token_text(tokenizer.tokenizer, encoder.eos);
  if (config.bos_token_id) chat.bos_token = token_text(tokenizer.tokenizer, config.bos_token_id);
  data::CorpusOptions options;
  options.cache_folder = request.cache;
  options.reader.separator = request.separator;
  options.reader.render_chat = [&](std::span<const data::ChatMessage> messages) {
    return render_chat(tokenizer.chat_template, chat, messages);
  };
  options.chat_template_hash = data::content_hash(tokenizer.chat_template.source());
  for (const std::string& path : request.data) options.inputs.push_back({.path = path});

  std::unique_ptr<Progress> progress;
  options.poll = [] {
    if (InterruptScope::flag()) throw DataInterrupted();
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

}  // namespace dsmoe::app
